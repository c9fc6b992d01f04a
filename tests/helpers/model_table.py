"""The table "Everybody's model" of docs/your-model-and-data.md, whose code the tests execute."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import fedwmsam

PAGE = Path(__file__).parents[2] / "docs" / "your-model-and-data.md"
HEADING = "### Everybody's model\n"


def read_rows() -> dict[str, str]:
    """Return what each row is about, with its line of code."""
    section = PAGE.read_text("utf-8").partition(HEADING)[2].partition("\n### ")[0]
    return dict(re.findall(r"^\| ([^|]+) \| `([^|`]+)` \|", section, re.MULTILINE))


def fit_row(row: str, settings: dict[str, Any], **names: Any) -> fedwmsam.Result:
    """Execute a row's line with `fit` at these settings, and return the result.

    `names` are the other names of the line.
    """
    fit = partial(fedwmsam.fit, **settings)
    result: fedwmsam.Result = eval(read_rows()[row], {"fit": fit} | names)
    return result
