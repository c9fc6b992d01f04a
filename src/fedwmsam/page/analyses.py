"""What `fedwmsam analyse` left in the runs' folders: dynamics, pictures, clusters and the theorem's conditions."""

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedwmsam.analysis import dynamics, embedding, theory
from fedwmsam.analysis.embedding import cluster_sheet
from fedwmsam.analysis.saved_run import load_analysis, read_analysis_cache
from fedwmsam.analysis.theory import run_sheets
from fedwmsam.engine.records import Record
from fedwmsam.page.figures import (
    FigureData,
    LineChart,
    column_record,
    curve_chart,
    line_record,
    runs_behind,
)
from fedwmsam.report.summary import ResultTable
from fedwmsam.report.text_tables import TextTable

MIME_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
"""What a page can show; a PDF it cannot."""
MAX_EMBEDDED_BYTES = 3_000_000
"""Bytes of pictures on one page: it must still open at once."""


class NamedRun(NamedTuple):
    name: str
    path: Path


class EmbeddedImage(NamedTuple):
    caption: str
    source: str


def named_runs(table: ResultTable) -> list[NamedRun]:
    return [
        NamedRun(f"{row.label}, seed {run.seed}", run.path)
        for row in table.rows
        for run in runs_behind(row)
    ]


def dynamics_chart(groups: Sequence[dynamics.Group], drawn: FigureData) -> LineChart | None:
    lines = [
        line_record(number, group.label) | {"x": {}, "y": curves(group)}
        for number, group in enumerate(groups)
    ]
    names = [name for name in dynamics.CURVES if any(name in line["y"] for line in lines)]
    return curve_chart(drawn.add_chart(lines), lines, names, window=1) if names else None


def curves(group: dynamics.Group) -> dict[str, Record]:
    found = {name: group.curve(name) for name in dynamics.CURVES}
    return {
        name: column_record(rounds, values) for name, (rounds, values) in found.items() if rounds
    }


def embed_images(runs: Iterable[NamedRun]) -> tuple[list[EmbeddedImage], list[Path]]:
    """Landscapes, embeddings and flatness as far as there is room, and the files that are not shown."""
    shown = []
    left_out = []
    room = MAX_EMBEDDED_BYTES
    for run in runs:
        for path in sorted((run.path / "analysis").glob("*")):
            if path.suffix in MIME_TYPES and path.stat().st_size <= room:
                room -= path.stat().st_size
                shown.append(
                    EmbeddedImage(f"{run.name}: {path.stem.replace('-', ' ')}", data_uri(path))
                )
            elif path.suffix in (*MIME_TYPES, ".pdf"):
                left_out.append(path)
    return shown, left_out


def data_uri(path: Path) -> str:
    """A picture as an address that holds it."""
    return f"data:{MIME_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def cluster_tables(runs: Iterable[NamedRun]) -> list[TextTable]:
    """How tight the clusters of the embeddings are, if any was made."""
    files = [(run.name, run.path / "analysis" / embedding.EMBEDDING_FILE) for run in runs]
    found = [
        (name, one)
        for name, file in files
        if file.exists()
        for one in read_analysis_cache(file)[1].values()
    ]
    return [cluster_sheet(found)] if found else []


def theory_tables(runs: Iterable[NamedRun]) -> list[TextTable]:
    """The theorem beside each run whose constants were estimated."""
    found = [
        (run.name, record)
        for run in runs
        if (record := load_analysis(run.path, theory.THEORY_FILE))
    ]
    return [sheet for name, record in found for sheet in run_sheets(name, record)]
