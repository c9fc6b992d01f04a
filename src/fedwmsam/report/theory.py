"""The paper's theory as tables: what it prints, what its lemmas give when tried, and a run beside it."""

from collections.abc import Sequence

from fedwmsam.analysis.theory import PROPERTIES, RATES, Bound, Check, Setting, bound, fourth_lemma, third_lemma
from fedwmsam.engine.records import Record
from fedwmsam.report.sheets import Sheet

AS_PRINTED = "As the paper prints it; the rates of others were not checked against their own papers."


def general_sheets(setting: Setting) -> list[Sheet]:
    """Without a run: the tables, the bound at a setting, the lemmas."""
    return [rates_sheet(), properties_sheet(), *lemma_sheets(), bound_sheet(setting, bound(setting))]


def rates_sheet() -> Sheet:
    return Sheet("Rates of convergence", ("method", "bounded", "by"), RATES, (AS_PRINTED,))


def properties_sheet() -> Sheet:
    header = ("method", "non-IID support", "bias control", "gradient noise aware")
    return Sheet("Properties", header, PROPERTIES, (AS_PRINTED,))


def lemma_sheets() -> list[Sheet]:
    third = tuple((check.what, *figures(check)) for check in third_lemma())
    fourth = tuple((check.what, *figures(check), f"{right:.4f}") for check, right in fourth_lemma())
    return [
        Sheet("Lemma 3: the mean of sampled vectors", ("sample", "the lemma", "measured", "± error"), third),
        Sheet(
            "Lemma 4 in the proof: perturbed gradients around ∇f(x), L = 2, ρ = 0.5, σ = 1",
            ("gradients", "(σ² + (Lρ)²)/n", "measured", "± error", "σ²/n + (Lρ)²"),
            fourth,
            (
                "For one gradient the lemma holds, here with equality. The proof then divides (Lρ)² by the number of "
                "gradients, as if it were a variance; it is the square of a bias and stays.",
            ),
        ),
    ]


def figures(check: Check) -> tuple[str, str, str]:
    return f"{check.claimed:.4f}", f"{check.measured:.4f}", f"{check.error:.4f}"


def bound_sheet(setting: Setting, terms: Bound, measured: float | None = None) -> Sheet:
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
    notes = ("The theorem holds up to a constant it does not name: only how the terms grow can be compared.",)
    return Sheet(f"The bound at {values}", ("term", "value"), tuple(rows), notes)


def run_sheets(label: str, record: Record) -> list[Sheet]:
    """A run's constants, its bound beside what was measured, and the theorem's conditions."""
    setting = Setting(**record["setting"])
    found = bound_sheet(setting, bound(setting), record["measured"])
    points = tuple(point_cells(point) for point in record["points"])
    estimates = Sheet(
        f"Constants along the run: {label}",
        ("before round", "loss", "‖∇f‖²", "curvature", "of clients, largest", "batch variance, largest"),
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
        Sheet(f"Conditions of the theorem: {label}", ("where", "condition", "verdict", "found"), rows),
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
