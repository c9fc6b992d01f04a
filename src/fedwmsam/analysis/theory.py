"""The FedWMSAM paper's theorem as numbers: its bound, its tables, two of its lemmas as experiments.

The theorem (its Appendix A) bounds (1/R) Σ_r E‖∇f(x_r)‖², up to a constant it does not name, by

    √(L Δ σ_ρ² / (S K R))  +  (L Δ / R) · (1 + N^{2/3}/S),        σ_ρ² = σ² + (L ρ)²

with L the smoothness, Δ = f(x_0) − f*, σ² the variance of a mini-batch gradient, ρ the radius of
the perturbation, S of N clients per round, K local steps and R rounds. Its Lemma 4,
E‖∇F(x + δ; ξ) − ∇f_i(x)‖² ≤ σ² + (L ρ)², is right. But (L ρ)² is there the square of a bias, the
same in every gradient: the mean of S K of them keeps it. The proof takes it for a variance and
divides it by S K. What can be kept is √(L Δ σ² / (S K R)) + (L ρ)² + …: `Bound` has both forms.

For a run with kept states, `analyse_theory` estimates these constants, compares the bound with the
gradients that were measured, and checks each condition of the theorem.
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
from fedwmsam.experiment.trust import UNTRUSTED, Trust
from fedwmsam.methods.vectors import unit
from fedwmsam.recording.training_surface import (
    TrainingSurface,
    global_surface,
    l2_norm,
    local_surface,
)
from fedwmsam.report.text_tables import TextTable
from fedwmsam.statistics import FloatArray
from fedwmsam.training.local import CountingGradient, LocalRules
from fedwmsam.training.task import deterministic_torch


@dataclass(frozen=True)
class BoundParameters:
    """The constants and settings that the theorem's bound depends on."""

    smoothness: float
    """L, the largest curvature."""
    gap: float
    """Δ = f(x_0) − f*."""
    sigma: float
    """σ, the standard deviation of a mini-batch gradient."""
    rho: float
    """ρ, the radius of the perturbation."""
    cohort: int
    """S, clients per round."""
    steps: int
    """K, local steps."""
    rounds: int
    """R, rounds."""
    clients: int
    """N, clients in all."""

    def __post_init__(self) -> None:
        """Raise InputError if a value is out of range."""
        for name in ("smoothness", "gap", "sigma", "rho"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(f"{name} must be a number of at least 0, not {value!r}.")
        for name in ("cohort", "steps", "rounds", "clients"):
            value = getattr(self, name)
            if value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}.")
        if self.cohort > self.clients:
            raise InputError(f"cohort is {self.cohort}, but there are only {self.clients} clients.")


class Bound(NamedTuple):
    """The terms of the theorem's bound, without the constant in front."""

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
        """Return the bound as the paper prints it."""
        return self.noise + self.rounds

    @property
    def with_bias(self) -> float:
        """Return the bound with (L ρ)² kept as a bias."""
        return self.noise_alone + self.rounds + self.bias


def compute_bound(parameters: BoundParameters) -> Bound:
    """Return the terms of the theorem's bound at these parameters."""
    height = parameters.smoothness * parameters.gap
    work = parameters.cohort * parameters.steps * parameters.rounds
    bias = (parameters.smoothness * parameters.rho) ** 2
    return Bound(
        noise=math.sqrt(height * (parameters.sigma**2 + bias) / work),
        rounds=height / parameters.rounds * (1 + parameters.clients ** (2 / 3) / parameters.cohort),
        noise_alone=math.sqrt(height * parameters.sigma**2 / work),
        bias=bias,
    )


class Rate(NamedTuple):
    """A method's rate of convergence: a row of the paper's table of rates."""

    method: str
    left: str
    """The quantity that is bounded."""
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
    """What a method's analysis covers: a row of the paper's table of properties."""

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
    """The outcome of an experiment on a lemma: what it claims and what was measured."""

    description: str
    claimed: float
    measured: float
    error: float
    """Standard error of the measured value."""


