"""Candidates for a method that is accurate and flat: FedWMSAM-plus, varied; not in the library.

`plans/candidates-*.toml` run them (`method = "candidates:Lagged"`). All make one backprop a step;
those that are sent c − c_k or Δ beside m_k have one vector more to download than FedWMSAM-plus,
which each says. docs/results has the rule by which they are judged, and what came out.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwmsam.methods import FedWMSAMPlus
from fedwmsam.methods.base import Cost, Gradient, Info
from fedwmsam.methods.vectors import Vectors, lerp_into_end, norm, step_towards
from fedwmsam.settings.options import option

TAU = 1e-12


@dataclass(frozen=True)
class Decoupled(FedWMSAMPlus):
    """The step size is that of the fresh gradient, whatever α does.

    v/α = g(w + ε) + c − c_k + (1 − α)/α · Δ in the place of v, so that η is what αη was.
    """

    name: ClassVar[str] = "decoupled"

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        v, scratch = super().direction(w, grad, down, scratch)
        return v / down["alpha"], scratch

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        alpha = self.training_state(server, info)["alpha"]
        row, contribution = super().settle(server, memory, {"delta": up["delta"] * alpha}, info)
        return row, contribution | {"delta": up["delta"]}


@dataclass(frozen=True)
class LatePhase(FedWMSAMPlus):
    """α rises to `late_alpha` over the last third of the rounds."""

    late_alpha: float = option(0.9, "α of the last round", low=0.001, high=0.999)
    total_rounds: int = option(150, "rounds of the run", low=1)

    name: ClassVar[str] = "late-phase"

    def training_state(self, server: Vectors, info: Info) -> Vectors:
        state = super().training_state(server, info)
        begin = self.total_rounds * 2 / 3
        progress = (info.round + 1 - begin) / (self.total_rounds - begin)
        alpha = torch.lerp(
            state["alpha"], torch.full_like(state["alpha"], self.late_alpha), max(0.0, progress)
        )
        return state | {"alpha": torch.maximum(state["alpha"], alpha)}


@dataclass(frozen=True)
class Lagged(FedWMSAMPlus):
    """SAM ascends along the directions of the steps before: ε = ρ v̂/‖v̂‖.

    v̂ begins as m_k, then v̂ ← β v̂ + (1 − β) v. The steps' directions v = α g + (1 − α) m_k have
    the correction in them, so that nothing more has to travel.
    """

    lag: float = option(0.0, "β of the average of directions", low=0.0, high=0.999)

    name: ClassVar[str] = "lagged"

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return {"ascent": down["m"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        ascent = scratch["ascent"]
        v = lerp_into_end(down["m"], grad(step_towards(w, ascent, self.rho, TAU)), down["alpha"])
        return v, {"ascent": torch.lerp(v, ascent, self.lag)}


@dataclass(frozen=True)
class LaggedGradient(FedWMSAMPlus):
    """SAM ascends along the client's own gradients of the steps before: ε = ρ ĝ/‖ĝ‖.

    ĝ begins as m_k, then ĝ ← β ĝ + (1 − β) g. FedSAM climbs the gradient of the step itself, which
    lowers λ₁ but takes a second backprop.
    """

    lag: float = option(0.0, "β of the average of gradients", low=0.0, high=0.999)

    name: ClassVar[str] = "lagged-gradient"

    def begin(self, down: Vectors, full_gradient: Gradient, info: Info) -> Vectors:
        return {"ascent": down["m"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        ascent = scratch["ascent"]
        gradient = grad(step_towards(w, ascent, self.rho, TAU))
        ascent = torch.lerp(gradient, ascent, self.lag)
        return lerp_into_end(down["m"], gradient, down["alpha"]), {"ascent": ascent}


@dataclass(frozen=True)
class AlongMomentum(FedWMSAMPlus):
    """SAM ascends along the client's momentum: ε = ρ m_k/‖m_k‖."""

    name: ClassVar[str] = "along-momentum"

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        gradient = grad(step_towards(w, down["m"], self.rho, TAU))
        return lerp_into_end(down["m"], gradient, down["alpha"]), scratch


@dataclass(frozen=True)
class Common(FedWMSAMPlus):
    """All clients ascend along c: ε = ρ c/‖c‖; c is one vector more to download."""

    name: ClassVar[str] = "common"
    cost: ClassVar[Cost] = Cost(backprops=1, down=3, up=1, memory=1, down_scalars=1)

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return super().downlink(server, memory, info) | {"c": server["c"]}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        gradient = grad(step_towards(w, down["c"], self.rho, TAU))
        return lerp_into_end(down["m"], gradient, down["alpha"]), scratch


@dataclass(frozen=True)
class LookAhead(FedWMSAMPlus):
    """Gradients are taken ahead along c − c_k, as far as that is signal, not noise.

    At w − ρ q (c − c_k)/‖c − c_k‖, q = max(0, 1 − ‖last change of c_k‖² / ‖c − c_k‖²). c − c_k is
    one vector more to download, and the change one number more to keep.
    """

    name: ClassVar[str] = "look-ahead"
    cost: ClassVar[Cost] = Cost(backprops=1, down=3, up=1, memory=1, down_scalars=1)

    def memory_init(self, w: Tensor) -> Vectors:
        return super().memory_init(w) | {"change": w.new_zeros(())}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        ahead = server["c"] - memory["c_k"]
        length = norm(ahead).squeeze(-1)
        signal = (1 - memory["change"] / (length**2 + TAU)).clamp(min=0.0)
        return super().downlink(server, memory, info) | {"ahead": ahead * signal / (length + TAU)}

    def direction(
        self, w: Tensor, grad: Gradient, down: Vectors, scratch: Vectors
    ) -> tuple[Tensor, Vectors]:
        gradient = grad(w - self.rho * down["ahead"])
        return lerp_into_end(down["m"], gradient, down["alpha"]), scratch

    def settle(
        self, server: Vectors, memory: Vectors, up: Vectors, info: Info
    ) -> tuple[Vectors, Vectors]:
        row, contribution = super().settle(server, memory, up, info)
        change = norm(contribution["c_k"]).squeeze(-1) ** 2
        return row | {"change": change}, contribution
