"""Try a release with each extra, alone, in a new environment: `make release-check`.

The first environment installs the sdist, the others the wheel, which is built from it. The
packages come from the index. Each environment installs PyTorch (200 MB) and is removed
afterwards. Name extras to try these with the wheel only:

    PYTHONPATH=tests python tools/release_check.py images plot

Prints one line per extra; the exit code is 1 if any fails.
"""

import sys
import tempfile
import time
from pathlib import Path

from helpers.wheels import ROOT, build_release, run_command

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
    "notebooks": ("import ipykernel, matplotlib, nbclient, nbformat, pandas", []),
    "privacy": (
        "import dp_accounting",
        [f"{RUN} --method fedavg --sampling bernoulli --dp-noise 1 --dp-clip 0.5"],
    ),
    "docs": ("import furo, myst_parser, sphinx", []),
    "ray": ("import ray", [f"{RUN} --workers ray:2"]),
    "tensorboard": ("import tensorboard", [f"{RUN} --track tensorboard"]),
    "wandb": ("import wandb", [f"{RUN} --track wandb"]),
}
"""By extra: a program that needs what it installs, and commands that do.

`dev` is not among them because CI installs it.
"""


def main() -> None:
    """Try the extras named on the command line, or all of them."""
    failed = []
    with tempfile.TemporaryDirectory() as name:
        release = build_release(Path(name))
        tried = [("", release.sdist)] if len(sys.argv) == 1 else []
        tried += [(extra, release.wheel) for extra in sys.argv[1:] or PROMISES]
        for extra, path in tried:
            begun = time.monotonic()
            try:
                outcome = try_extra(extra, path)
            except AssertionError as error:
                outcome = f"FAILED\n{error}"
                failed.append(path.name)
            seconds = time.monotonic() - begun
            print(f"{path.name}, {extra or 'no extra'}: {outcome}, {seconds:.0f} s", flush=True)
    sys.exit(bool(failed))


def try_extra(extra: str, path: Path) -> str:
    """Return what a file of a release installed, after all that the extra promises has worked.

    Raises AssertionError with the output of the first command that fails.
    """
    program, commands = PROMISES[extra]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_command([sys.executable, "-m", "venv", "environment"], folder)
        python = folder / "environment" / "bin" / "python"
        requirement = f"{path}[{extra}]" if extra else path
        # Not compiled, because nobody imports most of the thousands of files.
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
        run_command([*install, "--constraint", ROOT / "constraints.txt", requirement], folder)
        run_command([python, "-c", program], folder)
        for command in commands:
            run_command([python.with_name("fedwmsam"), *command.split()], folder)
        listing = run_command([python, "-m", "pip", "list"], folder)
        return f"{len(listing.splitlines()) - 2} packages"


if __name__ == "__main__":
    main()
