"""The FedWMSAM paper's theorem as numbers: its bound, its tables, two of its lemmas as experiments.

The theorem (its Appendix A) bounds (1/R) Σ_r E‖∇f(x_r)‖², up to a constant it does not name, by

    √(L Δ σ_ρ² / (S K R))  +  (L Δ / R) · (1 + N^{2/3}/S),        σ_ρ² = σ² + (L ρ)²

with L the smoothness, Δ = f(x_0) − f*, σ² the variance of a mini-batch gradient, ρ the radius of the perturbation, S of
N clients a round, K local steps and R rounds. Its Lemma 4, E‖∇F(x + δ; ξ) − ∇f(x)‖² ≤ σ² + (L ρ)², is right. But (L ρ)²
is there the square of a bias, the same in every gradient: the mean of S K of them keeps it. The proof takes it for a
variance and divides it by S K. What can be kept is √(L Δ σ² / (S K R)) + (L ρ)² + …: `Bound` has both forms.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedwmsam import rng
from fedwmsam.analysis.dynamics import find_readable_runs, spread_out
from fedwmsam.analysis.replay import ReplayedRun
from fedwmsam.analysis.saved_run import save_analysis
from fedwmsam.engine.records import Record
from fedwmsam.engine.rounds import Federation, State
from fedwmsam.errors import InputError
from fedwmsam.methods.vectors import unit
from fedwmsam.recording.training_surface import (
    TrainingSurface,
    global_surface,
    l2_norm,
    local_surface,
)
from fedwmsam.report.text_tables import TextTable
from fedwmsam.statistics import FloatArray
from fedwmsam.training.local import CountedGradient
from fedwmsam.training.task import deterministic_torch


@dataclass(frozen=True)
class BoundParameters:
    """What the bound depends on."""

    smoothness: float
    gap: float
    """Δ = f(x_0) − f*."""
    sigma: float
    rho: float
    cohort: int
    steps: int
    rounds: int
    clients: int

    def __post_init__(self) -> None:
        for name in ("smoothness", "gap", "sigma", "rho"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(
                    f"{name} must be a number of at least 0, not {getattr(self, name)!r}."
                )
        for name in ("cohort", "steps", "rounds", "clients"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name} must be a whole number of at least 1, not {getattr(self, name)!r}."
                )
        if self.cohort > self.clients:
            raise InputError(f"cohort is {self.cohort}, but there are only {self.clients} clients.")


class Bound(NamedTuple):
    """The theorem's terms, without the constant in front."""

    noise: float
    """√(L Δ σ_ρ² / (S K R)), as printed."""
    rounds: float
    """(L Δ / R)(1 + N^{2/3}/S)."""
    noise_alone: float
    """√(L Δ σ² / (S K R)): what remains of the first term when (L ρ)² is not divided by S K."""
    bias: float
    """(L ρ)², which more clients, steps or rounds do not make smaller."""

    @property
    def printed(self) -> float:
        return self.noise + self.rounds

    @property
    def with_bias(self) -> float:
        return self.noise_alone + self.rounds + self.bias


def bound(setting: BoundParameters) -> Bound:
    height = setting.smoothness * setting.gap
    work = setting.cohort * setting.steps * setting.rounds
    bias = (setting.smoothness * setting.rho) ** 2
    return Bound(
        noise=math.sqrt(height * (setting.sigma**2 + bias) / work),
        rounds=height / setting.rounds * (1 + setting.clients ** (2 / 3) / setting.cohort),
        noise_alone=math.sqrt(height * setting.sigma**2 / work),
        bias=bias,
    )


class Rate(NamedTuple):
    method: str
    left: str
    rate: str


