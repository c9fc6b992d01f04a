"""The recipes of claims of the paper's text that none of its tables shows.

A new claim is another `Recipe` in `CLAIMS`, without labels.
"""

import math

import numpy as np

from fedwmsam.paper.numbers import PAPER_NUMBERS
from fedwmsam.paper.recipe import (
    CIFAR10,
    CIFAR100,
    FASHION,
    LAMBDAS,
    SIMILARITY,
    Column,
    Contender,
    Recipe,
    ScaleConfig,
    columns_by_partition,
    make_scales,
    method_contenders,
)
from fedwmsam.paper.results import Curves, Lines, Results
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell
from fedwmsam.statistics import FloatArray, mean_spread

FOUR_METHODS = method_contenders("fedavg", "scaffold", "mofedsam", "fedwmsam")
SKEWS = [f"dirichlet:{beta}" for beta in (0.05, 0.1, 0.3, 0.6, 1.0)]
DIGITS = {"dataset": "digits", "model": "mlp", "clients": 20, "participation": 0.25, "rounds": 100}


def correlations(results: Results) -> TextTable:
    """Return a table of the correlation, over the rounds, of Eq. 3 with what it stands for.

    Both are recorded in runs with the same trajectory: the first column's runs record Eq. 3, the
    second column's the similarity of update and momentum.
    """
    rows = []
    for contender in results.recipe.contenders:
        pairs = paired_runs(results, contender)
        cells = [MISSING] * 3
        if pairs:
            values = [similarity_correlations(first, second) for first, second in pairs]
            spreads = [mean_spread(seeds) for seeds in zip(*values, strict=True)]
            is_same = all(have_same_accuracy(first, second) for first, second in pairs)
            cells = [*map(spread_cell, spreads), "yes" if is_same else "no: not comparable"]
        rows.append((contender.name, str(len(pairs)), *cells))
    return TextTable(
        "Correlation over rounds of Eq. 3 with the similarity of update and momentum",
        ("α", "pairs of runs", "Pearson", "rank (Spearman)", "same models in every round"),
        tuple(rows),
        (
            "From the second round on: in the first there is no momentum.",
            "The update is the client's mean step, α (gradient + c − c_k) + (1 − α) Δ, so a part "
            "of its similarity to Δ is built in, and less of it the larger α is. That of the "
            "gradient alone is not recorded.",
        ),
    )


def paired_runs(results: Results, contender: Contender) -> list[tuple[LoadedRun, LoadedRun]]:
    """Return the contender's runs in the two columns, paired by seed and partition.

    There are no pairs if only one of the columns was asked for.
    """
    scores = [results.row(contender, column).scores for column in results.plan.columns]
    if len(scores) < 2:
        return []
    pairs = []
    for score in scores[0]:
        for other in scores[1]:
            if score.run.pairing_key == other.run.pairing_key:
                pairs.append((score.run, other.run))
    return pairs


def have_same_accuracy(run: LoadedRun, other: LoadedRun) -> bool:
    """Return whether two runs have the same accuracy in every round."""
    return run.values_by_round("accuracy") == other.values_by_round("accuracy")


def similarity_correlations(run: LoadedRun, other: LoadedRun) -> tuple[float, float]:
    """Return Pearson's and Spearman's correlation of two runs' similarities over the rounds."""
    ours = similarity_by_round(run)
    theirs = similarity_by_round(other)
    common = [round for round in ours if round in theirs]
    series = np.array([[ours[round] for round in common], [theirs[round] for round in common]])
    return pearson(series), pearson(series.argsort(axis=1).argsort(axis=1).astype(float))


def similarity_by_round(run: LoadedRun) -> dict[int, float]:
    """Return the recorded similarity from the second round on; the first has no momentum."""
    values = run.values_by_round("similarity")
    return {round: value for round, value in values.items() if round > 1}


def pearson(series: FloatArray) -> float:
    """Return the correlation of two series, NaN if one is too short or constant."""
    if series.shape[1] < 3 or not (np.ptp(series, axis=1) > 0).all():
        return math.nan
    return float(np.asarray(np.corrcoef(series))[0, 1])


CLAIMS = (
    Recipe(
        "claim-heterogeneity",
        (),
        "the more the clients differ, the more is gained (section 5.2)",
        FOUR_METHODS,
        {
            "small": ScaleConfig(
                {"rounds": 100}, tuple(columns_by_partition("Fashion-MNIST", FASHION, SKEWS))
            ),
            "paper": ScaleConfig({}, tuple(columns_by_partition("CIFAR-10", CIFAR10, SKEWS))),
        },
        PAPER_NUMBERS["tab:performance_comparison"],
        plots=(Lines("β", "accuracy-over-beta"),),
        remarks=("The claim holds if what FedWMSAM gains on FedAvg falls as β grows.",),
    ),
    Recipe(
        "claim-lambda",
        (),
        "which λ is best depends on the data (appendix B)",
        LAMBDAS,
        make_scales([Column("β = 0.1")], small=DIGITS, paper=CIFAR100),
        reference="λ=0.01",
        plots=(Curves(), Curves("alpha")),
        remarks=(
            "The second data set; the first is that of table-9. "
            "The claim holds if another λ is best.",
        ),
    ),
    Recipe(
        "claim-longtail",
        (),
        "stable on long-tailed clients (appendix A)",
        FOUR_METHODS,
        make_scales(
            [
                Column(f"{factor} : 1", {"partition": f"longtail:{factor}"}, x=float(factor))
                for factor in (1, 10, 50, 100)
            ]
        ),
        plots=(Lines("imbalance", "accuracy-over-imbalance"),),
        remarks=(
            "The rarest class has one sample for so many of the most frequent one; priors are "
            "Dirichlet 0.1. The test data stay balanced.",
        ),
    ),
    Recipe(
        "claim-similarity",
        (),
        "Eq. 3 is a proxy for the similarity of gradient and momentum (section 4.2)",
        # With adapt_rate 0 α stays the same whatever is recorded, so that both runs of a pair train
        # the same models.
        tuple(
            Contender(f"α={alpha:g}", {"method": "fedwmsam", "alpha": alpha, "adapt_rate": 0.0})
            for alpha in (0.1, 0.5, 0.9)
        ),
        make_scales(
            [
                Column("Eq. 3", {"similarity": "personalized"}, SIMILARITY),
                Column("update", {"similarity": "update"}, SIMILARITY),
            ]
        ),
        reference="α=0.1",
        analyses=(correlations,),
        plots=(Curves("similarity"),),
    ),
)
