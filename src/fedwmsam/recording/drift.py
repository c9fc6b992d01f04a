"""Client drift: how far a round's clients end up from each other, and what the method keeps.

With u_k the update of client k and ū their plain mean:

    norm        ‖u_k‖
    distance    ‖u_k − ū‖
    to_mean     cos(u_k, ū)
    pairs       the mean of cos(u_j, u_k) over all pairs
    coherence   ‖ū‖² / mean ‖u_k‖²: 1 if all clients agree, 1/S if their updates are orthogonal
                and equally long
    server      the norms of the vectors that the server keeps against drift
    memory      the norms of the vectors that it keeps for each client of the round
    scalars     what the method itself computes for each client, such as FedWMSAM's similarity
"""

import torch
from torch import Tensor

from fedwmsam.data.clients import client_key
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Federation, Job, State, all_finite, memory_of, scalars
from fedwmsam.methods.vectors import cosine, norm, unit
from fedwmsam.recording.training_surface import l2_norm
from fedwmsam.statistics import mean_spread
from fedwmsam.training.local import LocalResult


class Drift:
    """Collects a round's results; holds one update per client until the round is over."""

    def __init__(self, federation: Federation, state: State) -> None:
        self.federation = federation
        self.state = state
        self.updates: dict[int, Tensor] = {}
        self.memory_norms: dict[str, dict[str, float]] = {}
        """The norm of each vector of the clients' rows, by name and client."""
        self.client_scalars: dict[str, dict[str, float]] = {}
        """The scalars that the method computed, by name and client."""

    def observe_result(self, job: Job, result: LocalResult) -> None:
        """Note a client's update, and settle it to see what the method makes of it."""
        if not all_finite(result.up):
            return  # the round leaves it out, too
        self.updates[job.client] = result.up["delta"].clone()
        memory = memory_of(self.federation, self.state, job.client)
        row, contribution = self.federation.method.settle(
            self.state.server, memory, result.up, job.info
        )
        client = client_key(self.federation.clients, job.client)
        for name, vector in sorted(row.items()):
            self.memory_norms.setdefault(name, {})[client] = l2_norm(vector)
        for name, value in scalars(contribution).items():
            self.client_scalars.setdefault(name, {})[client] = value

    def to_record(self) -> Record:
        """Return the round's record of drift."""
        # Sorted, because a checkpoint does not keep the order of names.
        server = {
            k: l2_norm(v) for k, v in sorted(self.state.server.items()) if v.ndim and k != "w"
        }
        memory = {name: summarise_clients(values) for name, values in self.memory_norms.items()}
        by_method = {
            name: summarise_clients(values) for name, values in self.client_scalars.items()
        }
        clients = self.federation.clients
        updates = {client_key(clients, client): value for client, value in self.updates.items()}
        return update_statistics(updates) | {
            "server": server,
            "memory": memory,
            "scalars": by_method,
        }


def update_statistics(updates: dict[str, Tensor]) -> Record:
    """Return the statistics of a round's updates that do not depend on the method.

    There are none if no client's update has counted.
    """
    if not updates:
        return {}
    stack = torch.stack(list(updates.values()))
    centre = stack.mean(dim=0)
    norms = norm(stack).squeeze(-1)
    columns = {
        "norm": norms,
        "distance": norm(stack - centre).squeeze(-1),
        "to_mean": cosine(stack, centre),
    }
    record: Record = {
        name: summarise_clients(dict(zip(updates, values.tolist(), strict=True)))
        for name, values in columns.items()
    }
    mean_square = float((norms**2).mean())
    record["pairs"] = pairwise(stack)
    record["coherence"] = l2_norm(centre) ** 2 / mean_square if mean_square > 0 else None
    return record


def pairwise(stack: Tensor) -> Record:
    """Return the mean and the spread of the cosine over all pairs of clients."""
    units = unit(stack, tau=1e-30)
    above = torch.triu_indices(len(stack), len(stack), offset=1)
    values = (units @ units.T)[above[0], above[1]].tolist()
    return summarise(values)


def summarise_clients(values: dict[str, float]) -> Record:
    """Return the mean and the spread over the clients, and each client's value."""
    return summarise(list(values.values())) | {"clients": values}


def summarise(values: list[float]) -> Record:
    """Return the mean and the standard deviation of the values, None where there are too few."""
    statistics = mean_spread(values)
    return {
        "mean": statistics.mean if values else None,
        "spread": statistics.deviation if statistics.n > 1 else None,
    }
