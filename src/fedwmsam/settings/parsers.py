"""The small languages of settings: how a rule, a fault or a choice is written, and what it means."""

import math
from dataclasses import dataclass

from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.settings.options import parse_float_or_nan

WEIGHT_DECAY_MODES = ("objective", "sgd")


AVERAGING = ("uniform", "size")


SAMPLING = ("fixed", "bernoulli")


def round_half_up(value: float) -> int:
    return int(value + 0.5)


# Aggregation


RULES = ("mean", "norm_bound", "median", "trimmed")


@dataclass(frozen=True)
class AggregationRule:
    kind: str = "mean"
    value: float | None = None
    """The bound on the norm (None: the round's median norm), or the share to trim at either end."""

    @property
    def holds(self) -> bool:
        """Whether all contributions of a round are needed at once."""
        return self.kind in ("median", "trimmed")


MEAN = AggregationRule()


def parse_aggregation(text: str) -> AggregationRule:
    kind, colon, value = text.partition(":")
    if kind not in RULES:
        raise InputError(unknown_name_message("aggregation", kind, RULES))
    given = parse_float_or_nan(value) if colon else None
    if kind in ("mean", "median") and not colon:
        return AggregationRule(kind)
    if kind == "norm_bound" and (given is None or 0 < given < math.inf):
        return AggregationRule(kind, given)
    if kind == "trimmed" and given is not None and 0 <= given < 0.5:
        return AggregationRule(kind, given)
    raise InputError(
        "aggregation must be mean, norm_bound, norm_bound:TAU with a norm above 0, median, or trimmed:SHARE with a "
        f"share below 0.5, such as trimmed:0.1, not {text!r}."
    )


# Faults


@dataclass(frozen=True)
class Stragglers:
    """A share of the clients takes `slowness` times as long for a step; a round closes at the deadline."""

    share: float = 0.0
    slowness: float = 1.0
    partial: bool = True
    """Whether the steps done by the deadline count, or nothing does."""
    deadline: float = 1.0
    """In the time that a client of ordinary speed needs for all its steps."""


NO_STRAGGLERS = Stragglers()


@dataclass(frozen=True)
class Corruption:
    """A share of the clients is hostile and answers in one way."""

    kind: str
    share: float
    size: float = 1.0


CORRUPTION_SCALES = {
    "nan": None,
    "huge": 1000.0,
    "sign_flip": 1.0,
    "random": 1.0,
    "stale": None,
    "label_flip": None,
}
"""The kinds of hostile clients; where a size can be given, the one that is meant without it."""


def parse_stragglers(text: str | None, deadline: float | None) -> Stragglers:
    """`SHARE:FACTOR`, or `SHARE:FACTOR:drop` where unfinished work does not count."""
    if text is None:
        return Stragglers(deadline=1.0 if deadline is None else deadline)
    numbers, last = text.split(":"), ""
    if numbers[-1] == "drop":
        last = numbers.pop()
    share, slowness = (
        (parse_float_or_nan(part) for part in numbers)
        if len(numbers) == 2
        else (math.nan, math.nan)
    )
    if not (0 <= share <= 1 and 1 <= slowness < math.inf):
        raise InputError(
            f"stragglers must be SHARE:FACTOR or SHARE:FACTOR:drop with a share between 0 and 1 and a factor of at "
            f"least 1, such as 0.3:4, not {text!r}."
        )
    return Stragglers(share, slowness, last != "drop", 1.0 if deadline is None else deadline)


def parse_corruption(text: str) -> Corruption:
    """`KIND:SHARE`, or `KIND:SHARE:SIZE` for the kinds that have a size."""
    kind, *numbers = text.split(":")
    if kind not in CORRUPTION_SCALES:
        raise InputError(unknown_name_message("kind of corruption", kind, CORRUPTION_SCALES))
    sized = CORRUPTION_SCALES[kind] is not None
    values = [parse_float_or_nan(part) for part in numbers]
    if (
        not 1 <= len(values) <= 1 + sized
        or not 0 <= values[0] <= 1
        or not all(0 < v < math.inf for v in values[1:])
    ):
        shape = (
            f"{kind}:SHARE or {kind}:SHARE:SIZE with a size above 0" if sized else f"{kind}:SHARE"
        )
        raise InputError(
            f"corrupt must be {shape} and a share between 0 and 1, such as {kind}:0.1, not {text!r}."
        )
    return Corruption(
        kind, values[0], values[1] if len(values) > 1 else CORRUPTION_SCALES[kind] or 1.0
    )


# Trackers


TRACKERS = ("tensorboard", "wandb")


def parse_trackers(names: str | None) -> list[tuple[str, list[str]]]:
    """From "tensorboard,wandb:PROJECT": the name of each tracker, and its arguments."""
    found = []
    for text in names.split(",") if names else []:
        name, colon, project = text.strip().partition(":")
        if name not in TRACKERS:
            raise InputError(unknown_name_message("tracker", name, TRACKERS))
        if colon and (name != "wandb" or not project):
            raise InputError(
                f"A tracker is written tensorboard, wandb or wandb:PROJECT, not {text!r}."
            )
        found.append((name, [project] if project else []))
    return found
