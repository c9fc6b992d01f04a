"""What `fedwmsam analyse` left in the runs' folders: dynamics, pictures, clusters and the theorem's conditions."""

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedwmsam.analysis import dynamics, embedding, theory
from fedwmsam.analysis.embedding import cluster_sheet
from fedwmsam.analysis.saved_run import load_analysis, read_archive
from fedwmsam.analysis.theory import run_sheets
from fedwmsam.engine.records import Record
from fedwmsam.page.figures import Chart, Drawn, column, curve_chart, look, runs_of
from fedwmsam.report.summary import Table
from fedwmsam.report.text_tables import Sheet

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
"""What a page can show; a PDF it cannot."""
TOGETHER = 3_000_000
"""Bytes of pictures on one page: it must still open at once."""


class NamedRun(NamedTuple):
    name: str
    path: Path


class Picture(NamedTuple):
    caption: str
    source: str


def named_runs(table: Table) -> list[NamedRun]:
    return [
        NamedRun(f"{row.label}, seed {run.seed}", run.path)
        for row in table.rows
        for run in runs_of(row)
    ]


def dynamics_chart(groups: Sequence[dynamics.Group], drawn: Drawn) -> Chart | None:
    lines = [
        look(number, group.label) | {"x": {}, "y": curves(group)}
        for number, group in enumerate(groups)
    ]
    names = [name for name in dynamics.CURVES if any(name in line["y"] for line in lines)]
    return curve_chart(drawn.add_chart(lines), lines, names, window=1) if names else None


def curves(group: dynamics.Group) -> dict[str, Record]:
    found = {name: group.curve(name) for name in dynamics.CURVES}
    return {name: column(rounds, values) for name, (rounds, values) in found.items() if rounds}


def pictures(runs: Iterable[NamedRun]) -> tuple[list[Picture], list[Path]]:
    """Landscapes, embeddings and flatness as far as there is room, and the files that are not shown."""
    shown = []
    left_out = []
    room = TOGETHER
    for run in runs:
        for path in sorted((run.path / "analysis").glob("*")):
            if path.suffix in KINDS and path.stat().st_size <= room:
                room -= path.stat().st_size
                shown.append(Picture(f"{run.name}: {path.stem.replace('-', ' ')}", embedded(path)))
            elif path.suffix in (*KINDS, ".pdf"):
                left_out.append(path)
    return shown, left_out


def embedded(path: Path) -> str:
    """A picture as an address that holds it."""
    return f"data:{KINDS[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def cluster_sheets(runs: Iterable[NamedRun]) -> list[Sheet]:
    """How tight the clusters of the embeddings are, if any was made."""
    files = [(run.name, run.path / "analysis" / embedding.FILE) for run in runs]
    found = [
        (name, one)
        for name, file in files
        if file.exists()
        for one in read_archive(file)[1].values()
    ]
    return [cluster_sheet(found)] if found else []


def theory_sheets(runs: Iterable[NamedRun]) -> list[Sheet]:
    """The theorem beside each run whose constants were estimated."""
    found = [(run.name, record) for run in runs if (record := load_analysis(run.path, theory.FILE))]
    return [sheet for name, record in found for sheet in run_sheets(name, record)]
