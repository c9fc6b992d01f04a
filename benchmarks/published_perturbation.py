"""The perturbation that the published code adds to the weights, and the vector it was meant to add.

    python benchmarks/published_perturbation.py [--rounds 20] [--seed 0]

Trains FedWMSAM on the digits with this library, then records every local step of the next round. At
each step, the same weights w_b and the same difference D = t_b − w_b give two perturbations:

    vector       ε = ± ρ D/‖D‖            every coordinate its own value, length ρ
    flat index   s_j = ± ρ D[j]/Σ|D[i]|   one number for all of tensor j, from coordinate j of D

D comes in two forms: this library's (t_b = w_0 − η b m_k, sign +) and the released code's
(t_b = w_0 + b m_k, sign −). The flat index is written from its description in
docs/paper-and-code.md; it is not an option of any method.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedwmsam.engine.rounds import Federation, first_state, run_round
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.experiment.experiment import prepare
from fedwmsam.methods import FedWMSAM
from fedwmsam.methods.base import Gradient, Info, ParameterSlice
from fedwmsam.methods.vectors import Vectors, cosine, unit
from fedwmsam.settings.config import resolve_config

Layout = tuple[ParameterSlice, ...]
"""The slices of the parameters in the flat vector."""


class RecordedStep(NamedTuple):
    """A local step: the weights w_b, both forms of D, and the gradient of the batch at w_b."""

    w: Tensor
    library_difference: Tensor
    released_difference: Tensor
    gradient: Tensor


STEPS: list[RecordedStep] = []
"""The local steps of the recorded round."""


@dataclass(frozen=True)
class RecordingFedWMSAM(FedWMSAM):
    """FedWMSAM that records each step; it trains exactly as FedWMSAM does."""

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return super().begin(down, full_gradient, info) | {"released": down["w"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        if not torch.equal(w, down["w"]):  # at the first step D is zero in both forms
            library_difference = self.target_offset(w, down, scratch)
            released_difference = scratch["released"] - w
            STEPS.append(RecordedStep(w, library_difference, released_difference, grad(w)))
        v, scratch_after = super().direction(w, grad, down, scratch)
        return v, scratch_after | {"released": scratch["released"] + down["m"]}


def vector(difference: Tensor, sign: int, rho: float, layout: Layout) -> Tensor:
    """Return the perturbation as it was meant: a vector of length ρ along D."""
    return sign * rho * unit(difference, tau=1e-12)


def flat_index(difference: Tensor, sign: int, rho: float, layout: Layout) -> Tensor:
    """Return the perturbation of the published code.

    It shifts all of tensor number j by a multiple of coordinate number j of D.
    """
    coordinates = difference[: len(layout)]
    shifts = sign * rho * coordinates / (coordinates.abs().sum() + 1e-7)
    perturbation = torch.empty_like(difference)
    for parameter, shift in zip(layout, shifts, strict=True):
        perturbation[parameter.slice] = shift
    return perturbation


def local_gradients(federation: Federation, round: int) -> list[Tensor]:
    """Return for each recorded step the gradient over all data of its client, at its weights."""
    steps = iter(STEPS)
    gradients = []
    for client in federation.schedule.cohort(round):
        samples = federation.clients[client]
        all_data = samples.batch(torch.arange(len(samples)))
        for _ in range(len(federation.schedule.steps(round, client, len(samples))) - 1):
            gradient, _ = federation.task.compute_gradient(
                next(steps).w, all_data, seed=0, update_buffers=False
            )
            gradients.append(gradient)
    assert len(gradients) == len(STEPS)
    return gradients


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    config = resolve_config({"dataset": "digits", "seed": arguments.seed})
    experiment = prepare(config)
    federation = make_federation(config, FedWMSAM(), experiment.task, experiment.clients)
    state = first_state(federation)
    for _ in range(arguments.rounds):
        state, _ = run_round(federation, state)
    federation = replace(federation, method=RecordingFedWMSAM())
    run_round(federation, state)
    cohort = federation.schedule.cohort(state.round)
    rho = FedWMSAM().rho
    print(
        f"digits, seed {arguments.seed}, round {state.round + 1}: "
        f"{len(STEPS)} steps of {len(cohort)} clients, ρ = {rho}"
    )
    print(
        f"{federation.task.parameter_count:,} parameters in {len(federation.task.layout)} tensors; "
        "means over the steps, ranges in brackets\n"
    )
    print(
        "D         perturbation  norm/ρ                  cos batch g  "
        "cos local gradient       distinct values a tensor"
    )
    print_rows(federation.task.layout, rho, local_gradients(federation, state.round))


def print_rows(layout: Layout, rho: float, gradients: Sequence[Tensor]) -> None:
    """Print a row of the table for both perturbations of both forms of D."""
    library_differences = [step.library_difference for step in STEPS]
    released_differences = [step.released_difference for step in STEPS]
    for source, differences, sign in (
        ("library", library_differences, 1),
        ("released", released_differences, -1),
    ):
        for name, perturb in (("vector", vector), ("flat index", flat_index)):
            eps = [perturb(difference, sign, rho, layout) for difference in differences]
            norms = [float(e.norm()) / rho for e in eps]
            batch = [float(cosine(e, step.gradient)) for e, step in zip(eps, STEPS, strict=True)]
            full = [float(cosine(e, g)) for e, g in zip(eps, gradients, strict=True)]
            norm_cell = f"{mean(norms):5.2f} ({format_range(norms, '.2f')})"
            full_cell = f"{mean(full):+.2f} ({format_range(full, '+.2f')})"
            distinct_cell = format_range(count_distinct(eps, layout), "d")
            print(
                f"{source:9} {name:12}  {norm_cell:22}  {mean(batch):+.2f}        "
                f"{full_cell:23}  {distinct_cell}"
            )


def count_distinct(perturbations: Sequence[Tensor], layout: Layout) -> list[int]:
    """Return how many distinct values each tensor has in each perturbation."""
    counts = []
    for perturbation in perturbations:
        counts += [len(torch.unique(perturbation[parameter.slice])) for parameter in layout]
    return counts


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def format_range(values: list[float] | list[int], format_spec: str) -> str:
    """Return the smallest and the largest value, or one of them if they look the same."""
    low = format(min(values), format_spec)
    high = format(max(values), format_spec)
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