def check_lemma_3(
    clients: int = 20, cohort: int = 5, dimensions: int = 10, draws: int = 20_000, seed: int = 0
) -> list[LemmaCheck]:
    """Check Lemma 3 by sampling S of N random vectors v_i without replacement.

    It says E‖mean of the sampled v_i‖² = ‖v̄‖² + (N − S)/(S (N − 1)) · (1/N) Σ‖v_i − v̄‖².
    """
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(clients, dimensions)) + random.normal(size=dimensions)
    centre = vectors.mean(axis=0)
    scatter = float(((vectors - centre) ** 2).sum(axis=1).mean())
    claimed = float(centre @ centre) + (clients - cohort) / (cohort * (clients - 1)) * scatter
    indices = random.permuted(np.tile(np.arange(clients), (draws, 1)), axis=1)[:, :cohort]
    squares = (vectors[indices].mean(axis=1) ** 2).sum(axis=1)
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
    """Check Lemma 4 for the mean of n perturbed stochastic gradients, for each n of `counts`.

    The loss is a quadratic for which the lemma holds with equality: f(x) = ½ xᵀ H x with L the
    largest eigenvalue of H, δ of length ρ along its eigenvector, and ∇F(x; ξ) = H x + ξ with
    E‖ξ‖² = σ². Return for each n the check of what the proof takes, (σ² + (L ρ)²)/n, and
    σ²/n + (L ρ)².
    """
    random = np.random.default_rng(seed)
    curvatures = np.linspace(smoothness, 0.1 * smoothness, dimensions)
    x = random.normal(size=dimensions)
    delta = rho * np.eye(dimensions)[0]
    checks = []
    for count in counts:
        noise = random.normal(scale=sigma / math.sqrt(dimensions), size=(draws, count, dimensions))
        gradients = curvatures * (x + delta) + noise
        squares = ((gradients.mean(axis=1) - curvatures * x) ** 2).sum(axis=1)
        claimed = (sigma**2 + (smoothness * rho) ** 2) / count
        check = LemmaCheck(
            f"mean of {count}", claimed, float(squares.mean()), standard_error(squares)
        )
        checks.append((check, sigma**2 / count + (smoothness * rho) ** 2))
    return checks


def standard_error(values: FloatArray) -> float:
    """Return the standard error of the mean of independent values."""
    return float(values.std(ddof=1)) / math.sqrt(len(values))


# Tables


AS_PRINTED = (
    "As the paper prints it; the rates of others were not checked against their own papers."
)
"""Note under the tables that repeat the paper's."""


def general_tables(parameters: BoundParameters) -> list[TextTable]:
    """Return the tables that need no run: the paper's, the lemmas', and the bound's terms."""
    return [
        rates_table(),
        properties_table(),
        *lemma_tables(),
        bound_table(parameters, compute_bound(parameters)),
    ]


def rates_table() -> TextTable:
    """Return the paper's table of convergence rates."""
    return TextTable("Rates of convergence", ("method", "bounded", "by"), RATES, (AS_PRINTED,))


def properties_table() -> TextTable:
    """Return the paper's table of properties."""
    header = ("method", "non-IID support", "bias control", "gradient noise aware")
    return TextTable("Properties", header, PROPERTIES, (AS_PRINTED,))


def lemma_tables() -> list[TextTable]:
    """Carry out the experiments on Lemmas 3 and 4 and return a table of each."""
    lemma_3 = [(check.description, *check_cells(check)) for check in check_lemma_3()]
    lemma_4 = []
    for check, with_bias in check_lemma_4():
        lemma_4.append((check.description, *check_cells(check), f"{with_bias:.4f}"))
    note = (
        "For one gradient the lemma holds, here with equality. The proof then divides (Lρ)² by "
        "the number of gradients, as if it were a variance; it is the square of a bias and stays."
    )
    return [
        TextTable(
            "Lemma 3: the mean of sampled vectors",
            ("sample", "the lemma", "measured", "± error"),
            tuple(lemma_3),
        ),
        TextTable(
            "Lemma 4 in the proof: perturbed gradients around ∇f(x), L = 2, ρ = 0.5, σ = 1",
            ("gradients", "(σ² + (Lρ)²)/n", "measured", "± error", "σ²/n + (Lρ)²"),
            tuple(lemma_4),
            (note,),
        ),
    ]


