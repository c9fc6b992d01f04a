"""Which method is which other one with its options set so: the edges of the methods' family tree.

`tests/methods/test_invariants.py` tries each of them, and `docs/pictures/family.py` draws them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from fedwmsam.engine.schedule import LearningRate
from fedwmsam.methods import (
    GHBM,
    MFL,
    SCAFFOLD,
    SCAFFOLDM,
    AdaBest,
    FedACG,
    FedAdagrad,
    FedAdam,
    FedADC,
    FedAvg,
    FedAvgM,
    FedCM,
    FedDyn,
    FedExP,
    FedGAMMA,
    FedGloSS,
    FedHBM,
    FedLESAM,
    FedLESAMD,
    FedLESAMS,
    FedNova,
    FedProx,
    FedSAM,
    FedSMOO,
    FedSpeed,
    FedWMSAM,
    FedWMSAMPlus,
    FedYogi,
    LocalGHBM,
    Method,
    Mime,
    MimeLite,
    MoFedSAM,
)
from fedwmsam.settings.parsers import LearningRateRule
from fedwmsam.training.local import LocalRules
from helpers.small_federation import FULL_RULES, PLAIN_RULES, make_federation, run_rounds

ALL_RULES = {"full": FULL_RULES, "plain": PLAIN_RULES, "sgd": LocalRules(1e-3, "sgd", 1.0)}
"""Local steps with weight decay in the objective and a clip, with neither, and as published."""

EVERYONE = {"per_round": 5}
"""All five clients take part in every round."""
EQUAL_STEPS = {"sizes": (8, 8, 8, 8, 8)}
"""Clients of eight samples, which take four steps a round."""
ONE_CLIENT = {"sizes": (9,), "per_round": 1}
"""There is one client in all."""


class Reduction(NamedTuple):
    """A method with options, or under circumstances, that make it another one."""

    method: Method
    becomes: Method
    label: str
    """What makes it so, in a few words; a line of the picture for each of its lines."""
    tolerance: float = 0.0
    """How far the weights may be apart: zero for the same arithmetic, else for rounding."""
    rules: Sequence[str] = tuple(ALL_RULES)
    """The names of the rules of local steps under which it holds."""
    federation: Mapping[str, Any] = {}
    """The circumstances, as `make_federation` takes them."""
    rates: tuple[float, float] | None = None
    """Constant step sizes of the method and of what it becomes; none: the same, falling one."""
    rounds: int = 6
    vector: str = "w"
    """The vector of the method's server that is the other one's model."""

    @property
    def circumstantial(self) -> bool:
        """Return whether it takes more than options to make the method the other one."""
        return bool(self.federation or self.rates or self.rounds == 1)

    def train_both(self, rules: LocalRules) -> tuple[Tensor, Tensor]:
        """Return the weights of the method and of what it becomes, after the same rounds."""
        rate, other_rate = self.rates or (None, None)
        server = self.train(self.method, rules, rate)
        return server[self.vector], self.train(self.becomes, rules, other_rate)["w"]

    def train(self, method: Method, rules: LocalRules, rate: float | None) -> Mapping[str, Tensor]:
        """Return the server's vectors after the rounds, at a constant step size if one is given."""
        federation = make_federation(method, rules, **self.federation)
        if rate:
            constant = LearningRate(rate, LearningRateRule("exponential", value=1.0))
            schedule = replace(federation.schedule, learning_rate=constant)
            federation = replace(federation, schedule=schedule)
        return run_rounds(federation, self.rounds)[0][-1].server