MEAN_OVER_ROUNDS = "(1/R) Σ_r E‖∇f(x_r)‖²"
MEAN_OVER_STEPS = "(1/T) Σ_t E‖∇f(w_t)‖²"
RATES = (
    Rate("fedwmsam", MEAN_OVER_ROUNDS, "≲ √(L Δ σ_ρ² / (S K R)) + (L Δ / R)(1 + N^{2/3}/S)"),
    Rate("fedavg", MEAN_OVER_ROUNDS, "≤ O(1/√(K R)) + bias terms"),
    Rate("scaffold", MEAN_OVER_ROUNDS, "≤ O(1/(K R) + 1/R + 1/K)"),
    Rate("fedcm", "E‖∇f(x_r)‖²", "≤ O(1/√(K R)) + momentum terms"),
    Rate("fedsam", MEAN_OVER_STEPS, "≤ O(1/√(T E N)) + perturbation terms"),
    Rate("mofedsam", MEAN_OVER_STEPS, "≤ O(1/√(T E N)) + momentum and perturbation terms"),
    Rate("fedlesam", MEAN_OVER_STEPS, "≤ O(1/√(T E N)) + perturbation terms"),
    Rate("fedsmoo", MEAN_OVER_STEPS, "≤ (1/(ζ β T)) (κ_f + 3 β L κ_r/n + 72 β² L² m δ_0/n)"),
)
"""The paper's table of rates, as printed there: not checked against the papers it cites."""


class Property(NamedTuple):
    method: str
    non_iid: str
    bias_control: str
    noise_aware: str


PROPERTIES = (
    Property("fedavg", "no", "no", "no"),
    Property("fedcm", "no", "no", "no"),
    Property("scaffold", "yes", "yes", "no"),
    Property("fedsam", "partial", "no", "yes"),
    Property("mofedsam", "partial", "no", "yes"),
    Property("fedlesam", "yes", "yes", "yes"),
    Property("fedsmoo", "yes", "yes", "yes"),
    Property("fedwmsam", "yes", "yes", "yes"),
)
"""The paper's table of properties, as printed there."""


class LemmaCheck(NamedTuple):
    """An experiment: what is claimed and what was measured."""

    what: str
    claimed: float
    measured: float
    error: float
    """The standard error of what was measured."""


