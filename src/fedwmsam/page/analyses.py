"""Results of `fedwmsam analyse` that are in the runs' folders, for the page.

These are the dynamics of training, images, clusters of embeddings and the theorem's conditions.
"""

import base64
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedwmsam.analysis import dynamics, embedding, theory
from fedwmsam.analysis.embedding import cluster_table
from fedwmsam.analysis.saved_run import load_analysis, read_analysis_cache
from fedwmsam.analysis.theory import run_tables
from fedwmsam.errors import InputError, describe_error, printable
from fedwmsam.files import is_regular, own_folder, read_bytes
from fedwmsam.page.figures import (
    FigureData,
    LineChart,
    SeedValues,
    curve_chart,
    make_chart_line,
    runs_behind,
    seed_values,
)
from fedwmsam.report.plots import line_style
from fedwmsam.report.summary import ResultTable
from fedwmsam.report.text_tables import TextTable

MIME_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
"""Formats of images that a page can show; PDF is none of them."""
MAX_EMBEDDED_BYTES = 3_000_000
"""Bytes of all images on one page, which must still open at once."""


@contextlib.contextmanager
def refuse_damaged_analyses() -> Iterator[None]:
    """Raise InputError for whatever the numbers of an analysis trip over inside."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            "A file in a run's folder analysis/ is damaged "
            f"({printable(describe_error(error), 200)}); remove it, or analyse again."
        ) from error


class NamedRun(NamedTuple):
    """A run's folder with the name that a reader knows it by."""

    name: str
    path: Path


class EmbeddedImage(NamedTuple):
    """An image that is part of the page."""

    caption: str
    source: str
    """The image as a data URI."""


def named_runs(table: ResultTable) -> list[NamedRun]:
    """Return all runs of a table with their rows and seeds as names."""
    runs = []
    for row in table.rows:
        runs += [NamedRun(f"{row.label}, seed {run.seed}", run.path) for run in runs_behind(row)]
    return runs


def dynamics_chart(
    groups: Sequence[dynamics.SeedGroup], figure_data: FigureData
) -> LineChart | None:
    """Return the chart of alignment, echo and drift over the rounds, None if there is no curve."""
    lines = [
        make_chart_line(line_style(index), group.label, x={}, y=dynamics_curves(group))
        for index, group in enumerate(groups)
    ]
    recorded = set().union(*(line["y"] for line in lines))
    names = [name for name in dynamics.CURVES if name in recorded]
    return curve_chart(figure_data.add_chart(lines), lines, names, window=1) if names else None


def dynamics_curves(group: dynamics.SeedGroup) -> dict[str, SeedValues]:
    """Return the values of each curve that the group has."""
    curves = {}
    for name in dynamics.CURVES:
        rounds, values = group.curve(name)
        if rounds:
            curves[name] = seed_values(rounds, values)
    return curves


def embed_images(runs: Iterable[NamedRun]) -> tuple[list[EmbeddedImage], list[Path]]:
    """Return the images of the runs' analyses, and the files that are not shown.

    A file is not shown if it is a PDF, if the page would become too large, or if it is a link:
    whoever gets the page would see another file of whoever made it.
    """
    images = []
    omitted_files = []
    remaining_bytes = MAX_EMBEDDED_BYTES
    for run in runs:
        for path in sorted(own_folder(run.path / "analysis").glob("*")):
            if path.suffix not in (*MIME_TYPES, ".pdf"):
                continue
            size = path.lstat().st_size
            if path.suffix == ".pdf" or not is_regular(path) or size > remaining_bytes:
                omitted_files.append(path)
                continue
            remaining_bytes -= size
            caption = f"{run.name}: {path.stem.replace('-', ' ')}"
            images.append(EmbeddedImage(caption, data_uri(path, size)))
    return images, omitted_files


def data_uri(path: Path, size: int) -> str:
    """Return an image of so many bytes as a URI that holds it."""
    content = base64.b64encode(read_bytes(path, size)).decode()
    return f"data:{MIME_TYPES[path.suffix]};base64,{content}"


def cluster_tables(runs: Iterable[NamedRun]) -> list[TextTable]:
    """Return the table of how tight the embeddings' clusters are; none without embeddings."""
    named_records = []
    for run in runs:
        file = own_folder(run.path / "analysis") / embedding.EMBEDDING_FILE
        if file.exists():
            _, records = read_analysis_cache(file)
            named_records += [(run.name, record) for record in records.values()]
    return [cluster_table(named_records)] if named_records else []


def theory_tables(runs: Iterable[NamedRun]) -> list[TextTable]:
    """Return the tables of the theorem for each run whose constants were estimated."""
    tables = []
    for run in runs:
        record = load_analysis(run.path, theory.THEORY_FILE)
        if record:
            tables += run_tables(run.name, record)
    return tables