def check_cells(check: LemmaCheck) -> tuple[str, str, str]:
    """Return what the lemma claims, what was measured and its error as text."""
    return f"{check.claimed:.4f}", f"{check.measured:.4f}", f"{check.error:.4f}"


def bound_table(
    parameters: BoundParameters, terms: Bound, measured: float | None = None
) -> TextTable:
    """Return a table of the bound's terms, with the mean squared gradient if it was measured."""
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
        f"L = {parameters.smoothness:.4g}, Δ = {parameters.gap:.4g}, "
        f"σ = {parameters.sigma:.4g}, ρ = {parameters.rho:g}, "
        f"S = {parameters.cohort}, K = {parameters.steps}, "
        f"R = {parameters.rounds}, N = {parameters.clients}"
    )
    note = (
        "The theorem holds up to a constant it does not name: "
        "only how the terms grow can be compared."
    )
    return TextTable(f"The bound at {values}", ("term", "value"), tuple(rows), (note,))


def run_tables(label: str, record: Record) -> list[TextTable]:
    """Return the tables of a run's record: its constants, its bound, the theorem's conditions."""
    parameters = BoundParameters(**record["setting"])
    conditions = [tuple(condition.values()) for condition in record["conditions"]]
    return [
        constants_table(label, record),
        bound_table(parameters, compute_bound(parameters), record["measured"]),
        TextTable(
            f"Conditions of the theorem: {label}",
            ("where", "condition", "verdict", "found"),
            tuple(conditions),
        ),
    ]


def constants_table(label: str, record: Record) -> TextTable:
    """Return a table of what was measured at each kept state of a run."""
    header = (
        "before round",
        "loss",
        "‖∇f‖²",
        "curvature",
        "of clients, largest",
        "batch variance, largest",
    )
    notes = (
        f"Loss and gradient of the whole federation on twice {record['sample']} samples; ‖∇f‖² as "
        "the product of the two gradients, which their noise does not raise, and which may come "
        "out below 0 where it is small.",
        "Curvature: largest |eigenvalue| of the Hessian by power iteration. L and σ² are the "
        "largest seen, so lower bounds; Δ is the first loss minus the lowest.",
    )
    rows = tuple(point_cells(point) for point in record["points"])
    return TextTable(f"Constants along the run: {label}", header, rows, notes)


def point_cells(point: Record) -> tuple[str, ...]:
    """Return what was measured at a kept state as text."""
    return (
        str(point["round"] + 1),
        f"{point['loss']:.4f}",
        f"{point['squared_gradient']:.4g}",
        f"{point['global_curvature']:.4g}",
        largest_cell(point["client_curvatures"]),
        largest_cell(point["variances"]),
    )


def largest_cell(values: Sequence[float | None]) -> str:
    """Return the largest value as text, a dash if there is none."""
    available = [value for value in values if value is not None]
    return f"{max(available):.4g}" if available else "–"


# Constants and conditions of a run


SAMPLE = 3000
"""Default number of samples that losses and gradients are computed on."""
STATES = 10
"""Default number of kept states that are measured."""
ITERATIONS = 10
"""Steps of the power iteration."""
PROBED = 3
"""Clients of each kept state's cohort that are measured."""
BATCHES = 20
"""Most mini-batches of a client from which the variance of its gradients is estimated."""
STEP = 1e-2
"""Step of the finite difference that gives a Hessian-vector product: about SAM's radius."""
THEORY_FILE = "theory.json"
"""File with a run's constants, bound and conditions."""
HOLDS = "holds"
FAILS = "fails"
NOT_HERE = "does not apply"
UNKNOWN = "cannot be checked"