def check_lemma_3(
    clients: int = 20, cohort: int = 5, dimensions: int = 10, draws: int = 20_000, seed: int = 0
) -> list[LemmaCheck]:
    """E‖mean of S sampled v_i‖² = ‖v̄‖² + (N − S)/(S (N − 1)) · (1/N) Σ‖v_i − v̄‖², by sampling."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(clients, dimensions)) + random.normal(size=dimensions)
    centre = vectors.mean(axis=0)
    scatter = float(((vectors - centre) ** 2).sum(axis=1).mean())
    claimed = float(centre @ centre) + (clients - cohort) / (cohort * (clients - 1)) * scatter
    picks = random.permuted(np.tile(np.arange(clients), (draws, 1)), axis=1)[:, :cohort]
    squares = (vectors[picks].mean(axis=1) ** 2).sum(axis=1)
    return [
        LemmaCheck(
            f"{cohort} of {clients} vectors",
            claimed,
            float(squares.mean()),
            standard_error(squares),
        )
    ]


def check_lemma_4(
    smoothness: float = 2.0,
    rho: float = 0.5,
    sigma: float = 1.0,
    dimensions: int = 10,
    draws: int = 4_000,
    seed: int = 0,
    counts: tuple[int, ...] = (1, 10, 100),
) -> list[tuple[LemmaCheck, float]]:
    """The mean of n perturbed stochastic gradients against ∇f(x), on a quadratic where the lemma holds with equality.

    f(x) = ½ xᵀ H x with L the largest eigenvalue of H and δ of length ρ along its eigenvector; ∇F(x; ξ) = H x + ξ with
    E‖ξ‖² = σ². For each n: what the proof takes, (σ² + (L ρ)²)/n, what was measured, and σ²/n + (L ρ)².
    """
    random, found = np.random.default_rng(seed), []
    curvatures = np.linspace(smoothness, 0.1 * smoothness, dimensions)
    x, delta = random.normal(size=dimensions), rho * np.eye(dimensions)[0]
    for count in counts:
        noise = random.normal(scale=sigma / math.sqrt(dimensions), size=(draws, count, dimensions))
        gradients = curvatures * (x + delta) + noise
        squares = ((gradients.mean(axis=1) - curvatures * x) ** 2).sum(axis=1)
        claimed = (sigma**2 + (smoothness * rho) ** 2) / count
        check = LemmaCheck(
            f"mean of {count}", claimed, float(squares.mean()), standard_error(squares)
        )
        found.append((check, sigma**2 / count + (smoothness * rho) ** 2))
    return found


def standard_error(values: FloatArray) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


# Tables


AS_PRINTED = (
    "As the paper prints it; the rates of others were not checked against their own papers."
)


def general_sheets(setting: BoundParameters) -> list[TextTable]:
    """Without a run: the tables, the bound at a setting, the lemmas."""
    return [
        rates_sheet(),
        properties_sheet(),
        *lemma_sheets(),
        bound_sheet(setting, bound(setting)),
    ]


def rates_sheet() -> TextTable:
    return TextTable("Rates of convergence", ("method", "bounded", "by"), RATES, (AS_PRINTED,))


def properties_sheet() -> TextTable:
    header = ("method", "non-IID support", "bias control", "gradient noise aware")
    return TextTable("Properties", header, PROPERTIES, (AS_PRINTED,))


def lemma_sheets() -> list[TextTable]:
    third = tuple((check.what, *figures(check)) for check in check_lemma_3())
    fourth = tuple(
        (check.what, *figures(check), f"{right:.4f}") for check, right in check_lemma_4()
    )
    return [
        TextTable(
            "Lemma 3: the mean of sampled vectors",
            ("sample", "the lemma", "measured", "± error"),
            third,
        ),
        TextTable(
            "Lemma 4 in the proof: perturbed gradients around ∇f(x), L = 2, ρ = 0.5, σ = 1",
            ("gradients", "(σ² + (Lρ)²)/n", "measured", "± error", "σ²/n + (Lρ)²"),
            fourth,
            (
                "For one gradient the lemma holds, here with equality. The proof then divides (Lρ)² by the number of "
                "gradients, as if it were a variance; it is the square of a bias and stays.",
            ),
        ),
    ]


def figures(check: LemmaCheck) -> tuple[str, str, str]:
    return f"{check.claimed:.4f}", f"{check.measured:.4f}", f"{check.error:.4f}"


def bound_sheet(setting: BoundParameters, terms: Bound, measured: float | None = None) -> TextTable:
    rows: list[tuple[str, str]] = [
        ("√(L Δ σ_ρ² / (S K R)), the noise as printed", f"{terms.noise:.4g}"),
        ("(L Δ / R)(1 + N^⅔/S), the rounds", f"{terms.rounds:.4g}"),
        ("the bound as printed", f"{terms.printed:.4g}"),
        ("√(L Δ σ² / (S K R)), the noise without the perturbation", f"{terms.noise_alone:.4g}"),
        ("(L ρ)², the bias of the perturbation", f"{terms.bias:.4g}"),
        ("the bound with the bias kept", f"{terms.with_bias:.4g}"),
    ]
    if measured is not None:
        rows.append(("measured: mean of ‖∇f(x_r)‖² over the kept states", f"{measured:.4g}"))
    values = (
        f"L = {setting.smoothness:.4g}, Δ = {setting.gap:.4g}, σ = {setting.sigma:.4g}, ρ = {setting.rho:g}, "
        f"S = {setting.cohort}, K = {setting.steps}, R = {setting.rounds}, N = {setting.clients}"
    )
    notes = (
        "The theorem holds up to a constant it does not name: only how the terms grow can be compared.",
    )
    return TextTable(f"The bound at {values}", ("term", "value"), tuple(rows), notes)


def run_sheets(label: str, record: Record) -> list[TextTable]:
    """A run's constants, its bound beside what was measured, and the theorem's conditions."""
    setting = BoundParameters(**record["setting"])
    found = bound_sheet(setting, bound(setting), record["measured"])
    points = tuple(point_cells(point) for point in record["points"])
    estimates = TextTable(
        f"Constants along the run: {label}",
        (
            "before round",
            "loss",
            "‖∇f‖²",
            "curvature",
            "of clients, largest",
            "batch variance, largest",
        ),
        points,
        (
            f"Loss and gradient of the whole federation on twice {record['sample']} samples; ‖∇f‖² as the product of "
            "the two gradients, which their noise does not raise, and which may come out below 0 where it is small.",
            "Curvature: largest |eigenvalue| of the Hessian by power iteration. L and σ² are the largest seen, so "
            "lower bounds; Δ is the first loss minus the lowest.",
        ),
    )
    rows = tuple(tuple(condition.values()) for condition in record["conditions"])
    return [
        estimates,
        found,
        TextTable(
            f"Conditions of the theorem: {label}", ("where", "condition", "verdict", "found"), rows
        ),
    ]


def point_cells(point: Record) -> tuple[str, ...]:
    return (
        str(point["round"] + 1),
        f"{point['loss']:.4f}",
        f"{point['squared_gradient']:.4g}",
        f"{point['global_curvature']:.4g}",
        largest(point["client_curvatures"]),
        largest(point["variances"]),
    )


def largest(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):.4g}" if known else "–"


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
THEORY_FILE = "theory.json"
HOLDS, FAILS, NOT_HERE, UNKNOWN = "holds", "fails", "does not apply", "cannot be checked"


def analyse_theory(folder: Path, states: int = STATES, sample: int = SAMPLE) -> Record:
    """Constants, bound, what was measured, and each condition; writes nothing."""
    with deterministic_torch():
        past = ReplayedRun.of(folder)
        if not past.kept():
            raise InputError(
                f"{folder} kept no states, which the constants are estimated from; run it with --set keep_states=10."
            )
        points = [measure_point(past, round, sample) for round in spread_out(past.kept(), states)]
    setting = setting_of(past, points)
    terms = bound(setting)
    return {
        "method": past.config.method,
        "seed": past.config.seed,
        "rounds": len(past.rows),
        "sample": sample,
        "setting": asdict(setting),
        "bound": terms._asdict() | {"printed": terms.printed, "with_bias": terms.with_bias},
        "measured": fmean(point["squared_gradient"] for point in points),
        "conditions": [condition._asdict() for condition in conditions(past, setting, points)],
        "points": points,
    }


def measure_point(past: ReplayedRun, round: int, sample: int) -> Record:
    """All that is measured at one kept state."""
    federation, seed, state = past.federation, past.config.seed, past.state(round)
    federation.task.start_training(state.buffers)
    w, surfaces = (
        state.server["w"],
        [global_surface(federation, key, sample) for key in (seed, seed + 1)],
    )
    (one, loss), (other, again) = (surface.measured(w) for surface in surfaces)
    clients = federation.schedule.cohort(round)[:PROBED]
    own = [local_surface(federation, client, seed, sample) for client in clients]
    return {
        "round": round,
        "loss": (loss + again) / 2,
        # Two samples drawn apart from each other: the product of their gradients is not raised by their noise.
        "squared_gradient": float(torch.dot(one, other)),
        "global_curvature": largest_absolute_eigenvalue(surfaces[0], w),
        "client_curvatures": [largest_absolute_eigenvalue(surface, w) for surface in own],
        "client_squared_gradients": [l2_norm(surface.gradient(w)) ** 2 for surface in own],
        "variances": [batch_variance(federation, state, client) for client in clients],
    }


def largest_absolute_eigenvalue(
    surface: TrainingSurface, w: Tensor, iterations: int = ITERATIONS
) -> float:
    """The largest |eigenvalue| of the Hessian at w, by power iteration on differences of gradients."""
    random = rng.generator(0, "power iteration")
    v = unit(torch.from_numpy(random.standard_normal(w.numel())).to(w), tau=0.0)
    largest = 0.0
    for _ in range(iterations):
        product = (surface.gradient(w + STEP * v) - surface.gradient(w - STEP * v)) / (2 * STEP)
        largest, v = l2_norm(product), unit(product, tau=1e-30)
    return largest


def batch_variance(federation: Federation, state: State, client: int) -> float | None:
    """E‖g_ξ − ∇f_k‖² over mini-batches of the client's round, whole ones only; None if there are less than two."""
    samples = federation.clients[client]
    steps = federation.schedule.steps(state.round, client, len(samples))
    whole = [step for step in steps if len(step.index) == len(steps[0].index)][:BATCHES]
    grad = CountedGradient(federation.task, samples, 0.0)
    gradients = []
    for step in whole:
        grad.start(step)
        gradients.append(grad(state.server["w"]))
    if len(gradients) < 2:
        return None
    return float(torch.stack(gradients).var(dim=0, correction=1).sum())


