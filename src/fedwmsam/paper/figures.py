"""The paper's figures; those of t-SNE are pictures beside each other, and what they show as numbers, over the seeds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fedwmsam.analysis.embedding import EmbeddingConfig, grid_of_embeddings, run_embedding
from fedwmsam.analysis.saved_run import SavedRun
from fedwmsam.engine.records import Record
from fedwmsam.paper.numbers import PAPER_NUMBERS
from fedwmsam.paper.recipe import (
    ALL_METHODS,
    CIFAR10,
    CIFAR100,
    FASHION,
    LAMBDAS,
    SENSITIVITY_METHODS,
    SMALL,
    SMALLER,
    UNSTATED_PARTITION,
    Column,
    Contender,
    Recipe,
    ScaleConfig,
    columns_by_partition,
    methods,
    scales,
    sweep_columns,
)
from fedwmsam.paper.results import Curves, Lines, Results
from fedwmsam.report.plots import PlotSpec, slug
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell
from fedwmsam.statistics import mean_spread

UNSEEN = EmbeddingConfig(data="test")
"""Of test samples: how a model clusters what it was trained on says nothing about generalisation."""


def embed_last_model(run: LoadedRun) -> Record:
    """Of the run's last model; kept in its folder."""
    saved = SavedRun(run.path)
    return run_embedding(saved, saved.rounds("last"), UNSEEN, run.path / "analysis")[0]


def first_seed_runs(results: Results, column: Column) -> list[tuple[str, LoadedRun]]:
    """Each contender's run of the lowest seed."""
    rows = [
        (contender.name, results.row(contender, column).scores)
        for contender in results.recipe.contenders
    ]
    return [(name, scores[0].run) for name, scores in rows if scores]


@dataclass(frozen=True)
class Embeddings:
    """A panel for each contender, of its first seed."""

    name: str = "embeddings"

    def pictures(self, results: Results) -> Iterator[PlotSpec]:
        for column in results.plan.columns:
            runs = first_seed_runs(results, column)
            if runs:
                names = runs[0][1].data.get("class_names", ())
                place = f"-{slug(column.name)}" if len(results.plan.columns) > 1 else ""
                yield grid_of_embeddings(
                    [(name, embed_last_model(run)) for name, run in runs], names, self.name + place
                )


def clusters(results: Results) -> TextTable:
    """How tight and far apart the classes are, in the features and in the picture."""
    rows = []
    for column in results.plan.columns:
        for contender in results.recipe.contenders:
            found = [embed_last_model(score.run) for score in results.row(contender, column).scores]
            cells = [
                cell(found, of, figure)
                for of in ("features", "picture")
                for figure in CLUSTER_FIGURES
            ]
            rows.append((contender.name, column.name, str(len(found)), *cells))
    header = ["row", "column", "seeds"]
    for of in ("features", "picture"):
        header += [f"{of}: {title}" for title in CLUSTER_FIGURES.values()]
    notes = (
        f"Of {UNSEEN.samples:,} test samples before the last layer. Silhouette: −1 to 1, more is better; "
        "Davies–Bouldin: from 0, less is better. The claim of more compact clusters is about the features.",
    )
    return TextTable("Clusters by class before the last layer", tuple(header), tuple(rows), notes)


CLUSTER_FIGURES = {"silhouette": "silhouette", "davies_bouldin": "Davies–Bouldin"}


def cell(found: list[Record], of: str, figure: str) -> str:
    values = [
        score[figure]
        for one in found
        for score in one["scores"]
        if (score["of"], score["by"]) == (of, "class")
    ]
    return spread_cell(mean_spread(values)) if values else MISSING


DRAWING = "a drawing, nothing is measured"
TEN = tuple(contender for contender in ALL_METHODS if contender.name != "FedLESAM-D")
UNSTATED_SAMPLES = "Which samples the paper embeds it does not say; here they are test samples."
TABLE_1 = PAPER_NUMBERS["tab:performance_comparison"]
SIMILARITIES = (
    Contender("Eq. 3", {"method": "fedwmsam"}),
    Contender("update", {"method": "fedwmsam", "similarity": "update"}),
)
TWO_SIMILARITIES = (
    "Eq. 3 records cos(Δ, personalized momentum), what the paper's equation says; “update” records cos(Δ, mean step of "
    "the client), what its captions say. Each drives α in its own run."
)


def scales_with_own_data(small: list[Column], paper: list[Column]) -> Mapping[str, ScaleConfig]:
    """Columns that bring their own data."""
    return {
        "small": ScaleConfig({"rounds": 100}, tuple(small)),
        "paper": ScaleConfig({}, tuple(paper)),
    }


FASHION_SKEWED = columns_by_partition("Fashion-MNIST", FASHION, ["dirichlet:0.1"])
CIFAR10_SKEWED = columns_by_partition("CIFAR-10", CIFAR10, ["dirichlet:0.1"])
CIFAR100_SKEWED = columns_by_partition("CIFAR-100", CIFAR100, ["dirichlet:0.1"])
SMALL_HUNDRED = "The stand-in for CIFAR-100 at scale small is Fashion-MNIST, with a tenth of the classes: γ = 1 for 10."

