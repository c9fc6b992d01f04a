"""Is this model flat? Curvature and sharpness of a loss at a model, with the error of each number.

from fedwmsam.analysis.flatness import measure_flatness

found = measure_flatness(model, x, y)
found.eigenvalues[0], found.trace, found.sharpness
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedwmsam import rng
from fedwmsam.analysis.hessian import Estimate, largest_eigenvalues, trace
from fedwmsam.analysis.samples import draw
from fedwmsam.analysis.sharpness import Rise, rises
from fedwmsam.analysis.surface import Surface
from fedwmsam.data.reader import make_reader
from fedwmsam.engine.records import Record
from fedwmsam.errors import InputError
from fedwmsam.settings.options import check, option
from fedwmsam.training.objectives import Measure, make_objective
from fedwmsam.training.task import Task, calm_torch

Say = Callable[[str], None]
"""Takes what is being computed, for whoever waits."""


@dataclass(frozen=True)
class Wanted:
    """What is measured, and how thoroughly."""

    eigenvalues: int = option(5, "largest eigenvalues of the Hessian", low=1, high=100)
    probes: int = option(30, "random vectors for the trace", low=1, high=10**6)
    rho: tuple[float, ...] = (0.01, 0.05, 0.1)
    """Radii of the ball in which the loss may rise."""
    adaptive_rho: tuple[float, ...] = (0.1, 0.5, 1.0)
    """Radii of the ball that follows the weights, in their unit."""
    steps: int = option(10, "steps of ascent from each start", low=1, high=10**4)
    directions: int = option(20, "random directions for the average rise", low=1, high=10**6)
    seed: int = option(0, "key of what is drawn", low=0, high=2**62)

    def __post_init__(self) -> None:
        check("", self)
        for name in ("rho", "adaptive_rho"):
            radii = getattr(self, name)
            wrong = [radius for radius in radii if not 0 < radius < float("inf")]
            if wrong:
                raise InputError(f"{name} holds {wrong[0]!r}; a radius must be a number above 0.")
            object.__setattr__(self, name, tuple(sorted(set(map(float, radii)))))


@dataclass(frozen=True)
class Flatness:
    """Of one loss at one model."""

    loss: float
    gradient_norm: float
    eigenvalues: tuple[float, ...]
    """The largest of the Hessian, falling; the first is λ_max."""
    residuals: tuple[float, ...]
    """An eigenvalue of the Hessian is no further away than this."""
    converged: bool
    trace: Estimate
    trace_is_exact: bool
    sharpness: tuple[Rise, ...]
    adaptive: tuple[Rise, ...]
    samples: int
    of: int
    """What they were drawn from."""
    batch_size: int
    parameters: int

    def record(self) -> Record:
        """For a file."""
        return asdict(self) | {
            "trace": self.trace._asdict(),
            "sharpness": [rise._asdict() for rise in self.sharpness],
            "adaptive": [rise._asdict() for rise in self.adaptive],
        }


def measure_flatness(
    model: nn.Module, inputs: Any, targets: Any, *, loss: str | Measure = "classification", samples: int | None = 5000,
    batch_size: int = 1000, say: Say = lambda _: None, **wanted: Any,
) -> Flatness:  # fmt: skip
    """Of any module on any data: the mean `loss` over (at most) so many samples, without dropout or augmentation.

    The model itself is left as it is. What else can be wanted is in `Wanted`: eigenvalues, rho, seed …
    """
    if (samples is not None and samples < 1) or batch_size < 1:
        raise InputError(f"samples and batch_size must be at least 1, not {samples} and {batch_size}.")
    known = Wanted(**wanted)
    with calm_torch():
        task = Task(model, make_objective(loss))
        data = make_reader(task).samples((inputs, targets), "The data")
        sample = draw(data, samples, batch_size, rng.key(known.seed, "global sample"))
        return flatness_at(Surface(task, sample), task.initial_weights, known, say)


def flatness_at(surface: Surface, w: Tensor, wanted: Wanted, say: Say = lambda _: None) -> Flatness:
    """Of a loss surface at w; the caller has put the model's buffers in place."""
    sample = surface.sample
    gradient, loss = surface.gradient(w)
    say("eigenvalues")
    along = partial(surface.product, w)
    spectrum = largest_eigenvalues(along, w, wanted.eigenvalues, wanted.seed)
    say("trace")
    estimate, exact = trace(along, w, wanted.probes, wanted.seed, spectrum)
    climb = partial(
        rises, surface, w, steps=wanted.steps, directions=wanted.directions, seed=wanted.seed,
        hints=[spectrum.vectors[0]],
    )  # fmt: skip
    say("sharpness")
    plain = climb(wanted.rho)
    say("adaptive sharpness")
    return Flatness(
        loss=loss, gradient_norm=float(torch.linalg.vector_norm(gradient)),
        eigenvalues=tuple(map(float, spectrum.values)), residuals=tuple(map(float, spectrum.residuals)),
        converged=spectrum.converged, trace=estimate, trace_is_exact=exact, sharpness=plain,
        adaptive=climb(wanted.adaptive_rho, adaptive=True), samples=sample.count, of=sample.total,
        batch_size=sample.batch_size, parameters=surface.size,
    )  # fmt: skip


def from_record(record: Mapping[str, Any]) -> Flatness:
    """What `record` wrote; what was not finite is NaN again."""
    values = {**record}
    for name in ("eigenvalues", "residuals"):
        values[name] = tuple(map(number, values[name]))
    for name in ("sharpness", "adaptive"):
        values[name] = tuple(Rise(**{key: number(value) for key, value in rise.items()}) for rise in values[name])
    values["trace"] = Estimate(**{key: number(value) for key, value in values["trace"].items()})
    return Flatness(**values | {key: number(values[key]) for key in ("loss", "gradient_norm")})


def number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
