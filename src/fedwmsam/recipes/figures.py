"""The paper's figures."""

from collections.abc import Mapping

from fedwmsam.recipes.common import (
    CIFAR10,
    CIFAR100,
    ELEVEN,
    FASHION,
    FIVE,
    LAMBDAS,
    SMALL,
    SMALLER,
    UNSTATED_PARTITION,
    methods,
    over,
    scales,
    splits,
)
from fedwmsam.recipes.drawing import Curves, Lines
from fedwmsam.recipes.embeddings import Embeddings, clusters
from fedwmsam.recipes.paper import NUMBERS
from fedwmsam.recipes.recipe import Column, Contender, Recipe, Setting

DRAWING = "a drawing, nothing is measured"
TEN = tuple(contender for contender in ELEVEN if contender.name != "FedLESAM-D")
UNSTATED_SAMPLES = "Which samples the paper embeds it does not say; here they are test samples."
TABLE_1 = NUMBERS["tab:performance_comparison"]
SIMILARITIES = (
    Contender("Eq. 3", {"method": "fedwmsam"}),
    Contender("update", {"method": "fedwmsam", "similarity": "update"}),
)
TWO_SIMILARITIES = (
    "Eq. 3 records cos(Δ, personalized momentum), what the paper's equation says; “update” records cos(Δ, mean step of "
    "the client), what its captions say. Each drives α in its own run."
)


def data(small: list[Column], paper: list[Column]) -> Mapping[str, Setting]:
    """Columns that bring their own data."""
    return {"small": Setting({"rounds": 100}, tuple(small)), "paper": Setting({}, tuple(paper))}


FASHION_SKEWED = splits("Fashion-MNIST", FASHION, ["dirichlet:0.1"])
CIFAR10_SKEWED = splits("CIFAR-10", CIFAR10, ["dirichlet:0.1"])
CIFAR100_SKEWED = splits("CIFAR-100", CIFAR100, ["dirichlet:0.1"])
SMALL_HUNDRED = "The stand-in for CIFAR-100 at scale small is Fashion-MNIST, with a tenth of the classes: γ = 1 for 10."

FIGURES = (
    Recipe("figure-1", ("fig:core",), "the idea of SAM", obstacle=DRAWING),
    Recipe("figure-2", ("fig:macro_method",), "the idea of FedWMSAM", obstacle=DRAWING),
    Recipe(
        "figure-3", ("fig:compare",), "momentum against SAM",
        methods("fedavg", "fedcm", "fedsam"), data(FASHION_SKEWED, CIFAR10_SKEWED), TABLE_1, pictures=(Curves(),),
        remarks=("The paper names neither methods nor data; FedCM is momentum alone and FedSAM is SAM alone.",),
    ),
    Recipe(
        "figure-4", ("fig:cifar_combo",), "accuracy over rounds on CIFAR-10 and CIFAR-100",
        ELEVEN, data(FASHION_SKEWED, CIFAR10_SKEWED + CIFAR100_SKEWED), TABLE_1, pictures=(Curves(),),
        remarks=(UNSTATED_PARTITION,),
    ),
    Recipe(
        "figure-5", ("fig:tsne_grid_select",), "t-SNE of four methods",
        methods("fedavg", "fedsam", "mofedsam", "fedwmsam"), data(FASHION_SKEWED, CIFAR10_SKEWED), TABLE_1,
        analyses=(clusters,), pictures=(Embeddings(),),
        remarks=("After how many rounds the paper does not say; here it is those of Table 1.", UNSTATED_SAMPLES),
    ),
    Recipe(
        "figure-6-clients", ("fig:sensitivity", "fig:client_num"), "accuracy by number of clients", FIVE,
        scales(over("clients", {f"{count} clients": count for count in (20, 50, 75, 100, 150, 200)})),
        NUMBERS["fig:client_num"], pictures=(Lines("clients", "accuracy-over-clients"),),
        remarks=(
            "The paper's numbers are the labels on its authors' poster; that of FedSAM at 75 clients contradicts its "
            "bar (.61). Participation stays 10 %, which the paper does not say.",
        ),
    ),
    Recipe(
        "figure-6-sampling", ("fig:sensitivity", "fig:sample"), "accuracy by share of clients a round", FIVE,
        scales(
            over("participation", {f"{share} %": share / 100 for share in (5, 10, 20, 40, 80, 100)}), small=SMALLER
        ),
        NUMBERS["fig:sample"], pictures=(Lines("participation", "accuracy-over-participation"),),
        remarks=("The paper's numbers were read off its plot (± 0.003).",),
    ),
    *(
        Recipe(
            f"figure-{number}", (label,), title, SIMILARITIES, scales([Column("β = 0.1")]), reference="Eq. 3",
            pictures=(Curves(column),), remarks=(TWO_SIMILARITIES,),
        )
        for number, label, title, column in (
            (7, "fig:coisin", "similarity of gradient and momentum over rounds", "similarity"),
            (8, "fig:coisin-test", "accuracy of the same runs", "accuracy"),
            (9, "fig:1-cosin", "one minus that similarity", "one_minus_similarity"),
        )
    ),
    *(
        Recipe(
            f"figure-{number}", (label,), title, LAMBDAS, scales([Column("β = 0.1")], small=SMALL), reference="λ=0.01",
            pictures=(Curves(column),),
        )
        for number, label, title, column in (
            (10, "fig:lambda-acc", "accuracy over rounds, by λ", "accuracy"),
            (11, "fig:lambda-alpha", "α over rounds, by λ", "alpha"),
        )
    ),
    *(
        Recipe(
            f"figure-{number}", (label,), f"t-SNE of ten methods, {rounds} rounds", TEN,
            scales([Column("β = 0.1")], small=FASHION | {"rounds": rounds // 10}, paper=CIFAR10 | {"rounds": rounds}),
            analyses=(clusters,), pictures=(Embeddings(),), remarks=(UNSTATED_PARTITION, UNSTATED_SAMPLES),
        )
        for number, label, rounds in ((12, "fig:tsne_grid_200", 200), (13, "fig:tsne_grid", 1000))
    ),
    Recipe(
        "figure-14", ("fig:cifar10-0.1",), "accuracy over rounds, CIFAR-10, β = 0.1",
        ELEVEN, data(FASHION_SKEWED, CIFAR10_SKEWED), TABLE_1, pictures=(Curves(),),
    ),
    Recipe(
        "figure-15", ("fig:cifar10-5",), "accuracy over rounds, CIFAR-10, γ = 3", ELEVEN,
        data(splits("Fashion-MNIST", FASHION, ["pathological:3"]), splits("CIFAR-10", CIFAR10, ["pathological:3"])),
        TABLE_1, pictures=(Curves(),),
    ),
    Recipe(
        "figure-16", ("fig:cifar100-0.1",), "accuracy over rounds, CIFAR-100, β = 0.1",
        ELEVEN, data(FASHION_SKEWED, CIFAR100_SKEWED), TABLE_1, pictures=(Curves(),), remarks=(SMALL_HUNDRED,),
    ),
    Recipe(
        "figure-17", ("fig:cifar100-10",), "accuracy over rounds, CIFAR-100, γ = 10", ELEVEN,
        data(splits("Fashion-MNIST", FASHION, ["pathological:1"]), splits("CIFAR-100", CIFAR100, ["pathological:10"])),
        TABLE_1, pictures=(Curves(),), remarks=(SMALL_HUNDRED,),
    ),
)  # fmt: skip
