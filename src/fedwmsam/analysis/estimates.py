"""The constants of the theorem, estimated along a run, and its conditions, one by one, for that run.

Along the kept states: the loss and its gradient on samples of the whole federation, the curvature by power iteration,
the variance of the clients' mini-batch gradients. They are what the visited points show: a constant that holds for all
weights can only be larger.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from fedwmsam import rng
from fedwmsam.analysis.dynamics import spread_out
from fedwmsam.analysis.replay import Past
from fedwmsam.analysis.theory import Setting, bound
from fedwmsam.analysis.training_surface import TrainingSurface, global_surface, length, local_surface
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Federation, State
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import unit
from fedwmsam.training.local import Backprop
from fedwmsam.training.task import calm_torch

SAMPLE = 3000
STATES = 10
ITERATIONS = 10
"""Of the power iteration."""
PROBED = 3
"""Clients of each kept state's cohort that are measured."""
BATCHES = 20
"""Mini-batches of a client that its gradients' variance is taken from."""
STEP = 1e-2
"""Length of the difference from which a Hessian-vector product is taken: SAM's own scale."""
FILE = "theory.json"
HOLDS, FAILS, NOT_HERE, UNKNOWN = "holds", "fails", "does not apply", "cannot be checked"


def theory(folder: Path, states: int = STATES, sample: int = SAMPLE) -> Record:
    """Constants, bound, what was measured, and each condition; writes nothing."""
    with calm_torch():
        past = Past.of(folder)
        if not past.kept():
            raise InputError(
                f"{folder} kept no states, which the constants are estimated from; run it with --set keep_states=10."
            )
        points = [measure_point(past, round, sample) for round in spread_out(past.kept(), states)]
    setting = setting_of(past, points)
    terms = bound(setting)
    return {
        "method": past.config.method, "seed": past.config.seed, "rounds": len(past.rows), "sample": sample,
        "setting": asdict(setting), "bound": terms._asdict() | {"printed": terms.printed, "with_bias": terms.with_bias},
        "measured": fmean(point["squared_gradient"] for point in points),
        "conditions": [condition._asdict() for condition in conditions(past, setting, points)],
        "points": points,
    }  # fmt: skip


def measure_point(past: Past, round: int, sample: int) -> Record:
    """All that is measured at one kept state."""
    federation, seed, state = past.federation, past.config.seed, past.state(round)
    federation.task.start_training(state.buffers)
    w, surfaces = state.server["w"], [global_surface(federation, key, sample) for key in (seed, seed + 1)]
    (one, loss), (other, again) = (surface.measured(w) for surface in surfaces)
    clients = federation.schedule.cohort(round)[:PROBED]
    own = [local_surface(federation, client, seed, sample) for client in clients]
    return {
        "round": round, "loss": (loss + again) / 2,
        # Two samples drawn apart from each other: the product of their gradients is not raised by their noise.
        "squared_gradient": float(torch.dot(one, other)),
        "global_curvature": curvature(surfaces[0], w),
        "client_curvatures": [curvature(surface, w) for surface in own],
        "client_squared_gradients": [length(surface.gradient(w)) ** 2 for surface in own],
        "variances": [batch_variance(federation, state, client) for client in clients],
    }  # fmt: skip


def curvature(surface: TrainingSurface, w: Tensor, iterations: int = ITERATIONS) -> float:
    """The largest |eigenvalue| of the Hessian at w, by power iteration on differences of gradients."""
    random = rng.generator(0, "power iteration")
    v = unit(torch.from_numpy(random.standard_normal(w.numel())).to(w), tau=0.0)
    largest = 0.0
    for _ in range(iterations):
        product = (surface.gradient(w + STEP * v) - surface.gradient(w - STEP * v)) / (2 * STEP)
        largest, v = length(product), unit(product, tau=1e-30)
    return largest


def batch_variance(federation: Federation, state: State, client: int) -> float | None:
    """E‖g_ξ − ∇f_k‖² over mini-batches of the client's round, whole ones only; None if there are less than two."""
    samples = federation.clients[client]
    steps = federation.schedule.steps(state.round, client, len(samples))
    whole = [step for step in steps if len(step.index) == len(steps[0].index)][:BATCHES]
    grad = Backprop(federation.task, samples, 0.0)
    gradients = []
    for step in whole:
        grad.start(step)
        gradients.append(grad(state.server["w"]))
    if len(gradients) < 2:
        return None
    return float(torch.stack(gradients).var(dim=0, correction=1).sum())


def setting_of(past: Past, points: Sequence[Record]) -> Setting:
    """The largest curvature and variance seen, the run's own numbers for the rest."""
    config, losses = past.config, [point["loss"] for point in points]
    variances = [value for point in points for value in point["variances"] if value is not None]
    curvatures = [value for point in points for value in (point["global_curvature"], *point["client_curvatures"])]
    clients = len(past.federation.clients)
    return Setting(
        smoothness=max(curvatures), gap=losses[0] - min(losses), sigma=math.sqrt(max(variances, default=0.0)),
        rho=float(getattr(past.federation.method, "rho", 0.0)), cohort=round(config.per_round(clients)),
        steps=round(fmean(steps_of(past))), rounds=max(len(past.rows), 1), clients=clients,
    )  # fmt: skip


def steps_of(past: Past) -> list[int]:
    """Local steps of the first round's clients."""
    federation = past.federation
    return [federation.schedule.count(0, k, len(federation.clients[k])) for k in federation.schedule.cohort(0)]


class Condition(NamedTuple):
    where: str
    text: str
    verdict: str
    found: str