def analyse_theory(
    folder: Path, states: int = STATES, sample: int = SAMPLE, trust: Trust = UNTRUSTED
) -> Record:
    """Return a run's constants, its bound, what was measured and each condition, as a record.

    It writes nothing. Raise InputError if the run kept no states.
    """
    with deterministic_torch():
        run = ReplayedRun.from_folder(folder, trust)
        kept = run.kept_rounds()
        if not kept:
            raise InputError(
                f"{folder} kept no states, which the constants are estimated from; "
                "run it with --set keep_states=10."
            )
        points = [measure_point(run, round, sample) for round in spread_out(kept, states)]
    parameters = estimate_parameters(run, points)
    terms = compute_bound(parameters)
    conditions = check_conditions(run, parameters, points)
    return {
        "method": run.config.method,
        "seed": run.config.seed,
        "rounds": len(run.round_records),
        "sample": sample,
        "setting": asdict(parameters),
        "bound": terms._asdict() | {"printed": terms.printed, "with_bias": terms.with_bias},
        "measured": fmean(point["squared_gradient"] for point in points),
        "conditions": [condition._asdict() for condition in conditions],
        "points": points,
    }


def measure_point(run: ReplayedRun, round: int, sample: int) -> Record:
    """Measure loss, gradients, curvature and gradient variance at one kept state.

    The squared norm of the gradient is the product of two gradients on samples that were drawn
    independently, because the noise of a single sample would raise it.
    """
    federation = run.federation
    seed = run.config.seed
    state = run.load_state(round)
    federation.task.start_training(state.buffers)
    w = state.server["w"]
    surface = global_surface(federation, seed, sample)
    gradient, loss = surface.gradient_and_loss(w)
    other_gradient, other_loss = global_surface(federation, seed + 1, sample).gradient_and_loss(w)
    clients = federation.schedule.cohort(round)[:PROBED]
    client_surfaces = [local_surface(federation, client, seed, sample) for client in clients]
    return {
        "round": round,
        "loss": (loss + other_loss) / 2,
        "squared_gradient": float(torch.dot(gradient, other_gradient)),
        "global_curvature": largest_absolute_eigenvalue(surface, w),
        "client_curvatures": [largest_absolute_eigenvalue(local, w) for local in client_surfaces],
        "client_squared_gradients": [l2_norm(local.gradient(w)) ** 2 for local in client_surfaces],
        "variances": [batch_variance(federation, state, client) for client in clients],
    }


def largest_absolute_eigenvalue(
    surface: TrainingSurface, w: Tensor, iterations: int = ITERATIONS
) -> float:
    """Estimate the largest |eigenvalue| of the Hessian at w by power iteration.

    Hessian-vector products are finite differences of gradients.
    """
    random = rng.generator(0, "power iteration")
    v = unit(torch.from_numpy(random.standard_normal(w.numel())).to(w), tau=0.0)
    eigenvalue = 0.0
    for _ in range(iterations):
        product = (surface.gradient(w + STEP * v) - surface.gradient(w - STEP * v)) / (2 * STEP)
        eigenvalue = l2_norm(product)
        v = unit(product, tau=1e-30)
    return eigenvalue


def batch_variance(federation: Federation, state: State, client: int) -> float | None:
    """Estimate E‖g_ξ − ∇f_k‖² from the mini-batches of a client's next round.

    Only full batches are used; return None if there are less than two.
    """
    samples = federation.clients[client]
    steps = federation.schedule.steps(state.round, client, len(samples))
    full = [step for step in steps if len(step.index) == len(steps[0].index)][:BATCHES]
    grad = CountingGradient(federation.task, samples, LocalRules(weight_decay=0.0), 1)
    gradients = []
    for step in full:
        grad.load_batch(step)
        gradients.append(grad(state.server["w"]))
    if len(gradients) < 2:
        return None
    return float(torch.stack(gradients).var(dim=0, correction=1).sum())


def estimate_parameters(run: ReplayedRun, points: Sequence[Record]) -> BoundParameters:
    """Return the bound's parameters for a run.

    Smoothness and variance are the largest that were measured; the rest are the run's settings.
    """
    losses = [point["loss"] for point in points]
    curvatures: list[float] = []
    variances: list[float] = []
    for point in points:
        curvatures += [point["global_curvature"], *point["client_curvatures"]]
        variances += [value for value in point["variances"] if value is not None]
    clients = len(run.federation.clients)
    return BoundParameters(
        smoothness=max(curvatures),
        gap=losses[0] - min(losses),
        sigma=math.sqrt(max(variances, default=0.0)),
        rho=float(getattr(run.federation.method, "rho", 0.0)),
        cohort=round(run.config.cohort_size(clients)),
        steps=round(fmean(local_steps(run))),
        rounds=max(len(run.round_records), 1),
        clients=clients,
    )