def setting_of(past: ReplayedRun, points: Sequence[Record]) -> BoundParameters:
    """The largest curvature and variance seen, the run's own numbers for the rest."""
    config, losses = past.config, [point["loss"] for point in points]
    variances = [value for point in points for value in point["variances"] if value is not None]
    curvatures = [
        value
        for point in points
        for value in (point["global_curvature"], *point["client_curvatures"])
    ]
    clients = len(past.federation.clients)
    return BoundParameters(
        smoothness=max(curvatures),
        gap=losses[0] - min(losses),
        sigma=math.sqrt(max(variances, default=0.0)),
        rho=float(getattr(past.federation.method, "rho", 0.0)),
        cohort=round(config.per_round(clients)),
        steps=round(fmean(steps_of(past))),
        rounds=max(len(past.rows), 1),
        clients=clients,
    )


def steps_of(past: ReplayedRun) -> list[int]:
    """Local steps of the first round's clients."""
    federation = past.federation
    return [
        federation.schedule.count(0, k, len(federation.clients[k]))
        for k in federation.schedule.cohort(0)
    ]


class Condition(NamedTuple):
    where: str
    text: str
    verdict: str
    found: str


def conditions(
    past: ReplayedRun, setting: BoundParameters, points: Sequence[Record]
) -> list[Condition]:
    return [*step_conditions(past, setting, points), *shape_conditions(past, setting)]


