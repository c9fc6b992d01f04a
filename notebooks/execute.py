"""Execute notebooks and save their outputs in their files: `make notebooks`.

    python notebooks/execute.py [notebooks/tour.ipynb …]      # without a path: all of this folder

Each notebook runs from top to bottom in a fresh kernel, in its own folder, as a reader's would.
"""

import sys
from pathlib import Path

try:
    import nbformat
    from nbclient import NotebookClient
except ModuleNotFoundError as error:
    install = f"{sys.executable} -m pip install -c constraints.txt -e '.[notebooks]'"
    raise SystemExit(f"{error}: in the clone, {install}") from error

HERE = Path(__file__).parent


def execute(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with new outputs; raise the error of a cell that fails."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": path.parent}}
    client = NotebookClient(notebook, timeout=1800, kernel_name="python3", resources=resources)
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day: every execution would be a change
    notebook.metadata.language_info = {"name": "python"}  # not the version of this kernel either
    return notebook


def main() -> None:
    for path in list(map(Path, sys.argv[1:])) or sorted(HERE.glob("*.ipynb")):
        nbformat.write(execute(path), path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