def local_steps(run: ReplayedRun) -> list[int]:
    """Return the number of local steps of each client of the first round."""
    federation = run.federation
    return [
        federation.schedule.step_count(0, k, len(federation.clients[k]))
        for k in federation.schedule.cohort(0)
    ]


class Condition(NamedTuple):
    """A condition of the theorem, and whether a run meets it."""

    where: str
    """The lemma, assumption or theorem that needs it."""
    text: str
    verdict: str
    """`HOLDS`, `FAILS`, `NOT_HERE` or `UNKNOWN`."""
    found: str
    """What the run has instead, in words."""


def check_conditions(
    run: ReplayedRun, parameters: BoundParameters, points: Sequence[Record]
) -> list[Condition]:
    """Check every condition of the theorem for a run."""
    return [
        *check_step_sizes(run, parameters, points),
        *check_algorithm(run, parameters),
    ]


def check_step_sizes(
    run: ReplayedRun, parameters: BoundParameters, points: Sequence[Record]
) -> Iterator[Condition]:
    """Yield the conditions on γ, η and α; step sizes are those of the first round.

    A condition must hold for the smallest and the largest α of the run. Where the paper
    writes ≲, an unnamed constant factor is hidden: it is taken as 1 here.
    """
    L = parameters.smoothness
    S = parameters.cohort
    K = parameters.steps
    N = parameters.clients
    R = parameters.rounds
    method = run.federation.method
    local = run.config.lr * K
    gamma = float(getattr(method, "global_lr", 1.0)) * local
    variance = parameters.sigma**2 + (L * parameters.rho) ** 2
    G0 = fmean(points[0]["client_squared_gradients"])
    height = L * parameters.gap
    alphas = [record["alpha"] for record in run.round_records if "alpha" in record]
    if not alphas and hasattr(method, "alpha"):
        alphas = [method.alpha]
    alpha = max(alphas, default=0.0)

    def at_most(where: str, text: str, left: float, right: Callable[[float], float]) -> Condition:
        if not alphas:
            return Condition(where, text, NOT_HERE, "the method has no α")
        limit = min(right(min(alphas)), right(max(alphas)))
        verdict = HOLDS if left <= limit else FAILS
        return Condition(where, text, verdict, f"{left:.3g} against {limit:.3g}")

    yield at_most("Lemma 1", "γ L ≤ 1/24", gamma * L, lambda a: 1 / 24)
    yield at_most("Lemma 5", "γ L ≤ 1/(2 α), as printed", gamma * L, lambda a: 1 / (2 * a))
    yield at_most("Lemma 5", "γ L ≤ α/6, as its proof uses", gamma * L, lambda a: a / 6)
    yield at_most("Lemmas 6, 7", "γ L ≤ √(1/(2 α))", gamma * L, lambda a: (1 / (2 * a)) ** 0.5)
    yield at_most("Lemmas 6, 7", "η K L ≤ 1/α", local * L, lambda a: 1 / a)
    yield at_most(
        "Lemma 7", "α η K L ≤ 1/(24 K^¼)", alpha * local * L, lambda a: 1 / (24 * K**0.25)
    )
    yield at_most("Lemma 7", "η K ≤ 5 γ/(N S)", local, lambda a: 5 * gamma / (N * S))
    yield at_most("Theorem", "γ ≤ α/L", gamma, lambda a: divide_or_inf(a, L))
    yield at_most("Theorem", "α ≤ S/N^⅔", alpha, lambda a: S / N ** (2 / 3))
    yield at_most(
        "Theorem",
        "α ≤ √(L Δ S K)/(σ_ρ² R), as printed",
        alpha,
        lambda a: divide_or_inf((height * S * K) ** 0.5, variance * R),
    )
    yield at_most(
        "Theorem",
        "α ≤ √(L Δ S K/(σ_ρ² R)), as its proof uses",
        alpha,
        lambda a: divide_or_inf(height * S * K, variance * R) ** 0.5,
    )
    yield at_most(
        "Theorem",
        "α ≤ √(L Δ S²)/(G₀ N), as printed",
        alpha,
        lambda a: divide_or_inf((height * S**2) ** 0.5, G0 * N),
    )
    yield at_most(
        "Theorem",
        "α ≤ √(L Δ S²/(G₀ N)), as its units ask",
        alpha,
        lambda a: divide_or_inf(height * S**2, G0 * N) ** 0.5,
    )
    yield at_most(
        "Theorem",
        "η K L ≲ min(1/√S, 1/(α K^¼), √S/N)",
        local * L,
        lambda a: min(1 / S**0.5, 1 / (a * K**0.25), S**0.5 / N),
    )


