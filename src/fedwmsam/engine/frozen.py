"""The weights of a run that are not trained, which its folder holds once.

Checkpoints and kept states note the digest of frozen.safetensors in the place of these weights.
"""

import hashlib
from pathlib import Path

from fedwmsam.engine.checkpoint import Checkpoint, read_tensors, write_tensors
from fedwmsam.engine.client_state import DIGEST_BYTES, as_bytes
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import Vectors

FILE = "frozen.safetensors"


class FrozenFile:
    """The file of a run folder with the frozen weights of all its checkpoints and kept states.

    A checkpoint may hold its frozen weights itself: versions before this file made such ones, and
    a model may change frozen weights on its own, as those that follow others as a moving average.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._digest: str | None = None
        """The digest of the weights in the file; None if it is to be written, empty if unknown."""

    def set_apart(self, state: Checkpoint) -> Checkpoint:
        """Return the state with a digest in the place of its frozen weights.

        The first state's weights are written to the file. A state whose weights are others keeps
        them.
        """
        weights = state.bundles.get("frozen")
        if not weights:
            return state
        digest = digest_of_weights(weights)
        if self._digest is None:
            write_tensors(self.path, weights)
            self._digest = digest
        if digest != self._digest:
            return state
        trained = {name: bundle for name, bundle in state.bundles.items() if name != "frozen"}
        return Checkpoint(trained, state.notes | {"frozen": digest})

    def put_back(self, saved: Checkpoint) -> Checkpoint:
        """Return a saved state with its frozen weights, wherever they are.

        Raise InputError if they are in the file and it is not as it was written.
        """
        noted = saved.notes.get("frozen")
        if noted is None:
            self._digest = "" if self.path.exists() else None  # others may need what is in it
            return saved
        if not self.path.exists():
            raise InputError(
                f"{self.path} is missing; the run's checkpoints need it for the weights that are "
                "not trained: put it back."
            )
        weights = read_tensors(self.path)
        if digest_of_weights(weights) != noted:
            raise InputError(
                f"{self.path} does not hold the weights that belong to the checkpoint of round "
                f"{saved.notes['round']}; put the run's own file back."
            )
        self._digest = noted
        return Checkpoint(saved.bundles | {"frozen": weights}, saved.notes)


def digest_of_weights(weights: Vectors) -> str:
    """Return a digest of the names, types, shapes and values of weights, in any order."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, value in sorted(weights.items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(as_bytes(value))
    return digest.hexdigest()
