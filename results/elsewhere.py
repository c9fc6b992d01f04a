"""FedWMSAM's perturbations, and other methods, on regression with clients whose data are alike.

    python results/elsewhere.py

trains 80 times, which takes two or three minutes, and writes results/elsewhere.csv.

Patients: scikit-learn's diabetes data, ten measurements of 442 patients and the progress of their
disease after a year. Each of twelve clients has 30 random patients, the test data are the other 82.
Hums: generated data, as in notebooks/own_model_and_data.ipynb: the pitch of a hum is predicted from
40 samples of it. There is little noise, so that the data show how well a method converges. The
error is the mean absolute error over the last ten of 40 rounds.
"""

import csv
from pathlib import Path
from statistics import mean

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from fedwmsam import SCAFFOLD, FedAvg, FedWMSAM, FedWMSAMPlus, Method, fit

Samples = tuple[Tensor, Tensor]
METHODS: dict[str, Method] = {
    "FedWMSAM": FedWMSAM(),
    "FedWMSAM, ρ = 0.05": FedWMSAM(rho=0.05),
    "FedWMSAM, as printed": FedWMSAM(perturbation="literal"),
    "FedWMSAM, as printed, ρ = 0.05": FedWMSAM(perturbation="literal", rho=0.05),
    "FedWMSAM without ε": FedWMSAM(perturbation="none"),
    "FedWMSAM-plus": FedWMSAMPlus(),
    "SCAFFOLD": SCAFFOLD(),
    "FedAvg": FedAvg(),
}


def load_patients(seed: int) -> tuple[list[Samples], Samples]:
    """Return the clients' data and the test data; the targets are standardized."""
    inputs, targets = (
        torch.tensor(array, dtype=torch.float32) for array in load_diabetes(return_X_y=True)
    )
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    x = (inputs / inputs.std(dim=0))[order]
    y = ((targets - targets.mean()) / targets.std())[order, None]
    return [(x[k : k + 30], y[k : k + 30]) for k in range(0, 360, 30)], (x[360:], y[360:])


def make_hums(seed: int) -> tuple[list[Samples], Samples]:
    """Return the clients' data and the test data."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.linspace(0, 1, 40)

    def make_samples() -> Samples:
        pitch = 2 + 1.5 * torch.rand(80, 1, generator=generator)
        noise = 0.1 * torch.randn(80, 40, generator=generator)
        return torch.sin(2 * torch.pi * pitch * time) + noise, pitch

    return [make_samples() for _ in range(12)], make_samples()


PROBLEMS = {"patients": load_patients, "hums": make_hums}


def train_and_test(clients: list[Samples], test: Samples, method: Method, seed: int) -> float:
    """Train a small network and return its mean absolute error over the last ten rounds."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(test[0].shape[1], 32), nn.ReLU(), nn.Linear(32, 1))
    result = fit(
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
    return mean(result.columns["error"][-10:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = [["data", "method", *map(str, range(5))]]
    for problem, make_data in PROBLEMS.items():
        for name, method in METHODS.items():
            errors = [train_and_test(*make_data(seed), method, seed) for seed in range(5)]
            rows.append([problem, name, *(f"{error:.4f}" for error in errors)])
            print(*rows[-1], flush=True)
    with (Path(__file__).parent / "elsewhere.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
