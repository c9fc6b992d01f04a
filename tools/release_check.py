"""The wheel with each extra, alone, in a new environment with packages from the index: `make release-check`.

Each environment installs PyTorch (200 MB) and is removed afterwards; name extras to try these only:
`PYTHONPATH=tests python tools/release_check.py images plot`. Prints a line an extra; the exit code is 1 if one fails.
"""

import sys
import tempfile
import time
from pathlib import Path

from helpers.wheels import ROOT, build_wheel, call

RUN = "run --rounds 1 --local-epochs 1 --quiet"
PICTURES = """
from pathlib import Path
from PIL import Image
for k in range(12):
    folder = Path("pictures", "dark" if k % 2 else "light")
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (20 * k,) * 3).save(folder / f"{k}.png")
"""
PROMISES: dict[str, tuple[str, list[str]]] = {
    "": (
        "import fedwmsam; fedwmsam.fit, fedwmsam.FedWMSAM",
        [RUN, "report runs --html page.html", "methods fedwmsam"],
    ),
    "flower": (
        "import flwr, fedwmsam.flower",
        ["flower new app", "flower keys keys --host 127.0.0.1 --nodes 2"],
    ),
    "flower-simulation": ("import flwr, ray", ["flower new app"]),
    "images": (
        PICTURES,
        [f"{RUN} --dataset pictures,image_size=8 --partition iid --clients 2 --participation 1"],
    ),
    "plot": ("import matplotlib", ["partition --save split.png"]),
    "notebooks": ("import ipykernel, matplotlib, nbclient, nbformat", []),
    "privacy": (
        "import dp_accounting",
        [f"{RUN} --method fedavg --sampling bernoulli --dp-noise 1 --dp-clip 0.5"],
    ),
    "docs": ("import furo, myst_parser, sphinx", []),
    "tensorboard": ("import tensorboard", [f"{RUN} --track tensorboard"]),
    "wandb": ("import wandb", [f"{RUN} --track wandb"]),
}
"""Extra → a program that needs what it installs, and commands that do. `dev` is what CI installs."""


def main() -> None:
    failed = []
    with tempfile.TemporaryDirectory() as name:
        wheel = build_wheel(Path(name))
        for extra in sys.argv[1:] or PROMISES:
            begun = time.monotonic()
            try:
                found = try_extra(extra, wheel)
            except AssertionError as error:
                found = f"FAILED\n{error}"
                failed.append(extra)
            print(f"{extra or 'no extra'}: {found}, {time.monotonic() - begun:.0f} s", flush=True)
    sys.exit(bool(failed))


def try_extra(extra: str, wheel: Path) -> str:
    """What was installed, after everything that the extra promises has worked."""
    program, commands = PROMISES[extra]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call([sys.executable, "-m", "venv", "environment"], folder)
        python = folder / "environment" / "bin" / "python"
        wanted = f"{wheel}[{extra}]" if extra else wheel
        pip = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
        ]  # thousands of files that nobody imports
        call([*pip, "--constraint", ROOT / "constraints.txt", wanted], folder)
        call([python, "-c", program], folder)
        for command in commands:
            call([python.with_name("fedwmsam"), *command.split()], folder)
        return f"{len(call([python, '-m', 'pip', 'list'], folder).splitlines()) - 2} packages"


if __name__ == "__main__":
    main()
