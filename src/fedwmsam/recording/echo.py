"""Failure mode 2: late in a run, does the model swing to and fro instead of settling?

With u_r = w_{r+1} − w_r the update of round r:
    lags            cos(u_r, u_{r−1}), cos(u_r, u_{r−2}) …: −1 takes it back, 0 is unrelated, +1 goes straight on
    flips           the share of parameters whose update changed its sign since the last round
    straightness    ‖w_{r+n} − w_r‖ / (n · mean ‖u‖): 1 is a straight line, 1/√n what unrelated updates give
    carried         of a client's step, the energy of what it carried along against that of its fresh gradient:
                    ‖p‖²/(‖p‖² + ‖v − p‖²), v the direction and p its part that no gradient of this step is in
and of a column of the metrics, the accuracy say, over a window of rounds:
    noise           the deviation of its changes from round to round, over √2: what independent noise would have
    residual        its deviation around a straight line through the window
    alternation     how often it turns from rising to falling or back: 1 always, 2/3 independent noise, 1/2 a walk
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
"""How many updates back a recording looks; so many vectors of the model's size are held, and kept in checkpoints."""


def echo(update: Tensor, earlier: Sequence[Tensor]) -> Record:
    """An update beside those before it, the newest first."""
    lags: list[float] = [float(cosine(update, other)) for other in earlier]
    found: Record = {"norm": l2_norm(update), "lags": lags}
    return found | ({"flips": flips(update, earlier[0])} if earlier else {})


def flips(update: Tensor, before: Tensor) -> float | None:
    """Among the parameters that both updates moved."""
    product = update.sign() * before.sign()
    moved = int(product.count_nonzero())
    return float((product < 0).sum()) / moved if moved else None


def push_update(trail: Vectors, update: Tensor, lags: int = LAGS) -> Vectors:
    """The newest updates, "0" the last: what the next rounds are compared with."""
    return {str(place): value for place, value in enumerate([update, *in_order(trail)][:lags])}


def in_order(trail: Vectors) -> list[Tensor]:
    return [trail[str(place)] for place in range(len(trail))]


def straightness(displacement: float, norms: Sequence[float], rounds: int) -> float | None:
    """How far the model came, against how far it walked: `norms` are lengths of some of the updates on the way."""
    walked = rounds * sum(norms) / len(norms)
    return displacement / walked if walked > 0 else None


def gradient_free_share(sight: StepObservation) -> float | None:
    """None where the step goes nowhere."""
    carried, fresh = l2_norm(sight.carried) ** 2, l2_norm(sight.direction - sight.carried) ** 2
    return carried / (carried + fresh) if carried + fresh > 0 else None


def oscillation(values: Sequence[float]) -> Record:
    """How restless a column of the metrics is; None where there are too few values to say."""
    series = np.asarray(values, dtype=np.float64)
    if len(series) < 4 or not np.isfinite(series).all():
        return {"noise": None, "residual": None, "alternation": None, "rounds": len(series)}
    changes = np.diff(series)
    places = np.arange(len(series))
    line = np.polynomial.Polynomial.fit(places, series, 1)
    residual = math.sqrt(float(((series - line(places)) ** 2).sum()) / (len(series) - 2))
    turns = changes[1:] * changes[:-1]
    turning = turns[turns != 0]
    return {
        "noise": float(changes.std(ddof=1)) / math.sqrt(2),
        "residual": residual,
        "alternation": float((turning < 0).mean()) if turning.size else None,
        "rounds": len(series),
    }


def autocorrelation(updates: Sequence[Tensor], lags: int) -> list[float | None]:
    """Over a run of successive updates, the mean cosine at each distance from 1 on."""
    return [
        mean_cosine([(updates[place], updates[place - lag]) for place in range(lag, len(updates))])
        for lag in range(1, lags + 1)
    ]


def mean_cosine(pairs: Sequence[tuple[Tensor, Tensor]]) -> float | None:
    return float(torch.stack([cosine(*pair) for pair in pairs]).mean()) if pairs else None
