"""The settings and options in which the rows of a report differ, over all of its tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedwmsam.engine.records import Record
from fedwmsam.report.runs import COMPARABILITY_KEYS, varying_keys
from fedwmsam.report.summary import Comparison, ResultRow, ResultTable
from fedwmsam.settings.config import RESULT_NEUTRAL_SETTINGS, setting_names

NOT_LISTED = {*RESULT_NEUTRAL_SETTINGS, "method", "seed", "twin"}
"""Settings that make no rows, and those that have columns of their own in every table."""


@dataclass(frozen=True)
class PlacedRow:
    """A row of a report together with everything in which its runs agree."""

    row: ResultRow
    table: ResultTable
    settings: Record
    """All settings and options of the row, also those at their defaults; lists are texts."""

    def has_no(self, key: str) -> bool:
        """Return whether the key is an option that the row's method does not have."""
        return key not in self.settings and key not in setting_names()

    def values(self, keys: Sequence[str]) -> tuple[Any, ...]:
        """Return the row's values of some settings."""
        return tuple(self.settings.get(key) for key in keys)

    def is_at(self, keys: Sequence[str], values: Sequence[Any]) -> bool:
        """Return whether the row has these values; an option that it does not have is no matter."""
        return all(
            self.has_no(key) or self.settings.get(key) == value
            for key, value in zip(keys, values, strict=True)
        )


def place_rows(comparison: Comparison) -> list[PlacedRow]:
    """Return the rows of all tables with all their settings."""
    placed_rows = []
    for table in comparison.tables:
        for row in table.rows:
            runs = [*(score.run for score in row.scores), *row.excluded_runs]
            settings = runs[0].config | table.shared_settings | row.config
            for key, value in settings.items():
                settings[key] = str(value) if isinstance(value, list) else value
            placed_rows.append(PlacedRow(row, table, settings))
    return placed_rows


def varied_settings(placed_rows: Sequence[PlacedRow]) -> list[str]:
    """Return the settings in which the rows differ, and the options in which those of a method do.

    What describes data and is no setting, such as their hash, is not among them.
    """
    names = setting_names()
    settings = [placed.settings for placed in placed_rows]
    varied = [key for key in varying_keys(settings) if key in names]
    for method in dict.fromkeys(placed.row.method for placed in placed_rows):
        rows = [placed.settings for placed in placed_rows if placed.row.method == method]
        keys = [key for key in varying_keys(rows) if key not in (*names, *COMPARABILITY_KEYS)]
        varied += [key for key in keys if key not in varied]
    return [key for key in varied if key not in NOT_LISTED]
