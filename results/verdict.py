"""The paper's claims and what the kept runs say of them: the first table of docs/results.

A claim holds where every 95% interval is on its side of no difference, it fails where every one is
on the other side, and else it is open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tuned
from eight_seeds import RIVALS, complete_rows, estimate_spans
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
    is_larger_better: bool = True
    digits: int = 4

    @property
    def verdict(self) -> str:
        """Return holds, fails or open."""
        is_above = all(value.is_above for value in self.estimates)
        is_below = all(value.is_below for value in self.estimates)
        if is_above or is_below:
            return "holds" if is_above == self.is_larger_better else "fails"
        return "open"

    def cells(self) -> tuple[str, ...]:
        """Return the row of the claim."""
        shown = self.estimates[0]
        effect = format_estimate(shown, self.digits)
        interval = format_interval(shown, self.digits)
        return self.text, self.verdict, self.measured, effect, interval, str(shown.seeds)


def nearest_rival(rows: dict[str, ResultRow], ours: str, end: str) -> tuple[str, list[Estimate]]:
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
    rows = complete_rows(runs)
    rival, trained = nearest_rival(rows, "fedwmsam", "")
    averaged_rival, averaged = nearest_rival(rows, f"fedwmsam{AVERAGED}", AVERAGED)
    spans = estimate_spans(published["fedwmsam"], published["scaffold"])
    text = "FedWMSAM is the most accurate"
    return [
        Claim(f"{text}, settings as published", "minus SCAFFOLD, last 50", spans),
        Claim(
            f"{text}, decay in the objective",
            f"minus the nearest of five rivals, {rival}, last 50",
            trained,
        ),
        Claim(
            f"{text}, all models averaged alike",
            f"minus the nearest of five, {averaged_rival}, last 50",
            averaged,
        ),
    ]


def speed_claims(runs: Path) -> list[Claim]:
    """Return the claims on early rounds and cost."""
    rows = complete_rows(runs)
    claims = []
    for rival, name, target in (
        ("fedavg", "FedAvg", 0.8),
        ("scaffold", "SCAFFOLD", 0.8),
        ("fedavg", "FedAvg", 0.84),
    ):
        value = difference(rows["fedwmsam"], rows[rival], rounds_to(target))
        measured = f"rounds to a mean of {target:g}, minus {name}'s"
        claims.append(Claim("it is fast", measured, [value], is_larger_better=False, digits=1))
    cpu = ratio(rows["fedwmsam"], rows["fedsmoo"], cpu_seconds)
    measured = "CPU time of a round, over FedSMOO's (two backprops)"
    claims.append(Claim("SAM costs one backprop", measured, [cpu], is_larger_better=False))
    return claims


def inside_claims(runs: Path) -> list[Claim]:
    """Return the claims on flatness, alignment and oscillation."""
    rows = complete_rows(runs)
    published = load_rows(runs, PUBLISHED)
    printed = load_rows(runs, "candidates.toml")[PRINTED]
    aligned = difference(published[OBJECTIVE], published["fedsam"], alignment)
    cosines = estimate([alignment(score.run) for score in printed.scores])
    claims = [
        Claim(
            "it leads to flat models",
            f"λ₁ over {name}'s, one step size",
            [ratio(rows["fedwmsam"], rows[rival], top_eigenvalue)],
            is_larger_better=False,
        )
        for rival, name in (("fedavg", "FedAvg"), ("scaffold", "SCAFFOLD"))
    ]
    own_steps = ratio(tuned_row(runs, "fedwmsam"), tuned_row(runs, "scaffold"), top_eigenvalue)
    measured = "λ₁ over SCAFFOLD's, each at its own step, 150 rounds"
    claims += [
        Claim("it leads to flat models", measured, [own_steps], is_larger_better=False),
        Claim(
            "ε climbs the federation's loss, our default reading",
            "its cosine, minus FedSAM's",
            [aligned],
            digits=2,
        ),
        Claim("the same, formula as printed", "cosine, ρ = 0.05", [cosines], digits=2),
    ]
    claims += [
        Claim(
            "late rounds oscillate less",
            f"accuracy's noise, over {name}'s",
            [ratio(rows["fedwmsam"], rows[rival], noise)],
            is_larger_better=False,
        )
        for rival, name in (("fedavg", "FedAvg"), ("scaffold", "SCAFFOLD"))
    ]
    return claims


def verdict_tables(runs: Path) -> list[TextTable]:
    """Return the table of the paper's claims."""
    claims = [*accuracy_claims(runs), *speed_claims(runs), *inside_claims(runs)]
    rows = [claim.cells() for claim in claims]
    rows += [(text, "open", why, MISSING, MISSING, MISSING) for text, why in OPEN]
    header = ("claim", "verdict", "measured", "effect", "95% interval", "seeds")
    return [TextTable("The paper's claims", header, tuple(rows))]


VERDICTS = PageSection(verdict_tables)
