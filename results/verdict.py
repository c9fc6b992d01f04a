"""The paper's claims and what the kept runs say of them: the first table of docs/results.

A claim holds where every 95% interval is on its side of no difference, it fails where every one is
on the other side, and else it is open. "So far" means that not all planned seeds are there yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tuned
from eight_seeds import EIGHT_SEEDS, RIVALS
from fresh_seeds import Rows, complete_rows, estimate_spans
from paired import (
    AVERAGED,
    Estimate,
    alignment,
    cpu_seconds,
    difference,
    estimate,
    format_estimate,
    format_interval,
    load_rows,
    noise,
    ratio,
    top_eigenvalue,
)
from sections import PageSection, rounds_to

from fedwmsam.report.summary import ResultRow
from fedwmsam.report.text_tables import MISSING, TextTable

PUBLISHED = "fashion-mnist-seeds.toml"
OBJECTIVE = "fedwmsam weight_decay_mode=objective"
PRINTED = "fedwmsam"
"""The row of candidates.toml with the perturbation as printed."""
OPEN = (
    ("SAM, momentum and adaptive weight each add accuracy", "Table 5, one seed: ablation"),
    ("ρ = 0.01 and λ = 0.01 are best", "Tables 6 and 9, one seed: ablation"),
    ("it leads on CIFAR-10 and CIFAR-100, with ResNet-18", "not run"),
)
"""Claims that no run or one seed speaks of."""


@dataclass(frozen=True)
class Claim:
    """A claim, what was measured of it, and on which side of no difference it would be true."""

    text: str
    measured: str
    estimates: Sequence[Estimate]
    """The first of them is printed; all of them decide."""
    seeds: str
    """The seeds, as a list."""
    is_larger_better: bool = True
    digits: int = 4
    is_interim: bool = False
    """Whether runs of more seeds are planned."""

    @property
    def verdict(self) -> str:
        """Return holds, fails or open."""
        is_above = all(value.is_above for value in self.estimates)
        is_below = all(value.is_below for value in self.estimates)
        if not is_above and not is_below:
            return "open"
        word = "holds" if is_above == self.is_larger_better else "fails"
        return f"{word} so far" if self.is_interim else word

    def cells(self) -> tuple[str, ...]:
        """Return the row of the claim."""
        shown = self.estimates[0]
        effect = format_estimate(shown, self.digits)
        interval = format_interval(shown, self.digits)
        return self.text, self.verdict, self.measured, effect, interval, self.seeds


def list_seeds(row: ResultRow) -> str:
    """Return the seeds of a row as text."""
    return ", ".join(map(str, row.seeds))


def nearest_rival(rows: Rows, ours: str, end: str) -> tuple[str, list[Estimate]]:
    """Return the rival that ours leads least, and the differences to all, its own ones first."""
    by_rival = {rival: estimate_spans(rows[ours], rows[f"{rival}{end}"]) for rival in RIVALS}
    ordered = sorted(RIVALS, key=lambda rival: by_rival[rival][0].mean)
    estimates = []
    for rival in ordered:
        estimates += by_rival[rival]
    return ordered[0], estimates


def tuned_row(runs: Path, method: str) -> ResultRow:
    """Return the runs of a method at the step size that was chosen on validation data."""
    step = tuned.chosen_steps()[method]
    rows = load_rows(runs, tuned.STEP_PLAN).values()
    return next(
        row
        for row in rows
        if row.method == method and row.config["lr"] == step and not row.is_averaged_model
    )


def accuracy_claims(runs: Path) -> list[Claim]:
    """Return the claims on accuracy."""
    published = load_rows(runs, PUBLISHED)
    spans = estimate_spans(published["fedwmsam"], published["scaffold"])
    text = "FedWMSAM is the most accurate"
    claims = [
        Claim(
            f"{text}, settings as published",
            "minus SCAFFOLD, last 50",
            spans,
            list_seeds(published["fedwmsam"]),
        )
    ]
    rows = complete_rows(EIGHT_SEEDS, runs)
    for setting, end in (("decay in the objective", ""), ("all models averaged alike", AVERAGED)):
        rival, estimates = nearest_rival(rows, f"fedwmsam{end}", end)
        measured = f"minus the nearest of five, {rival}, last 50"
        claims.append(
            Claim(
                f"{text}, {setting}",
                measured,
                estimates,
                list_seeds(rows["fedwmsam"]),
                is_interim=not EIGHT_SEEDS.is_complete(runs),
            )
        )
    return claims


def speed_claims(runs: Path) -> list[Claim]:
    """Return the claims on early rounds and cost."""
    rows = complete_rows(EIGHT_SEEDS, runs)
    claims = []
    for rival, name, target in (
        ("fedavg", "FedAvg", 0.8),
        ("scaffold", "SCAFFOLD", 0.8),
        ("fedavg", "FedAvg", 0.84),
        ("scaffold", "SCAFFOLD", 0.84),
    ):
        value = difference(rows["fedwmsam"], rows[rival], rounds_to(target))
        measured = f"rounds to a mean of {target:g}, minus {name}'s"
        claims.append(fresh_claim(runs, "it is fast", measured, value))
    cpu = ratio(rows["fedwmsam"], rows["fedsmoo"], cpu_seconds)
    measured = "CPU time of a round, over FedSMOO's (two backprops)"
    claims.append(fresh_claim(runs, "SAM costs one backprop", measured, cpu))
    return claims


def fresh_claim(runs: Path, text: str, measured: str, value: Estimate) -> Claim:
    """Return a claim that something is smaller with FedWMSAM, on the fresh seeds."""
    seeds = list_seeds(complete_rows(EIGHT_SEEDS, runs)["fedwmsam"])
    is_interim = not EIGHT_SEEDS.is_complete(runs)
    return Claim(text, measured, [value], seeds, False, digits=1, is_interim=is_interim)


def inside_claims(runs: Path) -> list[Claim]:
    """Return the claims on flatness, alignment and oscillation."""
    rows = complete_rows(EIGHT_SEEDS, runs)
    published = load_rows(runs, PUBLISHED)
    printed = load_rows(runs, "candidates.toml")[PRINTED]
    aligned = difference(published[OBJECTIVE], published["fedsam"], alignment)
    cosines = estimate([alignment(score.run) for score in printed.scores])
    rivals = (("fedavg", "FedAvg"), ("scaffold", "SCAFFOLD"))
    claims = []
    for rival, name in rivals:
        value = ratio(rows["fedwmsam"], rows[rival], top_eigenvalue)
        measured = f"λ₁ over {name}'s, one step size"
        claims.append(fresh_claim(runs, "it leads to flat models", measured, value))
    ours = tuned_row(runs, "fedwmsam")
    for rival, name in rivals:
        value = ratio(ours, tuned_row(runs, rival), top_eigenvalue)
        measured = f"λ₁ over {name}'s, each at its own step, 150 rounds"
        claims.append(Claim("it leads to flat models", measured, [value], list_seeds(ours), False))
    claims += [
        Claim(
            "ε climbs the federation's loss, our default reading",
            "cosine, decay in the objective, minus FedSAM's as published",
            [aligned],
            list_seeds(published[OBJECTIVE]),
            digits=2,
        ),
        Claim(
            "the same, formula as printed, Δ with a gradient's sign",
            "cosine itself, ρ = 0.05",
            [cosines],
            list_seeds(printed),
            digits=2,
        ),
    ]
    for rival, name in rivals:
        value = ratio(rows["fedwmsam"], rows[rival], noise)
        measured = f"accuracy's noise, over {name}'s"
        claims.append(fresh_claim(runs, "late rounds oscillate less", measured, value))
    return claims


def verdict_tables(runs: Path) -> list[TextTable]:
    """Return the table of the paper's claims."""
    claims = [*accuracy_claims(runs), *speed_claims(runs), *inside_claims(runs)]
    rows = [claim.cells() for claim in claims]
    rows += [(text, "open", why, MISSING, MISSING, MISSING) for text, why in OPEN]
    header = ("claim", "verdict", "measured", "effect", "95% interval", "seeds")
    return [TextTable("The paper's claims", header, tuple(rows))]


VERDICTS = PageSection(verdict_tables)
