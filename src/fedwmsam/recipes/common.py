"""What several recipes share: the methods under their names in the paper, data sets with their models, scales."""

from collections.abc import Iterable, Mapping, Sequence

from fedwmsam.comparison.grid import Values
from fedwmsam.recipes.recipe import Column, Contender, Setting

TITLES = {
    "fedavg": "FedAvg", "fedcm": "FedCM", "scaffold": "SCAFFOLD", "fedsam": "FedSAM", "mofedsam": "MoFedSAM",
    "fedgamma": "FedGAMMA", "fedsmoo": "FedSMOO", "fedlesam": "FedLESAM", "fedlesam-s": "FedLESAM-S",
    "fedlesam-d": "FedLESAM-D", "fedwmsam": "FedWMSAM",
}  # fmt: skip


def methods(*names: str) -> tuple[Contender, ...]:
    return tuple(Contender(TITLES[name], {"method": name}) for name in names)


ELEVEN = methods(*TITLES)
FIVE = methods("fedavg", "mofedsam", "fedsam", "fedsmoo", "fedwmsam")
"""Those of the paper's sensitivity studies."""
LAMBDAS = tuple(
    Contender(f"λ={rate:g}", {"method": "fedwmsam", "adapt_rate": rate}) for rate in (1.0, 0.5, 0.1, 0.05, 0.01, 0.005)
)

FASHION: Values = {"dataset": "fashion-mnist", "model": "mlp"}
CIFAR10: Values = {"dataset": "cifar-10", "model": "resnet18", "augmentation": "paper"}
CIFAR100: Values = {"dataset": "cifar-100", "model": "resnet34", "augmentation": "paper"}
SMALL: Values = FASHION | {"rounds": 100}
SMALLER: Values = FASHION | {"rounds": 50}
"""For recipes some of whose rounds are many times as long."""
UNSTATED_PARTITION = "The paper does not say which partition this is; Dirichlet 0.1, its default, fits the numbers."


def scales(columns: Iterable[Column], small: Values = SMALL, paper: Values = CIFAR10) -> Mapping[str, Setting]:
    """The same columns on other data."""
    same = tuple(columns)
    return {"small": Setting(small, same), "paper": Setting(paper, same)}


def over(option: str, names: Mapping[str, float]) -> list[Column]:
    """A column for each value of a setting or option."""
    return [Column(name, {option: value}, x=float(value)) for name, value in names.items()]


def splits(dataset: str, values: Values, partitions: Sequence[str]) -> list[Column]:
    """A column of Table 1 for each partition."""
    signs = {"dirichlet": "β", "pathological": "γ"}
    parts = [(partition, *partition.split(":")) for partition in partitions]
    return [
        Column(f"{dataset} {signs[rule]} = {value}", values | {"partition": partition}, x=float(value))
        for partition, rule, value in parts
    ]