def step_conditions(
    past: ReplayedRun, setting: BoundParameters, points: Sequence[Record]
) -> Iterator[Condition]:
    """Those on γ, η and α, without the constants that ≲ leaves open; step sizes are those of the first round."""
    L, S, K, N, R = (
        setting.smoothness,
        setting.cohort,
        setting.steps,
        setting.clients,
        setting.rounds,
    )
    local = past.config.lr * K
    gamma = float(getattr(past.federation.method, "global_lr", 1.0)) * local
    variance, G0 = (
        setting.sigma**2 + (L * setting.rho) ** 2,
        fmean(points[0]["client_squared_gradients"]),
    )
    alphas = [row["alpha"] for row in past.rows if "alpha" in row]
    alpha = max(alphas) if alphas else getattr(past.federation.method, "alpha", None)
    height = L * setting.gap

    def at_most(where: str, text: str, left: float, right: Callable[[float], float]) -> Condition:
        if alpha is None:
            return Condition(where, text, NOT_HERE, "the method has no α")
        limit = right(alpha)
        return Condition(
            where, text, HOLDS if left <= limit else FAILS, f"{left:.3g} against {limit:.3g}"
        )

    yield at_most("Lemma 1", "γ L ≤ 1/24", gamma * L, lambda a: 1 / 24)
    yield at_most("Lemma 5", "γ L ≤ 1/(2 α), as printed", gamma * L, lambda a: 1 / (2 * a))
    yield at_most("Lemma 5", "γ L ≤ α/6, as its proof uses", gamma * L, lambda a: a / 6)
    yield at_most("Lemma 6", "η K L ≤ 1/α", local * L, lambda a: 1 / a)
    yield at_most(
        "Lemma 7", "α η K L ≤ 1/(24 K^¼)", (alpha or 0) * local * L, lambda a: 1 / (24 * K**0.25)
    )
    yield at_most("Lemma 7", "η K ≤ 5 γ/(N S)", local, lambda a: 5 * gamma / (N * S))
    yield at_most("Theorem", "γ ≤ α/L", gamma, lambda a: divide_or_inf(a, L))
    yield at_most("Theorem", "α ≤ S/N^⅔", alpha or 0, lambda a: S / N ** (2 / 3))
    yield at_most(
        "Theorem",
        "α ≤ √(L Δ S K)/(σ_ρ² R), as printed",
        alpha or 0,
        lambda a: divide_or_inf((height * S * K) ** 0.5, variance * R),
    )
    yield at_most(
        "Theorem",
        "α ≤ √(L Δ S K/(σ_ρ² R)), as its proof uses",
        alpha or 0,
        lambda a: divide_or_inf(height * S * K, variance * R) ** 0.5,
    )
    yield at_most(
        "Theorem",
        "α ≤ √(L Δ S²)/(G₀ N)",
        alpha or 0,
        lambda a: divide_or_inf((height * S**2) ** 0.5, G0 * N),
    )
    yield at_most(
        "Theorem",
        "η K L ≲ min(1/√S, 1/(α K^¼), √S/N)",
        local * L,
        lambda a: min(1 / S**0.5, 1 / (a * K**0.25), S**0.5 / N),
    )


