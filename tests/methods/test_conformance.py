"""Every registered method keeps the contract, and the checks notice a method that does not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy
import pytest
import torch
from torch import Tensor

import fedwmsam
from fedwmsam import InputError
from fedwmsam.engine.rounds import Info
from fedwmsam.methods import (
    METHODS,
    SCAFFOLD,
    Averaging,
    FedADC,
    FedAvg,
    FedGloSS,
    FedLESAM,
    FedLESAMS,
    FedSpeed,
    FedWMSAM,
    Method,
    option,
)
from fedwmsam.testing import CHECKS, check_declaration, check_method

# Options that change what is kept or sent; costs are declared for the defaults only.
VARIANTS = [
    *(FedWMSAM(perturbation=p) for p in ("literal", "momentum", "none")),
    *(FedWMSAM(similarity=s) for s in ("update", "disagreement", "fixed")),
    *(FedWMSAM(correction=c) for c in ("mean_gradient", "none")),
    FedLESAM(reference="last_round"),
    FedLESAMS(correction_weight=0.1),
    FedSpeed(server_dual="participants"),
    FedGloSS(rho_local=0.05, warmup=3),
    FedADC(variant="heavy_ball", beta_local=0.5),
]


@pytest.mark.parametrize("method", [cls() for cls in METHODS.values()] + VARIANTS, ids=repr)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_passes_every_check(method: Method, check: Callable[[Method], None]):
    check(method)


@pytest.mark.parametrize("name", METHODS)
def test_is_registered_under_its_own_name(name: str):
    assert METHODS[name].name == name
    assert METHODS[name].paper
    check_declaration(METHODS[name])


def test_a_method_that_lacks_its_main_functions_says_which():
    class Incomplete(Method):
        name = "incomplete"

    info = Info(round=0, lr=0.1, clients=1, cohort=1, share=1.0)
    with pytest.raises(AssertionError, match=r"^Incomplete defines no direction$"):
        Incomplete().direction(torch.ones(1), lambda w: w, {}, {})
    with pytest.raises(AssertionError, match=r"^Incomplete defines no aggregate$"):
        Incomplete().aggregate({}, {}, info)


# Methods with a mistake each, and what their author is told


@dataclass(frozen=True)
class InPlace(FedAvg):
    """Change an argument."""

    def aggregate(self, server, mean, info):
        server["w"] += mean["delta"]
        return {"w": server["w"]}


@dataclass(frozen=True)
class Random(FedAvg):
    """Draw random numbers."""

    def direction(self, w, grad, down, scratch):
        return torch.rand_like(w) + grad(w), scratch


REMEMBERED: dict[str, Tensor] = {}


@dataclass(frozen=True)
class Remembering(FedAvg):
    """Keep the last update outside the state."""

    def aggregate(self, server, mean, info):
        last = REMEMBERED.get("delta", mean["delta"])
        REMEMBERED["delta"] = mean["delta"]
        return {"w": server["w"] + 0.5 * (mean["delta"] + last)}


@dataclass(frozen=True)
class Growing(FedAvg):
    """Add a vector to the server's state."""

    def aggregate(self, server, mean, info):
        return super().aggregate(server, mean, info) | {"extra": mean["delta"]}


@dataclass(frozen=True)
class Widening(FedAvg):
    """Send numbers of another type than the model's."""

    def downlink(self, server, memory, info):
        return {"w": server["w"], "c": server["w"].half()}


@dataclass(frozen=True)
class Greedy(FedAvg):
    """Use more than is declared."""

    def direction(self, w, grad, down, scratch):
        grad(w)
        return grad(w), scratch


@dataclass(frozen=True)
class Diverging(FedAvg):
    """Go uphill."""

    def direction(self, w, grad, down, scratch):
        return -grad(w), scratch


