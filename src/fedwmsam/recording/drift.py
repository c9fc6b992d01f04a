"""Client drift: how far a round's clients end up from each other, and what the method keeps to prevent it.

With u_k the update of client k and ū their plain mean:
    norm        ‖u_k‖
    distance    ‖u_k − ū‖
    to_mean     cos(u_k, ū)
    pairs       the mean of cos(u_j, u_k) over all pairs
    coherence   ‖ū‖² / mean ‖u_k‖²: 1 if all clients agree, 1/S if their updates are orthogonal and equally long
    server, memory      norms of the vectors the server keeps, and of what it keeps for each client of the round
    scalars     what the method itself computes for each client, such as FedWMSAM's similarity
"""

import torch
from torch import Tensor

from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Federation, Job, State, all_finite, memory_of, scalars
from fedwmsam.methods.vectors import cosine, norm, unit
from fedwmsam.recording.training_surface import l2_norm
from fedwmsam.statistics import mean_spread
from fedwmsam.training.local import LocalResult


class Drift:
    """Collects a round's answers; holds one update for each client of the cohort until the round is over."""

    def __init__(self, federation: Federation, state: State) -> None:
        self.federation, self.state = federation, state
        self.updates: dict[int, Tensor] = {}
        self.memory: dict[str, dict[str, float]] = {}
        self.scalars: dict[str, dict[str, float]] = {}

    def observe(self, job: Job, result: LocalResult) -> None:
        if not all_finite(result.up):
            return  # the round leaves it out, too
        self.updates[job.client] = result.up["delta"].clone()
        before = memory_of(self.federation, self.state, job.client)
        row, contribution = self.federation.method.settle(
            self.state.server, before, result.up, job.info
        )
        for found, values in (
            (self.memory, {k: l2_norm(v) for k, v in sorted(row.items())}),
            (self.scalars, scalars(contribution)),
        ):
            for name, value in values.items():
                found.setdefault(name, {})[str(job.client)] = value

    def record(self) -> Record:
        # Sorted, because a checkpoint does not keep the order of names.
        server = {
            k: l2_norm(v) for k, v in sorted(self.state.server.items()) if v.ndim and k != "w"
        }
        kept = {name: with_spread(values) for name, values in self.memory.items()}
        own = {name: with_spread(values) for name, values in self.scalars.items()}
        return update_statistics(self.updates) | {"server": server, "memory": kept, "scalars": own}


def update_statistics(updates: dict[int, Tensor]) -> Record:
    """All that can be said of a round's updates without knowing the method."""
    names, stack = [str(client) for client in updates], torch.stack(list(updates.values()))
    centre = stack.mean(dim=0)
    norms = norm(stack).squeeze(-1)
    columns = {
        "norm": norms,
        "distance": norm(stack - centre).squeeze(-1),
        "to_mean": cosine(stack, centre),
    }
    found: Record = {
        name: with_spread(dict(zip(names, values.tolist(), strict=True)))
        for name, values in columns.items()
    }
    energy = float((norms**2).mean())
    return found | {
        "pairs": pairwise(stack),
        "coherence": l2_norm(centre) ** 2 / energy if energy > 0 else None,
    }


def pairwise(stack: Tensor) -> Record:
    """Mean and spread of the cosine over all pairs of clients."""
    units = unit(stack, tau=1e-30)
    above = torch.triu_indices(len(stack), len(stack), offset=1)
    values = (units @ units.T)[above[0], above[1]].tolist()
    return summarised(values)


def with_spread(values: dict[str, float]) -> Record:
    return summarised(list(values.values())) | {"clients": values}


def summarised(values: list[float]) -> Record:
    found = mean_spread(values)
    return {
        "mean": found.mean if values else None,
        "spread": found.deviation if found.n > 1 else None,
    }
