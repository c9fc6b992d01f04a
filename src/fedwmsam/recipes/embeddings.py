"""The paper's t-SNE figures: pictures beside each other, and what they show as numbers, over the seeds."""

from collections.abc import Iterator
from dataclasses import dataclass

from fedwmsam.analysis.embedding import Choice, grid_of_embeddings, run_embedding
from fedwmsam.analysis.saved_run import SavedRun
from fedwmsam.engine.records import Record
from fedwmsam.recipes.recipe import Column
from fedwmsam.recipes.results import Results
from fedwmsam.report.plots import Picture, slug
from fedwmsam.report.runs import Run
from fedwmsam.report.text_tables import NOTHING, Sheet, spread_cell
from fedwmsam.statistics import mean_spread

UNSEEN = Choice(data="test")
"""Of test samples: how a model clusters what it was trained on says nothing about generalisation."""


def embedded(run: Run) -> Record:
    """Of the run's last model; kept in its folder."""
    saved = SavedRun(run.path)
    return run_embedding(saved, saved.rounds("last"), UNSEEN, run.path / "analysis")[0]


def first_embeddings(results: Results, column: Column) -> list[tuple[str, Run]]:
    """Each contender's run of the lowest seed."""
    rows = [(contender.name, results.row(contender, column).scores) for contender in results.recipe.contenders]
    return [(name, scores[0].run) for name, scores in rows if scores]


@dataclass(frozen=True)
class Embeddings:
    """A panel for each contender, of its first seed."""

    name: str = "embeddings"

    def pictures(self, results: Results) -> Iterator[Picture]:
        for column in results.plan.columns:
            runs = first_embeddings(results, column)
            if runs:
                names = runs[0][1].data.get("class_names", ())
                place = f"-{slug(column.name)}" if len(results.plan.columns) > 1 else ""
                yield grid_of_embeddings([(name, embedded(run)) for name, run in runs], names, self.name + place)


def clusters(results: Results) -> Sheet:
    """How tight and far apart the classes are, in the features and in the picture."""
    rows = []
    for column in results.plan.columns:
        for contender in results.recipe.contenders:
            found = [embedded(score.run) for score in results.row(contender, column).scores]
            cells = [cell(found, of, figure) for of in ("features", "picture") for figure in FIGURES]
            rows.append((contender.name, column.name, str(len(found)), *cells))
    header = ["row", "column", "seeds"]
    for of in ("features", "picture"):
        header += [f"{of}: {title}" for title in FIGURES.values()]
    notes = (
        f"Of {UNSEEN.samples:,} test samples before the last layer. Silhouette: −1 to 1, more is better; "
        "Davies–Bouldin: from 0, less is better. The claim of more compact clusters is about the features.",
    )
    return Sheet("Clusters by class before the last layer", tuple(header), tuple(rows), notes)


FIGURES = {"silhouette": "silhouette", "davies_bouldin": "Davies–Bouldin"}


def cell(found: list[Record], of: str, figure: str) -> str:
    values = [score[figure] for one in found for score in one["scores"] if (score["of"], score["by"]) == (of, "class")]
    return spread_cell(mean_spread(values)) if values else NOTHING
