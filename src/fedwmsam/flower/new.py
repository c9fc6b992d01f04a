"""A small working Flower app to edit."""

import re
from pathlib import Path

from fedwmsam.errors import InputError

TEMPLATE = Path(__file__).with_name("template")


def new_app(folder: Path) -> list[Path]:
    """Write the app's files; nothing that exists is overwritten."""
    package = re.sub(r"\W+", "_", folder.resolve().name.lower()).strip("_")
    if not package.isidentifier():
        raise InputError(
            f"{folder.resolve().name!r} is no name for a Python package; use letters and digits."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; choose another folder.")
    words = {
        "name": package.replace("_", "-"),
        "package": package,
        "folder": f"~/flower-runs/{package}",
    }
    (folder / package).mkdir(parents=True)
    written = [folder / package / "__init__.py"]
    written[0].touch()
    for source in sorted(TEMPLATE.glob("*.*")):
        text = source.read_text()
        for word, value in words.items():
            text = text.replace("{{" + word + "}}", value)
        written.append((folder / package if source.suffix == ".py" else folder) / source.name)
        written[-1].write_text(text)
    return written
