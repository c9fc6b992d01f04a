"""Claims of the paper's text that none of its tables shows."""

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
    methods,
    scales,
)
from fedwmsam.paper.results import Curves, Lines, Results
from fedwmsam.report.runs import LoadedRun
from fedwmsam.report.text_tables import MISSING, TextTable, spread_cell
from fedwmsam.statistics import FloatArray, mean_spread

FOUR = methods("fedavg", "scaffold", "mofedsam", "fedwmsam")
SKEWS = [f"dirichlet:{beta}" for beta in (0.05, 0.1, 0.3, 0.6, 1.0)]
DIGITS = {"dataset": "digits", "model": "mlp", "clients": 20, "participation": 0.25, "rounds": 100}


def correlations(results: Results) -> TextTable:
    """Over the rounds of each run: Eq. 3 against what it stands for, recorded on the same trajectory."""
    rows = []
    for contender in results.recipe.contenders:
        of_both = [results.row(contender, column).scores for column in results.plan.columns]
        pairs = [(a.run, b.run) for a in of_both[0] for b in of_both[1] if a.run.pair == b.run.pair]
        same = all(a.values("accuracy") == b.values("accuracy") for a, b in pairs)
        found = [
            mean_spread(values)
            for values in zip(*(correlated(a, b) for a, b in pairs), strict=True)
        ]
        cells = (
            [*map(spread_cell, found), "yes" if same else "no: not comparable"]
            if pairs
            else [MISSING] * 3
        )
        rows.append((contender.name, str(len(pairs)), *cells))
    return TextTable(
        "Correlation over rounds of Eq. 3 with the similarity of update and momentum",
        ("α", "pairs of runs", "Pearson", "rank (Spearman)", "same models in every round"),
        tuple(rows),
        (
            "From the second round on: in the first there is no momentum.",
            "The update is the client's mean step, α (gradient + c − c_k) + (1 − α) Δ, so a part of its similarity to "
            "Δ is built in, and less of it the larger α is. That of the gradient alone is not recorded.",
        ),
    )


def correlated(run: LoadedRun, other: LoadedRun) -> tuple[float, float]:
    ours, theirs = (
        {round: value for round, value in of.values("similarity").items() if round > 1}
        for of in (run, other)
    )
    common = [round for round in ours if round in theirs]
    series = np.array([[of[round] for round in common] for of in (ours, theirs)])
    return pearson(series), pearson(series.argsort(axis=1).argsort(axis=1).astype(float))


def pearson(series: FloatArray) -> float:
    """NaN where a series is too short or does not move."""
    if series.shape[1] < 3 or not (np.ptp(series, axis=1) > 0).all():
        return math.nan
    return float(np.asarray(np.corrcoef(series))[0, 1])


CLAIMS = (
    Recipe(
        "claim-heterogeneity",
        (),
        "the more the clients differ, the more is gained (section 5.2)",
        FOUR,
        {
            "small": ScaleConfig(
                {"rounds": 100}, tuple(columns_by_partition("Fashion-MNIST", FASHION, SKEWS))
            ),
            "paper": ScaleConfig({}, tuple(columns_by_partition("CIFAR-10", CIFAR10, SKEWS))),
        },
        PAPER_NUMBERS["tab:performance_comparison"],
        pictures=(Lines("β", "accuracy-over-beta"),),
        remarks=("The claim holds if what FedWMSAM gains on FedAvg falls as β grows.",),
    ),
    Recipe(
        "claim-lambda",
        (),
        "which λ is best depends on the data (appendix B)",
        LAMBDAS,
        scales([Column("β = 0.1")], small=DIGITS, paper=CIFAR100),
        reference="λ=0.01",
        pictures=(Curves(), Curves("alpha")),
        remarks=(
            "The second data set; the first is that of table-9. The claim holds if another λ is best.",
        ),
    ),
    Recipe(
        "claim-longtail",
        (),
        "stable on long-tailed clients (appendix A)",
        FOUR,
        scales(
            [
                Column(f"{factor} : 1", {"partition": f"longtail:{factor}"}, x=float(factor))
                for factor in (1, 10, 50, 100)
            ]
        ),
        pictures=(Lines("imbalance", "accuracy-over-imbalance"),),
        remarks=(
            "The rarest class has one sample for so many of the most frequent one; priors are Dirichlet 0.1. The test "
            "data stay balanced.",
        ),
    ),
    Recipe(
        "claim-similarity",
        (),
        "Eq. 3 is a proxy for the similarity of gradient and momentum (section 4.2)",
        # With adapt_rate 0 α stays put whatever is recorded, so that both runs of a pair train the same models.
        tuple(
            Contender(f"α={alpha:g}", {"method": "fedwmsam", "alpha": alpha, "adapt_rate": 0.0})
            for alpha in (0.1, 0.5, 0.9)
        ),
        scales(
            [
                Column("Eq. 3", {"similarity": "personalized"}, SIMILARITY),
                Column("update", {"similarity": "update"}, SIMILARITY),
            ]
        ),
        reference="α=0.1",
        analyses=(correlations,),
        pictures=(Curves("similarity"),),
    ),
)
