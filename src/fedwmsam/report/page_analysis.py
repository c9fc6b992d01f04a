"""What `fedwmsam analyse` found, on the page: a part for each analysis that the runs' folders hold."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedwmsam.analysis import dynamics, embedding, theory
from fedwmsam.analysis.embedding import cluster_sheet
from fedwmsam.analysis.saved_run import load_analysis, read_archive
from fedwmsam.analysis.theory import run_sheets
from fedwmsam.engine.records import Record
from fedwmsam.report.page_data import column, look, runs_of
from fedwmsam.report.page_figures import curve_figure
from fedwmsam.report.page_markup import Html, joined
from fedwmsam.report.page_pictures import picture_block
from fedwmsam.report.page_tables import sheet_block, word_block
from fedwmsam.report.summary import Table


class Part(NamedTuple):
    name: str
    title: str
    body: Html


def analysis_parts(table: Table, charts: list[list[Record]]) -> Iterator[Part]:
    """Charts are numbers the page's script draws; a part adds its own."""
    groups = dynamics.groups_of(run for row in table.rows for run in runs_of(row))
    if groups:
        lines = [look(number, group.label) | {"x": {}, "y": curves(group)} for number, group in enumerate(groups)]
        names = [name for name in dynamics.CURVES if any(name in line["y"] for line in lines)]
        blocks = [sheet_block(sheet) for sheet in dynamics.sheets(groups)]
        if names:
            charts.append(lines)
            blocks.insert(0, curve_figure(len(charts) - 1, lines, names, 1))
        yield Part("dynamics", "Alignment, echo and drift", joined(blocks))
    named = [(f"{row.label}, seed {run.seed}", run.path) for row in table.rows for run in runs_of(row)]
    drawn = picture_block(named)
    if drawn:
        yield Part("pictures", "Landscapes and embeddings", joined([drawn, *cluster_block(named)]))
    found = [(name, record) for name, path in named if (record := load_analysis(path, theory.FILE))]
    if found:
        sheets = [sheet for label, record in found for sheet in run_sheets(label, record)]
        yield Part("theory", "The theorem and these runs", joined(map(word_block, sheets)))


def cluster_block(named: Iterable[tuple[str, Path]]) -> Iterator[Html]:
    """How tight the clusters of the embeddings are, if any was made."""
    files = [(name, path / "analysis" / embedding.FILE) for name, path in named]
    found = [(name, one) for name, file in files if file.exists() for one in read_archive(file)[1].values()]
    if found:
        yield sheet_block(cluster_sheet(found))


def curves(group: dynamics.Group) -> dict[str, Record]:
    found = {name: group.curve(name) for name in dynamics.CURVES}
    return {name: column(rounds, values) for name, (rounds, values) in found.items() if rounds}