def conditions(past: Past, setting: Setting, points: Sequence[Record]) -> list[Condition]:
    return [*step_conditions(past, setting, points), *shape_conditions(past, setting)]


def step_conditions(past: Past, setting: Setting, points: Sequence[Record]) -> Iterator[Condition]:
    """Those on γ, η and α, without the constants that ≲ leaves open; step sizes are those of the first round."""
    L, S, K, N, R = setting.smoothness, setting.cohort, setting.steps, setting.clients, setting.rounds
    local = past.config.lr * K
    gamma = float(getattr(past.federation.method, "global_lr", 1.0)) * local
    variance, G0 = setting.sigma**2 + (L * setting.rho) ** 2, fmean(points[0]["client_squared_gradients"])
    alphas = [row["alpha"] for row in past.rows if "alpha" in row]
    alpha = max(alphas) if alphas else getattr(past.federation.method, "alpha", None)
    height = L * setting.gap

    def at_most(where: str, text: str, left: float, right: Callable[[float], float]) -> Condition:
        if alpha is None:
            return Condition(where, text, NOT_HERE, "the method has no α")
        limit = right(alpha)
        return Condition(where, text, HOLDS if left <= limit else FAILS, f"{left:.3g} against {limit:.3g}")

    yield at_most("Lemma 1", "γ L ≤ 1/24", gamma * L, lambda a: 1 / 24)
    yield at_most("Lemma 5", "γ L ≤ 1/(2 α), as printed", gamma * L, lambda a: 1 / (2 * a))
    yield at_most("Lemma 5", "γ L ≤ α/6, as its proof uses", gamma * L, lambda a: a / 6)
    yield at_most("Lemma 6", "η K L ≤ 1/α", local * L, lambda a: 1 / a)
    yield at_most("Lemma 7", "α η K L ≤ 1/(24 K^¼)", (alpha or 0) * local * L, lambda a: 1 / (24 * K**0.25))
    yield at_most("Lemma 7", "η K ≤ 5 γ/(N S)", local, lambda a: 5 * gamma / (N * S))
    yield at_most("Theorem", "γ ≤ α/L", gamma, lambda a: over(a, L))
    yield at_most("Theorem", "α ≤ S/N^⅔", alpha or 0, lambda a: S / N ** (2 / 3))
    yield at_most(
        "Theorem",
        "α ≤ √(L Δ S K)/(σ_ρ² R), as printed",
        alpha or 0,
        lambda a: over((height * S * K) ** 0.5, variance * R),
    )
    yield at_most(
        "Theorem",
        "α ≤ √(L Δ S K/(σ_ρ² R)), as its proof uses",
        alpha or 0,
        lambda a: over(height * S * K, variance * R) ** 0.5,
    )
    yield at_most("Theorem", "α ≤ √(L Δ S²)/(G₀ N)", alpha or 0, lambda a: over((height * S**2) ** 0.5, G0 * N))
    yield at_most(
        "Theorem", "η K L ≲ min(1/√S, 1/(α K^¼), √S/N)", local * L,
        lambda a: min(1 / S**0.5, 1 / (a * K**0.25), S**0.5 / N),
    )  # fmt: skip


def over(amount: float, by: float) -> float:
    """A limit that nothing reaches where there is nothing to divide by."""
    return amount / by if by else math.inf


def shape_conditions(past: Past, setting: Setting) -> Iterator[Condition]:
    """Those on what the algorithm does."""
    config, method = past.config, past.federation.method
    alphas = {row["alpha"] for row in past.rows if "alpha" in row}
    steps = set(steps_of(past))

    def is_so(where: str, text: str, so: bool, found: str) -> Condition:
        return Condition(where, text, HOLDS if so else FAILS, found)

    yield Condition(
        "Assumption 1", "every f_i is L-smooth", UNKNOWN,
        f"largest curvature seen: {setting.smoothness:.3g}; networks with ReLU have kinks",
    )  # fmt: skip
    yield Condition(
        "Assumption 2", "mini-batch gradients have variance ≤ σ²", UNKNOWN, f"largest seen: {setting.sigma**2:.3g}"
    )
    yield is_so("Theorem", "its method", method.name == "fedwmsam", method.name)
    if alphas:
        yield is_so("Theorem", "α is one number", len(alphas) == 1, f"{min(alphas):.3g} to {max(alphas):.3g}")
    yield is_so("Theorem", "the step size is one number", config.lr_decay == 1, f"lr_decay {config.lr_decay:g}")
    if method.name == "fedwmsam":
        rule = getattr(method, "correction", "")
        yield is_so("Theorem", "c_i starts as a mini-batch gradient", False, "it starts as zero")
        yield is_so("Lemma 7", "c_i is the mean local gradient", rule == "mean_gradient", f"correction {rule}")
    clipped = "no clip" if config.clip_norm is None else f"clip_norm {config.clip_norm:g}"
    decayed = f"weight_decay {config.weight_decay:g}, mode {config.weight_decay_mode}"
    plain = config.weight_decay == 0 or config.weight_decay_mode == "objective"
    yield is_so("Algorithm", "no clipping", config.clip_norm is None, clipped)
    yield is_so("Algorithm", "no weight decay beside the gradient", plain, decayed)
    yield is_so("Lemma 3", "S clients a round, drawn without replacement", config.sampling == "fixed", config.sampling)
    yield is_so("Algorithm", "all clients take K steps", len(steps) == 1, f"{min(steps)} to {max(steps)}")
    bias = (setting.smoothness * setting.rho) ** 2
    yield is_so("Lemma 2", "gradients have no common bias: (L ρ)² = 0", bias == 0, f"(L ρ)² = {bias:.3g}")
