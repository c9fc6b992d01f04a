"""The recipes of the paper's figures, and plots of embeddings (t-SNE).

A new figure is another `Recipe` in `FIGURES`. Figures of t-SNE also have a table of how well the
classes cluster, over the seeds.
"""

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
    make_scales,
    method_contenders,
    sweep_columns,
)
from fedwmsam.paper.results import Curves, Lines, Results
from fedwmsam.report.plots import PlotSpec, slug
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell
from fedwmsam.statistics import mean_spread

TEST_SAMPLES = EmbeddingConfig(data="test")
"""The embeddings are of test samples, because how a model clusters its training samples says
nothing about generalisation."""
CLUSTER_MEASURES = {"silhouette": "silhouette", "davies_bouldin": "Davies–Bouldin"}
"""Scores of clusters, with their names in a table."""


def embed_last_model(run: LoadedRun) -> Record:
    """Return the embedding of the run's last model; it is kept in the run's folder."""
    saved = SavedRun(run.path)
    rounds = saved.select_rounds("last")
    return run_embedding(saved, rounds, TEST_SAMPLES, run.path / "analysis")[0]


def first_seed_runs(results: Results, column: Column) -> list[tuple[str, LoadedRun]]:
    """Return each contender's name and its run of the lowest seed, of those that have runs."""
    runs = []
    for contender in results.recipe.contenders:
        scores = results.row(contender, column).scores
        if scores:
            runs.append((contender.name, scores[0].run))
    return runs


@dataclass(frozen=True)
class Embeddings:
    """Plots with a panel for each contender: the embedding of its first seed's last model."""

    name: str = "embeddings"

    def plots(self, results: Results) -> Iterator[PlotSpec]:
        """Yield a plot for each column that has runs."""
        columns = results.plan.columns
        for column in columns:
            runs = first_seed_runs(results, column)
            if runs:
                class_names = runs[0][1].data.get("class_names", ())
                suffix = f"-{slug(column.name)}" if len(columns) > 1 else ""
                embeddings = [(name, embed_last_model(run)) for name, run in runs]
                yield grid_of_embeddings(embeddings, class_names, self.name + suffix)


def cluster_table(results: Results) -> TextTable:
    """Return a table of how well the classes cluster, in the features and in the t-SNE plot."""
    rows = []
    for column in results.plan.columns:
        for contender in results.recipe.contenders:
            scores = results.row(contender, column).scores
            embeddings = [embed_last_model(score.run) for score in scores]
            cells = []
            for of in ("features", "picture"):
                cells += [cluster_cell(embeddings, of, measure) for measure in CLUSTER_MEASURES]
            rows.append((contender.name, column.name, str(len(embeddings)), *cells))
    header = ["row", "column", "seeds"]
    for of in ("features", "picture"):
        header += [f"{of}: {title}" for title in CLUSTER_MEASURES.values()]
    notes = (
        f"Of {TEST_SAMPLES.samples:,} test samples before the last layer. Silhouette: −1 to 1, "
        "more is better; Davies–Bouldin: from 0, less is better. The claim of more compact "
        "clusters is about the features.",
    )
    return TextTable("Clusters by class before the last layer", tuple(header), tuple(rows), notes)


def cluster_cell(embeddings: list[Record], of: str, measure: str) -> str:
    """Return mean and deviation over embeddings of a score by class, a dash without any."""
    values = []
    for embedding in embeddings:
        for score in embedding["scores"]:
            if (score["of"], score["by"]) == (of, "class"):
                values.append(score[measure])
    return spread_cell(mean_spread(values)) if values else MISSING


DRAWING = "a drawing, nothing is measured"
TEN_METHODS = tuple(contender for contender in ALL_METHODS if contender.name != "FedLESAM-D")
"""The methods of the paper's large t-SNE figures."""
UNSTATED_SAMPLES = "Which samples the paper embeds it does not say; here they are test samples."
TABLE_1 = PAPER_NUMBERS["tab:performance_comparison"]
SIMILARITIES = (
    Contender("Eq. 3", {"method": "fedwmsam"}),
    Contender("update", {"method": "fedwmsam", "similarity": "update"}),
)
TWO_SIMILARITIES = (
    "Eq. 3 records cos(Δ, personalized momentum), what the paper's equation says; “update” records "
    "cos(Δ, mean step of the client), what its captions say. Each drives α in its own run."
)


