"""FedWMSAM's perturbations, and other methods, on another kind of problem: regression, clients whose data are alike.

    python results/elsewhere.py      # 80 short trainings, two or three minutes; writes results/elsewhere.csv

Patients: scikit-learn's diabetes data, ten measurements of 442 patients and how far the disease went on in a year; 30
for each of twelve clients, drawn at random, 82 for the test. Hums: made data, as in notebooks/own_model_and_data.ipynb,
the pitch of a hum from 40 samples of it; there is little noise, so that how well a method settles can be seen. The
error is the mean absolute one over the last ten of 40 rounds.
"""

import csv
from pathlib import Path
from statistics import mean

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from fedwmsam import SCAFFOLD, FedAvg, FedWMSAM, FedWMSAMPlus, Method, fit

Samples = tuple[Tensor, Tensor]
TRIED: dict[str, Method] = {
    "FedWMSAM": FedWMSAM(),
    "FedWMSAM, ρ = 0.05": FedWMSAM(rho=0.05),
    "FedWMSAM, as printed": FedWMSAM(perturbation="literal"),
    "FedWMSAM, as printed, ρ = 0.05": FedWMSAM(perturbation="literal", rho=0.05),
    "FedWMSAM without ε": FedWMSAM(perturbation="none"),
    "FedWMSAM-plus": FedWMSAMPlus(),
    "SCAFFOLD": SCAFFOLD(),
    "FedAvg": FedAvg(),
}


def patients(seed: int) -> tuple[list[Samples], Samples]:
    """The clients' data and the test data; the answer is in units of its deviation."""
    measured, answers = (
        torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True)
    )
    order = torch.randperm(len(answers), generator=torch.Generator().manual_seed(seed))
    x = (measured / measured.std(dim=0))[order]
    y = ((answers - answers.mean()) / answers.std())[order, None]
    return [(x[k : k + 30], y[k : k + 30]) for k in range(0, 360, 30)], (x[360:], y[360:])


def hums(seed: int) -> tuple[list[Samples], Samples]:
    source, time = torch.Generator().manual_seed(seed), torch.linspace(0, 1, 40)

    def samples() -> Samples:
        pitch = 2 + 1.5 * torch.rand(80, 1, generator=source)
        return torch.sin(2 * torch.pi * pitch * time) + 0.1 * torch.randn(
            80, 40, generator=source
        ), pitch

    return [samples() for _ in range(12)], samples()


def error(clients: list[Samples], test: Samples, method: Method, seed: int) -> float:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(test[0].shape[1], 32), nn.ReLU(), nn.Linear(32, 1))
    found = fit(
        network,
        clients,
        method,
        test=test,
        loss="regression",
        rounds=40,
        lr=0.02,
        seed=seed,
        metrics={"error": lambda outputs, targets: (outputs - targets).abs().mean()},
    )
    return mean(found.columns["error"][-10:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = [["data", "method", *map(str, range(5))]]
    for problem in (patients, hums):
        for name, method in TRIED.items():
            rows.append(
                [
                    problem.__name__,
                    name,
                    *(f"{error(*problem(s), method, s):.4f}" for s in range(5)),
                ]
            )
            print(*rows[-1], flush=True)
    with (Path(__file__).parent / "elsewhere.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