def divide_or_inf(numerator: float, denominator: float) -> float:
    """Return the quotient, or infinity if the denominator is 0: a limit that nothing exceeds."""
    return numerator / denominator if denominator else math.inf


def check_algorithm(run: ReplayedRun, parameters: BoundParameters) -> Iterator[Condition]:
    """Yield the assumptions, and the conditions on what the algorithm does."""
    config = run.config
    method = run.federation.method
    alphas = {record["alpha"] for record in run.round_records if "alpha" in record}
    steps = set(local_steps(run))

    def judge(where: str, text: str, is_met: bool, found: str) -> Condition:
        return Condition(where, text, HOLDS if is_met else FAILS, found)

    yield Condition(
        "Assumption 1",
        "every f_i is L-smooth",
        UNKNOWN,
        f"largest curvature seen: {parameters.smoothness:.3g}; networks with ReLU have kinks",
    )
    yield Condition(
        "Assumption 2",
        "mini-batch gradients have variance ≤ σ²",
        UNKNOWN,
        f"largest seen: {parameters.sigma**2:.3g}",
    )
    yield judge("Theorem", "its method", method.name == "fedwmsam", method.name)
    if alphas:
        yield judge(
            "Theorem",
            "α is one number",
            len(alphas) == 1,
            f"{min(alphas):.3g} to {max(alphas):.3g}",
        )
    yield judge(
        "Theorem",
        "the step size is one number",
        config.lr_decay == 1,
        f"lr_decay {config.lr_decay:g}",
    )
    if method.name == "fedwmsam":
        rule = getattr(method, "correction", "")
        yield judge("Theorem", "c_i starts as a mini-batch gradient", False, "it starts as zero")
        yield judge(
            "Lemma 7",
            "c_i is the mean local gradient",
            rule == "mean_gradient",
            f"correction {rule}",
        )
    clipped = "no clip" if config.clip_norm is None else f"clip_norm {config.clip_norm:g}"
    decayed = f"weight_decay {config.weight_decay:g}, mode {config.weight_decay_mode}"
    plain = config.weight_decay == 0 or config.weight_decay_mode == "objective"
    yield judge("Algorithm", "no clipping", config.clip_norm is None, clipped)
    yield judge("Algorithm", "no weight decay beside the gradient", plain, decayed)
    yield judge(
        "Lemma 3",
        "S clients a round, drawn without replacement",
        config.sampling == "fixed",
        config.sampling,
    )
    yield judge(
        "Algorithm", "all clients take K steps", len(steps) == 1, f"{min(steps)} to {max(steps)}"
    )
    bias = (parameters.smoothness * parameters.rho) ** 2
    yield judge(
        "Lemma 2", "gradients have no common bias: (L ρ)² = 0", bias == 0, f"(L ρ)² = {bias:.3g}"
    )


# Theory of saved runs


def run_theory(
    folders: Sequence[Path],
    states: int,
    sample: int,
    parameters: BoundParameters,
    report_progress: Callable[[str], None],
    trust: Trust = UNTRUSTED,
) -> tuple[list[TextTable], list[Path]]:
    """Analyse the runs in these folders one by one; return their tables and the files written.

    Without folders, return the tables that need no run, with the bound at these parameters.
    """
    if not folders:
        return general_tables(parameters), []
    tables: list[TextTable] = []
    written = []
    for run in find_readable_runs(folders):
        report_progress(f"Measuring {run.path} …")
        record = analyse_theory(run.path, states, sample, trust)
        written.append(save_analysis(run.path, THEORY_FILE, record))
        tables += run_tables(run.path.name, record)
    return tables, written
