"""A state as a checkpoint holds it, and back. One kept before a round is all that is needed to repeat it exactly."""

import torch

from fedwmsam.engine.checkpoint import Checkpoint, on
from fedwmsam.engine.memory import Memory
from fedwmsam.engine.rounds import Average, Federation, State


def without_memory(federation: Federation, state: State) -> Checkpoint:
    """A state but for what is remembered about clients."""
    bundles = {"server": state.server, "buffers": state.buffers, "frozen": federation.task.frozen()}
    if state.average:
        bundles |= {"averaged": {"w": state.average.w}, "averaged buffers": state.average.buffers}
    return Checkpoint(bundles, {"round": state.round, "method": federation.method.name})


def with_memory(federation: Federation, found: Checkpoint, memory: Memory) -> State:
    """The state that a checkpoint holds; its frozen weights are put into the model."""
    federation.task.load_frozen(found.bundles["frozen"])
    server, buffers = (on(found.bundles[name], federation.task.device) for name in ("server", "buffers"))
    return State(found.notes["round"], server, buffers, memory, average_in(found, federation.task.device))


def average_in(found: Checkpoint, device: torch.device) -> Average | None:
    """The averaged twin that a checkpoint holds."""
    if "averaged" not in found.bundles:
        return None
    return Average(found.bundles["averaged"]["w"].to(device), on(found.bundles["averaged buffers"], device))


def kept_state(federation: Federation, state: State) -> Checkpoint:
    """All that the next round reads: the server's state and the memory of the clients that will take part."""
    cohort, kept = federation.schedule.cohort(state.round), without_memory(federation, state)
    rows = {f"memory/{client}": state.memory[client] for client in cohort if client in state.memory}
    return Checkpoint(kept.bundles | rows, kept.notes)


def recalled_state(federation: Federation, kept: Checkpoint) -> State:
    """The state before a round, from what `kept_state` kept of it: `run_round` then repeats the round exactly."""
    device = federation.task.device
    changes = Memory(device=device).changing()
    for name, row in kept.bundles.items():
        if name.startswith("memory/"):
            changes.put(int(name.removeprefix("memory/")), on(row, device))
    return with_memory(federation, kept, changes.done())