REDUCTIONS = [
    # averaging
    Reduction(FedProx(lam=0.0), FedAvg(), "λ = 0"),
    Reduction(FedNova(), FedAvg(), "equal steps", federation=EQUAL_STEPS),
    # server optimizers
    Reduction(FedExP(epsilon=1e30), FedAvg(), "ε → ∞"),
    Reduction(FedAvgM(beta=0.0), FedAvg(), "β = 0"),
    Reduction(
        FedAdam(global_lr=1.0, beta1=0.6, beta2=1.0, tau=1.0),
        FedAvgM(global_lr=0.4, beta=0.6),
        "β₂ = 1",
        tolerance=1e-12,
    ),
    Reduction(
        FedYogi(global_lr=1.0, beta1=0.6, beta2=1.0, tau=1.0),
        FedAvgM(global_lr=0.4, beta=0.6),
        "β₂ = 1",
        tolerance=1e-12,
    ),
    Reduction(FedAdagrad(global_lr=1e12, tau=1e12), FedAvg(), "η_g = τ → ∞", tolerance=1e-12),
    # momentum
    Reduction(FedACG(lam=0.0, beta=0.05), FedProx(lam=0.1), "λ = 0"),
    Reduction(FedACG(lam=0.0, beta=0.0), FedAvg(), "λ = β = 0"),
    Reduction(FedCM(alpha=1.0), FedAvg(), "α = 1"),
    Reduction(
        FedADC(beta=0.75, variant="heavy_ball"),
        FedCM(alpha=0.25),
        "heavy ball,\nother step size",
        tolerance=1e-12,
        rules=["plain"],
        rates=(0.025, 0.1),
    ),
    Reduction(
        FedADC(beta=0.6, beta_local=0.0),
        FedAvgM(beta=0.6),
        "β_l = 0, equal steps",
        tolerance=1e-12,
        federation=EQUAL_STEPS,
        rates=(0.1, 0.1),
    ),
    Reduction(FedADC(beta=0.0), FedAvg(), "β = 0"),
    Reduction(MFL(gamma=0.0), FedAvg(), "γ = 0"),
    Reduction(MimeLite(beta=0.0), FedAvg(), "β = 0"),
    Reduction(Mime(beta=0.7), MimeLite(beta=0.7), "first round", rounds=1),
    Reduction(
        GHBM(tau=1, beta=0.8),
        FedADC(beta=0.8, variant="heavy_ball"),
        "τ = 1,\nequal steps",
        tolerance=1e-12,
        federation=EQUAL_STEPS,
        rates=(0.1, 0.1),
    ),
    Reduction(GHBM(tau=2, beta=0.0), FedAvg(), "β = 0"),
    Reduction(
        LocalGHBM(beta=0.8),
        GHBM(tau=1, beta=0.8),
        "everyone",
        federation=EVERYONE,
    ),
    Reduction(LocalGHBM(beta=0.0), FedAvg(), "β = 0"),
    Reduction(FedHBM(beta=0.0), FedAvg(), "β = 0"),
    # control variates and duals
    Reduction(SCAFFOLD(), FedAvg(), "one client", tolerance=1e-12, federation=ONE_CLIENT),
    Reduction(SCAFFOLDM(beta=1.0), SCAFFOLD(), "β = 1", tolerance=1e-12, rules=["plain"]),
    Reduction(
        SCAFFOLDM(beta=0.3),
        FedCM(alpha=0.3),
        "one client",
        tolerance=1e-12,
        federation=ONE_CLIENT,
    ),
    Reduction(
        AdaBest(mu=0.0, beta=0.7), FedACG(lam=0.7, beta=0.0), "μ = 0", tolerance=1e-12, vector="a"
    ),
    Reduction(AdaBest(mu=0.0, beta=0.0), FedAvg(), "μ = β = 0"),
    # weighted momentum and SAM
    Reduction(
        FedWMSAM(rho=0.0, similarity="fixed", alpha=0.3, correction="mean_gradient"),
        SCAFFOLDM(beta=0.3),
        "ρ = 0, fixed α,\nmean gradient",
        tolerance=1e-12,
        rules=["plain"],
    ),
    Reduction(
        FedWMSAM(rho=0.0, similarity="fixed", alpha=0.3, correction="none"),
        FedCM(alpha=0.3),
        "ρ = 0, fixed α,\nno correction",
    ),
    Reduction(
        FedWMSAMPlus(similarity="fixed", alpha=0.9),
        FedWMSAM(similarity="fixed", alpha=0.9),
        "α = α_max,\neveryone",
        federation=EVERYONE,
    ),
    # SAM
    Reduction(FedSAM(rho=0.0), FedAvg(), "ρ = 0"),
    Reduction(MoFedSAM(rho=0.0), FedCM(), "ρ = 0"),
    Reduction(MoFedSAM(alpha=1.0), FedSAM(), "α = 1"),
    Reduction(FedGAMMA(rho=0.0), SCAFFOLD(), "ρ = 0"),
    Reduction(FedGAMMA(), FedSAM(), "one client", tolerance=1e-12, federation=ONE_CLIENT),
    Reduction(FedSpeed(rho=0.0), FedDyn(), "ρ = 0"),
    Reduction(FedSMOO(rho=0.0), FedDyn(), "ρ = 0"),
    Reduction(FedLESAM(rho=0.0), FedAvg(), "ρ = 0"),
    Reduction(FedLESAMS(rho=0.0), SCAFFOLD(), "ρ = 0"),
    Reduction(FedLESAMS(correction_weight=0.0), FedLESAM(), "no correction"),
    Reduction(FedLESAMD(rho=0.0), FedDyn(), "ρ = 0"),
    Reduction(
        FedGloSS(rho=0.0, beta=10.0), FedDyn(lam=0.1), "ρ = 0", tolerance=1e-12, rules=["plain"]
    ),
]
"""Those of one method follow each other; the first of them places it in the picture."""
