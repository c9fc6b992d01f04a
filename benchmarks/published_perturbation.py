"""What the published perturbation code adds to the weights, beside the vector it was meant to add.

    python benchmarks/published_perturbation.py [--rounds 20] [--seed 0]

Trains FedWMSAM on the digits with this library, then watches every local step of the next round. At each step, the same
weights w_b and the same difference D = t_b − w_b give two perturbations:

    vector       ε = ± ρ D/‖D‖            every coordinate its own value, length ρ
    flat index   s_j = ± ρ D[j]/Σ|D[i]|   one number for the whole tensor j, taken from coordinate j of the flat vector

D comes in two forms: this library's (t_b = w_0 − η b m_k, sign +) and the released code's (t_b = w_0 + b m_k, sign −).
The flat index is written from its description (docs/published-code.md); it is not an option of any method.
"""

import argparse
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedwmsam.engine.rounds import Federation, first_state, run_round
from fedwmsam.experiment.assembly import make_federation
from fedwmsam.experiment.experiment import prepare
from fedwmsam.methods import FedWMSAM
from fedwmsam.methods.base import Gradient, Info, ParameterSlice
from fedwmsam.methods.vectors import Vectors, cosine, unit
from fedwmsam.settings.config import resolve

Layout = tuple[ParameterSlice, ...]
SEEN: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
"""Per local step: w_b, this library's D, the released code's D, the batch gradient at w_b."""


@dataclass(frozen=True)
class Watched(FedWMSAM):
    """FedWMSAM that notes what each step saw; it trains exactly as FedWMSAM does."""

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return super().begin(down, full_gradient, info) | {"released": down["w"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        if not torch.equal(w, down["w"]):  # at the first step D is zero in both forms
            SEEN.append((w, self.ahead(w, down, scratch), scratch["released"] - w, grad(w)))
        v, after = super().direction(w, grad, down, scratch)
        return v, after | {"released": scratch["released"] + down["m"]}


def vector(difference: Tensor, sign: int, rho: float, layout: Layout) -> Tensor:
    return sign * rho * unit(difference, tau=1e-12)


def flat_index(difference: Tensor, sign: int, rho: float, layout: Layout) -> Tensor:
    """Tensor number j is shifted as a whole by a multiple of coordinate number j."""
    deciding = difference[: len(layout)]
    scalars = sign * rho * deciding / (deciding.abs().sum() + 1e-7)
    result = torch.empty_like(difference)
    for slot, scalar in zip(layout, scalars, strict=True):
        result[slot.slice] = scalar
    return result


def local_gradients(federation: Federation, round: int) -> list[Tensor]:
    """The full gradient of the client a step belongs to, at that step's weights; in the order of SEEN."""
    steps, result = iter(SEEN), []
    for client in federation.schedule.cohort(round):
        samples = federation.clients[client]
        everything = samples.batch(torch.arange(len(samples)))
        for _ in range(len(federation.schedule.steps(round, client, len(samples))) - 1):
            gradient, _ = federation.task.gradient(
                next(steps)[0], everything, seed=0, keep_buffers=False
            )
            result.append(gradient)
    assert len(result) == len(SEEN)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    config = resolve({"dataset": "digits", "seed": arguments.seed})
    experiment = prepare(config)
    federation = make_federation(config, FedWMSAM(), experiment.task, experiment.clients)
    state = first_state(federation)
    for _ in range(arguments.rounds):
        state, _ = run_round(federation, state)
    federation = replace(federation, method=Watched())
    run_round(federation, state)
    local = local_gradients(federation, state.round)

    rho, layout, cohort = (
        FedWMSAM().rho,
        federation.task.layout,
        federation.schedule.cohort(state.round),
    )
    print(
        f"digits, seed {arguments.seed}, round {state.round + 1}: {len(SEEN)} steps of {len(cohort)} clients, ρ = {rho}"
    )
    print(
        f"{federation.task.size:,} parameters in {len(layout)} tensors; means over the steps, ranges in brackets\n"
    )
    print(
        "D         perturbation  norm/ρ                  cos batch g  cos local gradient       distinct values a tensor"
    )
    for source, position, sign in (("library", 1, 1), ("released", 2, -1)):
        for name, rule in (("vector", vector), ("flat index", flat_index)):
            eps = [rule(step[position], sign, rho, layout) for step in SEEN]
            norms = [float(e.norm()) / rho for e in eps]
            batch = [float(cosine(e, step[3])) for e, step in zip(eps, SEEN, strict=True)]
            full = [float(cosine(e, g)) for e, g in zip(eps, local, strict=True)]
            distinct = [len(torch.unique(e[slot.slice])) for e in eps for slot in layout]
            shown = (
                f"{mean(norms):5.2f} ({span(norms, '.2f')})",
                f"{mean(full):+.2f} ({span(full, '+.2f')})",
            )
            print(
                f"{source:9} {name:12}  {shown[0]:22}  {mean(batch):+.2f}        {shown[1]:23}  {span(distinct, 'd')}"
            )


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def span(values: list[float] | list[int], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
