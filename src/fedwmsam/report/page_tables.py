"""The tables of a page: the report's sheets, and what only a page has room for."""

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np

from fedwmsam.data.partitions import Partition, heterogeneity
from fedwmsam.engine.records import Record
from fedwmsam.methods import METHODS, Method
from fedwmsam.report.page_data import Dealt
from fedwmsam.report.page_markup import Html, element, joined
from fedwmsam.report.runs import number, shown, varied
from fedwmsam.report.summary import Row, Table
from fedwmsam.report.text_tables import COSTS, NOTHING, Sheet, amount
from fedwmsam.settings.config import RunConfig
from fedwmsam.statistics import mean_spread

LENGTHS = (*COSTS, "rounds", "MB down", "MB up", "evaluation s")
"""Columns of costs, which are drawn as lengths too."""


def sheet_block(sheet: Sheet, lengths: Sequence[str] = ()) -> Html:
    """A table that can be sorted, with its remarks below."""
    head = [
        element(
            "th", element("button", name, type="button"), scope="col", aria_sort="none", data_length=name in lengths
        )
        for name in sheet.header
    ]
    notes = element("ul", *(element("li", note) for note in sheet.notes), class_="notes") if sheet.notes else ""
    return joined([frame(table(sheet, head, "sortable"), sheet.title), notes])


def word_block(sheet: Sheet) -> Html:
    """A table of words, in an order of its own."""
    head = [element("th", name, scope="col") for name in sheet.header]
    return frame(table(sheet, head, "words"), sheet.title)


def table(sheet: Sheet, head: Sequence[Html], kind: str) -> Html:
    rows = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in others))
        for first, *others in sheet.rows
    ]
    parts = (element("thead", element("tr", *head)), element("tbody", *rows))
    return element("table", element("caption", sheet.title), *parts, class_=kind)


def frame(content: Html, label: str) -> Html:
    """What is too wide for the page scrolls by itself, also from the keyboard."""
    return element("div", content, class_="frame", role="group", aria_label=label, tabindex="0")


# Costs


def ledger(table: Table) -> Sheet:
    """What each row's runs spent."""
    rows = tuple((row.label, *ledger_cells(row)) for row in table.rows if row.scores)
    header = ("method", "MB down", "MB up", "backprops", "training s", "evaluation s")
    return Sheet("Whole runs: all clients and rounds together, mean over the seeds", header, rows)


def ledger_cells(row: Row) -> Iterator[str]:
    runs = [score.run for score in row.scores]
    for name, unit in (("bytes_down", 1e6), ("bytes_up", 1e6), ("backprops", 1.0)):
        yield amount(mean_spread([total(run.rows, name) for run in runs]), unit)
    for name in ("train_seconds", "evaluate_seconds"):
        yield amount(mean_spread([total(run.timings, name) for run in runs]), 1.0)


def total(lines: Sequence[Record], name: str) -> float:
    return float(np.sum([number(line.get(name)) for line in lines])) if lines else float("nan")


# Partition


def partition_sheet(rule: str, dealt: Sequence[Dealt]) -> Sheet:
    header = (
        "seed", "clients", "samples", "of a client", "distance", "largest distance", "effective classes", "hash",
    )  # fmt: skip
    notes = (
        "Of a client: smallest, median and largest number of samples.",
        "Distance: total variation between a client's classes and those of all clients together, mean over the "
        "clients; 0 means the same shares, 1 no class in common.",
        "Effective classes: exp(entropy) of a client's classes, mean over the clients.",
    )
    return Sheet(f"{rule}: how the data were dealt out", header, tuple(map(partition_cells, dealt)), notes)


def partition_cells(dealt: Dealt) -> tuple[str, ...]:
    sizes = dealt.counts.sum(axis=1)
    figures = heterogeneity(Partition("", clients=(), counts=dealt.counts, reused=0))
    return (
        dealt.whose,
        f"{len(sizes):,}",
        f"{sizes.sum():,}",
        f"{sizes.min()} / {np.median(sizes):g} / {sizes.max()}",
        f"{figures.mean_distance:.3f}",
        f"{figures.largest_distance:.3f}",
        f"{figures.effective_classes:.1f}",
        dealt.hash,
    )


# Settings


def settings_block(table: Table) -> Html:
    shared = common_settings(table)
    count = f"{len(shared.rows)} setting{'s' * (len(shared.rows) != 1)}"
    common = element("details", element("summary", f"{shared.title}: {count}"), word_block(shared))
    return joined([sheet_block(differing_settings(table)), common])


def differing_settings(table: Table) -> Sheet:
    names = [key for key in varied([row.config for row in table.rows]) if key != "method"]
    rows = tuple(
        (
            row.label,
            ", ".join(map(str, row.seeds)) or NOTHING,
            *(shown(row.config[name]) if name in row.config else NOTHING for name in names),
        )
        for row in table.rows
    )
    return Sheet("What sets the rows apart", ("method", "seeds", *names), rows)


def common_settings(table: Table) -> Sheet:
    """Also what keeps the rows in one table."""
    configs = [row.config for row in table.rows]
    differing = varied(configs)
    shared = table.held_equal | {key: value for key, value in configs[0].items() if key not in differing}
    known = meanings({row.method for row in table.rows})
    rows = tuple((key, shown(value), known.get(key, "")) for key, value in shared.items() if value is not None)
    return Sheet("What all rows share", ("setting", "value", "meaning"), rows)


def meanings(methods: set[str]) -> dict[str, str]:
    classes: list[type[RunConfig | Method]] = [
        RunConfig,
        *(METHODS[name] for name in sorted(methods) if name in METHODS),
    ]
    return {f.name: f.metadata["help"] for cls in classes for f in fields(cls) if f.metadata}