@dataclass(frozen=True)
class Undeclared(SCAFFOLD):
    """Keep a mean of memories without saying so."""

    means: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class SmuggledState(FedAvg):
    """Give a client more than was sent: a view of a longer vector."""

    def downlink(self, server, memory, info):
        longer = torch.cat([server["w"], server["w"].new_ones(1)])
        return {"w": longer[:-1]}

    def direction(self, w, grad, down, scratch):
        smuggled = down["w"].untyped_storage().nbytes() > down["w"].nbytes
        return grad(w) * (2 if smuggled else 1), scratch


@dataclass(frozen=True)
class OrderDependent(FedAvg):
    """Weigh the clients by their place in the cohort."""

    def memory_init(self, w):
        return {"last": torch.zeros_like(w)}

    def settle(self, server, memory, up, info):
        weight = 1.0 + len(SEEN) % 3
        SEEN.append(1)
        return memory, {"delta": weight * up["delta"]}


SEEN: list[int] = []


@dataclass(frozen=True)
class Lax(FedAvg):
    """Do not check options."""

    strength: float = option(1.0, "strength")

    def __post_init__(self):
        pass


@dataclass(frozen=True)
class SingleSample(FedAvg):
    """Divide by the number of further steps, which is 0 for a client with a single step."""

    def uplink(self, delta, down, scratch, info):
        further_steps = torch.tensor(float(info.steps - 2), dtype=delta.dtype)
        return {"delta": delta / further_steps * further_steps}


@dataclass(frozen=True)
class Unpacked(FedAvg):
    """Forget to return the scratch state."""

    def direction(self, w, grad, down, scratch):
        return grad(w)


@dataclass(frozen=True)
class NotSent(FedAvg):
    """Use a vector that was not sent."""

    def direction(self, w, grad, down, scratch):
        return grad(w) + down["delta"], scratch


@dataclass(frozen=True)
class Meaningless(FedAvg):
    """Declare a mean of memories that it does not keep."""

    means: ClassVar[dict[str, str]] = {"c": "c_k"}


@dataclass(frozen=True)
class PlainNumber(FedAvg):
    """Keep a number of Python as state."""

    def server_init(self, w):
        return {"w": w, "beta": 0.5}


@dataclass(frozen=True)
class Counting(FedAvg):
    """Count its calls on itself."""

    def aggregate(self, server, mean, info):
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        return {"w": server["w"] + self.calls * mean["delta"]}