FIGURES = (
    Recipe("figure-1", ("fig:core",), "the idea of SAM", obstacle=DRAWING),
    Recipe("figure-2", ("fig:macro_method",), "the idea of FedWMSAM", obstacle=DRAWING),
    Recipe(
        "figure-3",
        ("fig:compare",),
        "momentum against SAM",
        methods("fedavg", "fedcm", "fedsam"),
        scales_with_own_data(FASHION_SKEWED, CIFAR10_SKEWED),
        TABLE_1,
        pictures=(Curves(),),
        remarks=(
            "The paper names neither methods nor data; FedCM is momentum alone and FedSAM is SAM alone.",
        ),
    ),
    Recipe(
        "figure-4",
        ("fig:cifar_combo",),
        "accuracy over rounds on CIFAR-10 and CIFAR-100",
        ALL_METHODS,
        scales_with_own_data(FASHION_SKEWED, CIFAR10_SKEWED + CIFAR100_SKEWED),
        TABLE_1,
        pictures=(Curves(),),
        remarks=(UNSTATED_PARTITION,),
    ),
    Recipe(
        "figure-5",
        ("fig:tsne_grid_select",),
        "t-SNE of four methods",
        methods("fedavg", "fedsam", "mofedsam", "fedwmsam"),
        scales_with_own_data(FASHION_SKEWED, CIFAR10_SKEWED),
        TABLE_1,
        analyses=(clusters,),
        pictures=(Embeddings(),),
        remarks=(
            "After how many rounds the paper does not say; here it is those of Table 1.",
            UNSTATED_SAMPLES,
        ),
    ),
    Recipe(
        "figure-6-clients",
        ("fig:sensitivity", "fig:client_num"),
        "accuracy by number of clients",
        SENSITIVITY_METHODS,
        scales(
            sweep_columns(
                "clients", {f"{count} clients": count for count in (20, 50, 75, 100, 150, 200)}
            )
        ),
        PAPER_NUMBERS["fig:client_num"],
        pictures=(Lines("clients", "accuracy-over-clients"),),
        remarks=(
            "The paper's numbers are the labels on its authors' poster; that of FedSAM at 75 clients contradicts its "
            "bar (.61). Participation stays 10 %, which the paper does not say.",
        ),
    ),
    Recipe(
        "figure-6-sampling",
        ("fig:sensitivity", "fig:sample"),
        "accuracy by share of clients a round",
        SENSITIVITY_METHODS,
        scales(
            sweep_columns(
                "participation", {f"{share} %": share / 100 for share in (5, 10, 20, 40, 80, 100)}
            ),
            small=SMALLER,
        ),
        PAPER_NUMBERS["fig:sample"],
        pictures=(Lines("participation", "accuracy-over-participation"),),
        remarks=("The paper's numbers were read off its plot (± 0.003).",),
    ),
    *(
        Recipe(
            f"figure-{number}",
            (label,),
            title,
            SIMILARITIES,
            scales([Column("β = 0.1")]),
            reference="Eq. 3",
            pictures=(Curves(column),),
            remarks=(TWO_SIMILARITIES,),
        )
        for number, label, title, column in (
            (7, "fig:coisin", "similarity of gradient and momentum over rounds", "similarity"),
            (8, "fig:coisin-test", "accuracy of the same runs", "accuracy"),
            (9, "fig:1-cosin", "one minus that similarity", "one_minus_similarity"),
        )
    ),
    *(
        Recipe(
            f"figure-{number}",
            (label,),
            title,
            LAMBDAS,
            scales([Column("β = 0.1")], small=SMALL),
            reference="λ=0.01",
            pictures=(Curves(column),),
        )
        for number, label, title, column in (
            (10, "fig:lambda-acc", "accuracy over rounds, by λ", "accuracy"),
            (11, "fig:lambda-alpha", "α over rounds, by λ", "alpha"),
        )
    ),
    *(
        Recipe(
            f"figure-{number}",
            (label,),
            f"t-SNE of ten methods, {rounds} rounds",
            TEN,
            scales(
                [Column("β = 0.1")],
                small=FASHION | {"rounds": rounds // 10},
                paper=CIFAR10 | {"rounds": rounds},
            ),
            analyses=(clusters,),
            pictures=(Embeddings(),),
            remarks=(UNSTATED_PARTITION, UNSTATED_SAMPLES),
        )
        for number, label, rounds in ((12, "fig:tsne_grid_200", 200), (13, "fig:tsne_grid", 1000))
    ),
    Recipe(
        "figure-14",
        ("fig:cifar10-0.1",),
        "accuracy over rounds, CIFAR-10, β = 0.1",
        ALL_METHODS,
        scales_with_own_data(FASHION_SKEWED, CIFAR10_SKEWED),
        TABLE_1,
        pictures=(Curves(),),
    ),
    Recipe(
        "figure-15",
        ("fig:cifar10-5",),
        "accuracy over rounds, CIFAR-10, γ = 3",
        ALL_METHODS,
        scales_with_own_data(
            columns_by_partition("Fashion-MNIST", FASHION, ["pathological:3"]),
            columns_by_partition("CIFAR-10", CIFAR10, ["pathological:3"]),
        ),
        TABLE_1,
        pictures=(Curves(),),
    ),
    Recipe(
        "figure-16",
        ("fig:cifar100-0.1",),
        "accuracy over rounds, CIFAR-100, β = 0.1",
        ALL_METHODS,
        scales_with_own_data(FASHION_SKEWED, CIFAR100_SKEWED),
        TABLE_1,
        pictures=(Curves(),),
        remarks=(SMALL_HUNDRED,),
    ),
    Recipe(
        "figure-17",
        ("fig:cifar100-10",),
        "accuracy over rounds, CIFAR-100, γ = 10",
        ALL_METHODS,
        scales_with_own_data(
            columns_by_partition("Fashion-MNIST", FASHION, ["pathological:1"]),
            columns_by_partition("CIFAR-100", CIFAR100, ["pathological:10"]),
        ),
        TABLE_1,
        pictures=(Curves(),),
        remarks=(SMALL_HUNDRED,),
    ),
)