def scales_with_own_data(small: list[Column], paper: list[Column]) -> Mapping[str, ScaleConfig]:
    """Return both scales, with columns that have the data in their settings."""
    return {
        "small": ScaleConfig({"rounds": 100}, tuple(small)),
        "paper": ScaleConfig({}, tuple(paper)),
    }


FASHION_SKEWED = columns_by_partition("Fashion-MNIST", FASHION, ["dirichlet:0.1"])
CIFAR10_SKEWED = columns_by_partition("CIFAR-10", CIFAR10, ["dirichlet:0.1"])
CIFAR100_SKEWED = columns_by_partition("CIFAR-100", CIFAR100, ["dirichlet:0.1"])
SMALL_HUNDRED = (
    "The stand-in for CIFAR-100 at scale small is Fashion-MNIST, "
    "with a tenth of the classes: γ = 1 for 10."
)

FIGURES = (
    Recipe("figure-1", ("fig:core",), "the idea of SAM", not_runnable_because=DRAWING),
    Recipe("figure-2", ("fig:macro_method",), "the idea of FedWMSAM", not_runnable_because=DRAWING),
    Recipe(
        "figure-3",
        ("fig:compare",),
        "momentum against SAM",
        method_contenders("fedavg", "fedcm", "fedsam"),
        scales_with_own_data(FASHION_SKEWED, CIFAR10_SKEWED),
        TABLE_1,
        plots=(Curves(),),
        remarks=(
            "The paper names neither methods nor data; "
            "FedCM is momentum alone and FedSAM is SAM alone.",
        ),
    ),
    Recipe(
        "figure-4",
        ("fig:cifar_combo",),
        "accuracy over rounds on CIFAR-10 and CIFAR-100",
        ALL_METHODS,
        scales_with_own_data(FASHION_SKEWED, CIFAR10_SKEWED + CIFAR100_SKEWED),
        TABLE_1,
        plots=(Curves(),),
        remarks=(UNSTATED_PARTITION,),
    ),
    Recipe(
        "figure-5",
        ("fig:tsne_grid_select",),
        "t-SNE of four methods",
        method_contenders("fedavg", "fedsam", "mofedsam", "fedwmsam"),
        scales_with_own_data(FASHION_SKEWED, CIFAR10_SKEWED),
        TABLE_1,
        analyses=(cluster_table,),
        plots=(Embeddings(),),
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
        make_scales(
            sweep_columns(
                "clients", {f"{count} clients": count for count in (20, 50, 75, 100, 150, 200)}
            )
        ),
        PAPER_NUMBERS["fig:client_num"],
        plots=(Lines("clients", "accuracy-over-clients"),),
        remarks=(
            "The paper's numbers are the labels on its authors' poster; that of FedSAM at 75 "
            "clients contradicts its bar (.61). Participation stays 10 %, which the paper does not "
            "say.",
        ),
    ),
    Recipe(
        "figure-6-sampling",
        ("fig:sensitivity", "fig:sample"),
        "accuracy by share of clients a round",
        SENSITIVITY_METHODS,
        make_scales(
            sweep_columns(
                "participation", {f"{share} %": share / 100 for share in (5, 10, 20, 40, 80, 100)}
            ),
            small=SMALLER,
        ),
        PAPER_NUMBERS["fig:sample"],
        plots=(Lines("participation", "accuracy-over-participation"),),
        remarks=("The paper's numbers were read off its plot (± 0.003).",),
    ),
    *(
        Recipe(
            f"figure-{number}",
            (label,),
            title,
            SIMILARITIES,
            make_scales([Column("β = 0.1")]),
            reference="Eq. 3",
            plots=(Curves(column),),
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
            make_scales([Column("β = 0.1")], small=SMALL),
            reference="λ=0.01",
            plots=(Curves(column),),
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
            TEN_METHODS,
            make_scales(
                [Column("β = 0.1")],
                small=FASHION | {"rounds": rounds // 10},
                paper=CIFAR10 | {"rounds": rounds},
            ),
            analyses=(cluster_table,),
            plots=(Embeddings(),),
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
        plots=(Curves(),),
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
        plots=(Curves(),),
    ),
    Recipe(
        "figure-16",
        ("fig:cifar100-0.1",),
        "accuracy over rounds, CIFAR-100, β = 0.1",
        ALL_METHODS,
        scales_with_own_data(FASHION_SKEWED, CIFAR100_SKEWED),
        TABLE_1,
        plots=(Curves(),),
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
        plots=(Curves(),),
        remarks=(SMALL_HUNDRED,),
    ),
)
