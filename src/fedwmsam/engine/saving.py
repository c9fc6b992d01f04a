"""What a run leaves on disk: the checkpoint it goes on from, and its outcome when it is over."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedwmsam.engine.checkpoint import Checkpoint, on, write_tensors
from fedwmsam.engine.folder import Record, RunFolder, read_lines
from fedwmsam.engine.scoring import Best, client_accuracies
from fedwmsam.engine.states import with_memory, without_memory
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import Vectors

if TYPE_CHECKING:
    from fedwmsam.engine.run import Run


def checkpoint_of(run: "Run") -> Checkpoint:
    """All that the next round needs but the clients' memory, which the folder keeps apart."""
    state = without_memory(run.federation, run.state)
    bundles, notes = state.bundles | ({"trail": run.trail} if run.trail else {}), dict(state.notes)
    if run.federation.privacy:
        notes["dp_noise"] = run.federation.privacy.noise
    if run.best:
        bundles |= {"best": {"w": run.best.w}, "best buffers": run.best.buffers}
        notes |= {"best_round": run.best.round, "best_score": run.best.score}
    return Checkpoint(bundles, notes)


def restore(run: "Run", folder: RunFolder) -> None:
    """Go on from the folder's newest whole checkpoint, or from the start if there is none."""
    memory = replace(run.state.memory, store=folder.store)
    run.state = replace(run.state, memory=memory)
    found = folder.newest()
    if found is None:
        return
    check_same(run, folder, found)
    run.state = with_memory(run.federation, found, folder.recall(found, memory))
    bundles, notes, device = found.bundles, found.notes, run.federation.task.device
    if "best" in bundles:
        w, buffers = bundles["best"]["w"].to(device), on(bundles["best buffers"], device)
        run.best = Best(notes["best_round"], notes["best_score"], w, buffers)
    run.history = read_lines(folder.path / "metrics.jsonl")
    run.timings = read_lines(folder.path / "timings.jsonl")
    run.recordings = read_lines(folder.path / "recordings.jsonl")
    run.trail = on(bundles.get("trail", {}), device)
    run.saved_round = run.state.round


def check_same(run: "Run", folder: RunFolder, found: Checkpoint) -> None:
    """Raise InputError unless this run can go on from the checkpoint."""
    notes, ours, theirs = found.notes, run.state.server, found.bundles["server"]
    if notes["method"] != run.federation.method.name or shapes(ours) != shapes(theirs):
        raise InputError(f"The checkpoint in {folder.path} belongs to another method or model; it cannot go on.")
    begun = "averaged" in found.bundles
    if begun != (run.federation.twin is not None):
        raise InputError(
            f"{folder.path} was begun {'with' if begun else 'without'} an averaged twin, which is an average over all "
            "rounds; go on with the same twin, or start a new run."
        )
    if run.plan.rounds < notes["round"]:
        raise InputError(f"{folder.path} has done {notes['round']} rounds already; {run.plan.rounds} is less.")
    privacy = run.federation.privacy
    if privacy and notes.get("dp_noise") != privacy.noise:
        raise InputError(
            f"{folder.path} was begun with noise {notes.get('dp_noise')}; for so many rounds dp_epsilon asks "
            f"for {privacy.noise}. Go on with the same number of rounds."
        )


def shapes(vectors: Vectors) -> dict[str, Any]:
    return {name: value.shape for name, value in vectors.items()}


def write_results(run: "Run", folder: RunFolder) -> None:
    write_tensors(folder.path / "model.safetensors", run.model())
    best = run.best_model()
    if best is not None:
        write_tensors(folder.path / "best.safetensors", best)
    averaged = run.averaged_model()
    if averaged is not None:
        write_tensors(folder.path / "averaged.safetensors", averaged)
    if run.breakdown and run.test is not None:
        accuracies = client_accuracies(run.federation.task, run.state, run.test, run.breakdown)
        folder.write_json("clients.json", accuracies)
    last: Record = run.history[-1] if run.history else {}
    folder.write_json("summary.json", run.summary() | {f"last_{k}": v for k, v in last.items() if k != "round"})
