"""A state kept before a round for later analysis: all that is needed to repeat the round exactly."""

from fedwmsam.engine.checkpoint import Checkpoint, on
from fedwmsam.engine.memory import Memory
from fedwmsam.engine.rounds import Federation, State


def kept_state(federation: Federation, state: State) -> Checkpoint:
    """All that the next round reads: the server's state and the memory of the clients that will take part."""
    cohort = federation.schedule.cohort(state.round)
    rows = {f"memory/{client}": state.memory[client] for client in cohort if client in state.memory}
    bundles = {"server": state.server, "buffers": state.buffers, "frozen": federation.task.frozen()}
    return Checkpoint(bundles | rows, {"round": state.round, "method": federation.method.name})


def recalled_state(federation: Federation, kept: Checkpoint) -> State:
    """The state before a round, from what `kept_state` kept of it: `run_round` then repeats the round exactly."""
    device, changes = federation.task.device, Memory(device=federation.task.device).changing()
    federation.task.load_frozen(kept.bundles["frozen"])
    for name, row in kept.bundles.items():
        if name.startswith("memory/"):
            changes.put(int(name.removeprefix("memory/")), on(row, device))
    server, buffers = on(kept.bundles["server"], device), on(kept.bundles["buffers"], device)
    return State(kept.notes["round"], server, buffers, changes.done())