def divide_or_inf(amount: float, by: float) -> float:
    """A limit that nothing reaches where there is nothing to divide by."""
    return amount / by if by else math.inf


def shape_conditions(past: ReplayedRun, setting: BoundParameters) -> Iterator[Condition]:
    """Those on what the algorithm does."""
    config, method = past.config, past.federation.method
    alphas = {row["alpha"] for row in past.rows if "alpha" in row}
    steps = set(steps_of(past))

    def is_so(where: str, text: str, so: bool, found: str) -> Condition:
        return Condition(where, text, HOLDS if so else FAILS, found)

    yield Condition(
        "Assumption 1",
        "every f_i is L-smooth",
        UNKNOWN,
        f"largest curvature seen: {setting.smoothness:.3g}; networks with ReLU have kinks",
    )
    yield Condition(
        "Assumption 2",
        "mini-batch gradients have variance ≤ σ²",
        UNKNOWN,
        f"largest seen: {setting.sigma**2:.3g}",
    )
    yield is_so("Theorem", "its method", method.name == "fedwmsam", method.name)
    if alphas:
        yield is_so(
            "Theorem",
            "α is one number",
            len(alphas) == 1,
            f"{min(alphas):.3g} to {max(alphas):.3g}",
        )
    yield is_so(
        "Theorem",
        "the step size is one number",
        config.lr_decay == 1,
        f"lr_decay {config.lr_decay:g}",
    )
    if method.name == "fedwmsam":
        rule = getattr(method, "correction", "")
        yield is_so("Theorem", "c_i starts as a mini-batch gradient", False, "it starts as zero")
        yield is_so(
            "Lemma 7",
            "c_i is the mean local gradient",
            rule == "mean_gradient",
            f"correction {rule}",
        )
    clipped = "no clip" if config.clip_norm is None else f"clip_norm {config.clip_norm:g}"
    decayed = f"weight_decay {config.weight_decay:g}, mode {config.weight_decay_mode}"
    plain = config.weight_decay == 0 or config.weight_decay_mode == "objective"
    yield is_so("Algorithm", "no clipping", config.clip_norm is None, clipped)
    yield is_so("Algorithm", "no weight decay beside the gradient", plain, decayed)
    yield is_so(
        "Lemma 3",
        "S clients a round, drawn without replacement",
        config.sampling == "fixed",
        config.sampling,
    )
    yield is_so(
        "Algorithm", "all clients take K steps", len(steps) == 1, f"{min(steps)} to {max(steps)}"
    )
    bias = (setting.smoothness * setting.rho) ** 2
    yield is_so(
        "Lemma 2", "gradients have no common bias: (L ρ)² = 0", bias == 0, f"(L ρ)² = {bias:.3g}"
    )


# Of saved runs


def run_theory(
    places: Sequence[Path],
    states: int,
    sample: int,
    setting: BoundParameters,
    say: Callable[[str], None],
) -> tuple[list[TextTable], list[Path]]:
    sheets, written = [] if places else general_sheets(setting), []
    for run in find_readable_runs(places) if places else []:
        say(f"Measuring {run.path} …")
        found = analyse_theory(run.path, states, sample)
        written.append(save_analysis(run.path, THEORY_FILE, found))
        sheets += run_sheets(run.path.name, found)
    return sheets, written
