"""Writing a small working Flower app for the user to edit."""

import re
from pathlib import Path

from fedwmsam.errors import InputError

TEMPLATE = Path(__file__).with_name("template")
"""Folder of the files that are copied, with words in double braces to be replaced."""

UNITS = "systemd"
"""Folder of an app with units for systemd and what nginx lets through to the SuperLink.

`flwr run` does not send it to the nodes.
"""


def new_app(folder: Path) -> list[Path]:
    """Write the files of a new app and return their paths.

    Raise InputError if the folder is not empty, or its name is no name for a Python package.
    """
    package = re.sub(r"\W+", "_", folder.resolve().name.lower()).strip("_")
    if not package.isidentifier():
        raise InputError(
            f"{folder.resolve().name!r} is no name for a Python package; use letters and digits."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; choose another folder.")
    replacements = {
        "name": package.replace("_", "-"),
        "package": package,
        "folder": f"~/flower-runs/{package}",
    }
    (folder / package).mkdir(parents=True)
    (folder / UNITS).mkdir()
    written = [folder / package / "__init__.py"]
    written[0].touch()
    for source in sorted(TEMPLATE.glob("*.*")):
        text = source.read_text("utf-8")
        for word, value in replacements.items():
            text = text.replace("{{" + word + "}}", value)
        target = target_of(source.name, replacements["name"], package)
        (folder / target).write_text(text, "utf-8", newline="\n")
        written.append(folder / target)
    return written


def target_of(file: str, name: str, package: str) -> Path:
    """Return where a file of the template goes, inside the folder of the app."""
    if file.endswith((".service", ".conf")):
        return Path(UNITS, f"{name}-{file}")
    return Path(package, file) if file.endswith(".py") else Path(file)