@dataclass(frozen=True)
class WithoutDelta(FedAvg):
    """Contribute nothing that the inherited `aggregate` could use."""

    def settle(self, server, memory, up, info):
        return memory, {"update": up["delta"]}


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Counting, "aggregate gave two results .* and remember nothing on self"),
        (WithoutDelta, "^settle's contribution has no 'delta', which aggregate uses"),
        (PlainNumber, "^server_init returns 'beta' as float; state is made of tensors"),
        (Unpacked, r"^direction returned torch\.Tensor; it must return two values, \(direction, "),
        (NotSent, r"^NotSent fails in direction, line \d+: KeyError: 'delta'"),
        (Meaningless, r"means must be {}, not {'c': 'c_k'}"),
        (InPlace, "aggregate changed one of its arguments"),
        (Random, "direction gave two results for the same input"),
        (Remembering, "aggregate gave two results|called twice|resumed"),
        (Growing, "aggregate changes what the server's state holds"),
        (Widening, "downlink returns 'c' as torch.float16"),
        (Greedy, "backprops"),
        (Diverging, "training loss does not fall"),
        (Undeclared, "means must be {'c': 'c_k'}"),
        (SmuggledState, "through bytes"),
        (OrderDependent, "two results|order"),
        (Lax, "accepts 'nonsense'"),
        (SingleSample, "single sample"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_mistake_is_named(cls: type[Method], message: str):
    with pytest.raises(AssertionError, match=message):
        check_method(cls)


A_PAIR = r"it must return two values, \(memory, contribution\): dictionaries of tensors"


@pytest.mark.parametrize(
    ("function", "returned", "message"),
    [
        *(
            (name, None, f"^{name} returned None; it must return a dictionary of tensors")
            for name in ("server_init", "memory_init", "downlink", "begin", "uplink", "aggregate")
        ),
        ("direction", None, r"^direction returned None; it must return two values, \(direction, "),
        (
            "direction",
            (numpy.ones(51), {}),
            r"^direction returned \(numpy\.ndarray, dict\); it must",
        ),
        ("settle", None, f"^settle returned None; {A_PAIR}"),
        ("settle", {}, f"^settle returned dict; {A_PAIR}"),
        ("settle", ({}, {}, {}), rf"^settle returned \(dict, dict, dict\); {A_PAIR}"),
        ("pull", 0.0, "^pull returned float; it must return a tensor or None"),
        ("begin", ({},), r"^begin returned \(dict\); it must return a dictionary"),
        ("begin", {"c": numpy.ones(51)}, "^begin returns 'c' as numpy.ndarray"),
    ],
)
def test_what_a_function_returns_must_have_the_form_of_the_contract(
    function: str, returned: object, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Greedy, function, lambda *_: returned)
    with pytest.raises(AssertionError, match=message):
        check_method(Greedy)


class Undecorated(FedAvg):
    """Forget the decorator."""


@dataclass(frozen=True)
class Nameless(Averaging):
    """Have no name."""

    paper: ClassVar[str] = "none"

    def direction(self, w, grad, down, scratch):
        return grad(w), scratch


@dataclass(frozen=True)
class Directionless(Averaging):
    """Define no direction."""

    name: ClassVar[str] = "directionless"
    paper: ClassVar[str] = "none"


@dataclass(frozen=True)
class PlainField(FedAvg):
    """Declare a hyper-parameter without its meaning."""

    strength: float = 1.0


@dataclass(frozen=True)
class Loud(FedAvg):
    """Have a name that a command would not find."""

    name: ClassVar[str] = "LOUD"


@dataclass(frozen=True)
class Misspelt(FedAvg):
    """Write a function that nobody calls."""

    def agregate(self, server, mean, info):
        return {"w": server["w"]}


@dataclass(frozen=True)
class ScratchForgotten(FedAvg):
    """Take too little."""

    def direction(self, w, grad, down):
        return grad(w), {}


@dataclass(frozen=True)
class WithHelper(FedAvg):
    """Have a function of its own, called by another, whose name is like one of the contract's."""

    def direction(self, w, grad, down, scratch):
        return sum([self.sam_direction(w, grad) for _ in range(1)]), scratch

    def sam_direction(self, w, grad):
        return grad(w)

    @staticmethod
    def pull(w, down):
        return None


def test_a_function_that_is_called_is_not_misspelt_and_one_may_be_static():
    check_method(WithHelper)


@pytest.mark.parametrize("cls", [Misspelt, ScratchForgotten])
def test_fit_refuses_functions_that_it_could_not_call(cls: type[Method]):
    clients = [(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))] * 2
    with pytest.raises(InputError, match=r"agregate, which nobody calls|must take"):
        fedwmsam.fit(torch.nn.Linear(2, 2), clients, cls(), rounds=1, progress=False)


@dataclass(frozen=True)
class WithSetting(FedAvg):
    """Have an option with the name of a setting."""

    lr: float = option(0.1, "step size", low=0.0)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Misspelt, "has a function agregate, which nobody calls: did you mean aggregate"),
        (ScratchForgotten, r"^direction of .* must take \(w, grad, down, scratch\): too many pos"),
        (WithSetting, "'lr' is the name of a setting"),
        (Undecorated, "must be a @dataclass"),
        (Nameless, "has no name"),
        (Directionless, "defines no direction"),
        (PlainField, "'strength' .* is no option"),
        (Loud, "lower case"),
        (int, "derived from fedwmsam.Method"),
    ],
)
def test_an_incomplete_declaration_is_named(cls: type, message: str):
    with pytest.raises(AssertionError, match=message):
        check_method(cls)
