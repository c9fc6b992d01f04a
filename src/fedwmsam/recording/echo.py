"""Echo of updates: the paper's second failure mode, momentum-echo oscillation.

Late in a run, does the model oscillate instead of settling, because momentum repeats the updates of
earlier rounds? With u_r = w_{r+1} − w_r the update of round r:

    lags            cos(u_r, u_{r−1}), cos(u_r, u_{r−2}) …: −1 takes the earlier update back, 0 is
                    unrelated to it, +1 goes straight on
    flips           the share of parameters whose update changed its sign since the last round
    straightness    ‖w_{r+n} − w_r‖ / (n · mean ‖u‖): 1 is a straight line, 1/√n what unrelated
                    updates give
    carried         the share of a client's step that comes from no gradient of this step:
                    ‖p‖²/(‖p‖² + ‖v − p‖²), v the direction and p its gradient-free part

and of a column of the metrics, such as the accuracy, over a window of rounds:

    noise           the deviation of its changes from round to round, over √2: what independent
                    noise would have
    residual        its deviation around a straight line through the window
    alternation     how often it turns from rising to falling or back: 1 always, 2/3 for
                    independent noise, 1/2 for a random walk
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedwmsam.engine.records import Record
from fedwmsam.methods.vectors import Vectors, cosine
from fedwmsam.recording.instrumentation import StepObservation
from fedwmsam.recording.training_surface import l2_norm

LAGS = 3
"""Past updates with which a recording compares a new one; so many vectors of the model's size are
held in memory and in checkpoints."""


def echo(update: Tensor, past_updates: Sequence[Tensor]) -> Record:
    """Return an update's norm, its cosines with past updates (newest first) and its flips."""
    lags: list[float] = [float(cosine(update, past)) for past in past_updates]
    record: Record = {"norm": l2_norm(update), "lags": lags}
    if past_updates:
        record["flips"] = flips(update, past_updates[0])
    return record


def flips(update: Tensor, previous: Tensor) -> float | None:
    """Return the share of parameters whose update changed its sign.

    Only parameters that both updates moved count; return None if there are none.
    """
    product = update.sign() * previous.sign()
    moved = int(product.count_nonzero())
    return float((product < 0).sum()) / moved if moved else None


def push_update(past_updates: Vectors, update: Tensor, lags: int = LAGS) -> Vectors:
    """Return the newest `lags` updates, under "0" the one just made, under "1" that before, …."""
    newest = [update, *in_order(past_updates)][:lags]
    return {str(number): value for number, value in enumerate(newest)}


def in_order(past_updates: Vectors) -> list[Tensor]:
    """Return the updates in the bundle of `push_update`, newest first."""
    return [past_updates[str(number)] for number in range(len(past_updates))]


def straightness(displacement: float, norms: Sequence[float], rounds: int) -> float | None:
    """Return how far the model came in so many rounds, divided by the length of its path.

    `norms` are those of some of the updates on the way. Return None if the path has no length.
    """
    path_length = rounds * sum(norms) / len(norms)
    return displacement / path_length if path_length > 0 else None


def gradient_free_share(step: StepObservation) -> float | None:
    """Return the share of a step that comes from none of its gradients; None for a zero step."""
    gradient_free = l2_norm(step.gradient_free_part) ** 2
    from_gradient = l2_norm(step.direction - step.gradient_free_part) ** 2
    total = gradient_free + from_gradient
    return gradient_free / total if total > 0 else None


def oscillation(values: Sequence[float]) -> Record:
    """Return how much a column of the metrics oscillates; None where there are too few values."""
    series = np.asarray(values, dtype=np.float64)
    if len(series) < 4 or not np.isfinite(series).all():
        return {"noise": None, "residual": None, "alternation": None, "rounds": len(series)}
    changes = np.diff(series)
    rounds = np.arange(len(series))
    line = np.polynomial.Polynomial.fit(rounds, series, 1)
    residual = math.sqrt(float(((series - line(rounds)) ** 2).sum()) / (len(series) - 2))
    products = changes[1:] * changes[:-1]
    turns = products[products != 0]
    return {
        "noise": float(changes.std(ddof=1)) / math.sqrt(2),
        "residual": residual,
        "alternation": float((turns < 0).mean()) if turns.size else None,
        "rounds": len(series),
    }


def autocorrelation(updates: Sequence[Tensor], lags: int) -> list[float | None]:
    """Return the mean cosine of successive updates at each distance from 1 to `lags`."""
    means = []
    for lag in range(1, lags + 1):
        pairs = [(updates[number], updates[number - lag]) for number in range(lag, len(updates))]
        means.append(mean_cosine(pairs))
    return means


def mean_cosine(pairs: Sequence[tuple[Tensor, Tensor]]) -> float | None:
    """Return the mean of the cosines of the pairs; None without pairs."""
    return float(torch.stack([cosine(*pair) for pair in pairs]).mean()) if pairs else None
