"""Parsers of the settings that are written in a notation of their own.

The aggregation rule, stragglers, hostile clients, trackers and workers are each one text, such as
`trimmed:0.1` or `sign_flip:0.1`. Every parser returns what the text means, or raises InputError
with a sentence on how it is written.
"""

import math
from dataclasses import dataclass

from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.settings.options import parse_float_or_nan, truncated_repr

WEIGHT_DECAY_MODES = ("objective", "sgd")
OPTIMIZERS = ("sgd", "nesterov", "adam", "adamw")
LAST_BATCH = ("keep", "drop", "merge")
PRECISIONS = ("float32", "bf16")
AVERAGING = ("uniform", "size")
SAMPLING = ("fixed", "bernoulli")


def round_half_up(value: float) -> int:
    """Return the nearest whole number; a half is rounded up, not to the even neighbour."""
    return int(value + 0.5)


# The step size by round


LR_RULES = ("cosine", "step", "exponential", "function")


@dataclass(frozen=True)
class LearningRateRule:
    """How the step size changes from round to round, as a factor on the first one."""

    kind: str
    rounds: int = 0
    """cosine: rounds until the end; step: rounds from one step to the next."""
    value: float = 1.0
    """cosine: the factor at the end; step and exponential: the factor of a step or a round."""
    values: tuple[float, ...] = ()
    """function: the factor of each round."""

    def factor(self, round: int) -> float:
        """Return the factor of a round, counted from 0 after the warm-up."""
        if self.kind == "cosine":
            # After its last round the step size stays as it is: with 0 nothing would be trained.
            angle = math.pi * min(round, self.rounds - 1) / self.rounds
            return self.value + (1 - self.value) * (1 + math.cos(angle)) / 2
        if self.kind == "step":
            return float(self.value ** (round // self.rounds))
        if self.kind == "function":
            return self.values[min(round, len(self.values) - 1)]
        return float(self.value**round)


def parse_lr_schedule(text: str) -> LearningRateRule:
    """Return the rule that a text names, such as "cosine:500" or "step:100:0.1", or raise
    InputError."""
    kind, *numbers = text.split(":")
    if kind not in LR_RULES:
        raise InputError(unknown_name_message("lr_schedule", kind, LR_RULES[:-1]))
    values = [parse_float_or_nan(number) for number in numbers]
    if kind == "function":
        return LearningRateRule(kind)
    if kind == "cosine" and len(values) in (1, 2) and is_round_count(values[0]):
        end = values[1] if len(values) == 2 else 0.0
        if 0 <= end <= 1:
            return LearningRateRule(kind, int(values[0]), end)
    if kind == "step" and len(values) == 2 and is_round_count(values[0]) and 0 < values[1] <= 1:
        return LearningRateRule(kind, int(values[0]), values[1])
    if kind == "exponential" and len(values) == 1 and 0 < values[0] <= 1:
        return LearningRateRule(kind, 0, values[0])
    raise InputError(
        "lr_schedule must be cosine, cosine:ROUNDS or cosine:ROUNDS:END with the share of the step "
        "size at the end, step:ROUNDS:FACTOR such as step:100:0.1, or exponential:FACTOR such as "
        f"exponential:0.99, not {text!r}."
    )


def is_round_count(value: float) -> bool:
    """Return whether a number counts rounds: whether it is whole and at least 1."""
    return value >= 1 and value == int(value) if math.isfinite(value) else False


# Aggregation


RULES = ("mean", "norm_bound", "median", "trimmed")


@dataclass(frozen=True)
class AggregationRule:
    """The rule by which the server combines the contributions of a round's clients."""

    kind: str = "mean"
    value: float | None = None
    """The bound on the norm (None: the round's median norm), or the share trimmed at either end."""

    @property
    def needs_all_uploads(self) -> bool:
        """Return whether the rule combines all contributions at once, as median and trimmed do."""
        return self.kind in ("median", "trimmed")


MEAN = AggregationRule()


def parse_aggregation(text: str) -> AggregationRule:
    """Return the rule that a text names, such as "median" or "trimmed:0.1", or raise InputError."""
    kind, colon, value_text = text.partition(":")
    if kind not in RULES:
        raise InputError(unknown_name_message("aggregation", kind, RULES))
    value = parse_float_or_nan(value_text) if colon else None
    if kind in ("mean", "median") and not colon:
        return AggregationRule(kind)
    if kind == "norm_bound" and (value is None or 0 < value < math.inf):
        return AggregationRule(kind, value)
    if kind == "trimmed" and value is not None and 0 <= value < 0.5:
        return AggregationRule(kind, value)
    raise InputError(
        "aggregation must be mean, norm_bound, norm_bound:TAU with a norm above 0, median, "
        "or trimmed:SHARE with a share below 0.5, such as trimmed:0.1, "
        f"not {text!r}."
    )


# Faults


@dataclass(frozen=True)
class Stragglers:
    """Slow clients: a share of them needs `slowness` times as long for each local step.

    A round closes at the deadline.
    """

    share: float = 0.0
    slowness: float = 1.0
    partial: bool = True
    """Whether the steps done by the deadline count; otherwise unfinished work is lost."""
    deadline: float = 1.0
    """The deadline, in units of the time that an ordinary client needs for all its steps."""


NO_STRAGGLERS = Stragglers()


@dataclass(frozen=True)
class Corruption:
    """Hostile clients: a share of them corrupts its uploads, or its labels, in one way."""

    kind: str
    share: float
    scale: float = 1.0
    """The size of the corruption, for the kinds that have one."""


CORRUPTION_SCALES = {
    "nan": None,
    "huge": 1000.0,
    "sign_flip": 1.0,
    "random": 1.0,
    "stale": None,
    "label_flip": None,
}
"""The kinds of hostile clients, each with its default scale; None where it has no scale."""


def parse_stragglers(text: str | None, deadline: float | None) -> Stragglers:
    """Return the stragglers that `SHARE:FACTOR` means, or raise InputError.

    With `SHARE:FACTOR:drop` unfinished work does not count. Without a text nobody is slow, and
    without a deadline it is 1.
    """
    if deadline is None:
        deadline = 1.0
    if text is None:
        return Stragglers(deadline=deadline)
    parts = text.split(":")
    drops_unfinished = parts[-1] == "drop"
    if drops_unfinished:
        parts.pop()
    values = [parse_float_or_nan(part) for part in parts]
    if len(values) != 2 or not (0 <= values[0] <= 1 and 1 <= values[1] < math.inf):
        raise InputError(
            "stragglers must be SHARE:FACTOR or SHARE:FACTOR:drop with a share between 0 and 1 "
            f"and a factor of at least 1, such as 0.3:4, not {text!r}."
        )
    share, slowness = values
    return Stragglers(share, slowness, not drops_unfinished, deadline)


def parse_corruption(text: str) -> Corruption:
    """Return the corruption that `KIND:SHARE` means, or raise InputError.

    For the kinds that have a scale it may follow: `KIND:SHARE:SIZE`.
    """
    kind, *parts = text.split(":")
    if kind not in CORRUPTION_SCALES:
        raise InputError(unknown_name_message("kind of corruption", kind, CORRUPTION_SCALES))
    default_scale = CORRUPTION_SCALES[kind]
    most = 1 if default_scale is None else 2
    values = [parse_float_or_nan(part) for part in parts]
    is_valid = 1 <= len(values) <= most and 0 <= values[0] <= 1
    if not is_valid or not all(0 < scale < math.inf for scale in values[1:]):
        notation = f"{kind}:SHARE"
        if default_scale is not None:
            notation = f"{kind}:SHARE or {kind}:SHARE:SIZE with a size above 0"
        raise InputError(
            f"corrupt must be {notation} and a share between 0 and 1, such as {kind}:0.1, "
            f"not {text!r}."
        )
    scale = values[1] if len(values) > 1 else default_scale or 1.0
    return Corruption(kind, values[0], scale)


# Trackers


TRACKERS = ("tensorboard", "wandb")


def parse_trackers(names: str | None) -> list[tuple[str, list[str]]]:
    """Return the name of each tracker in "tensorboard,wandb:PROJECT", and its arguments.

    Raise InputError if a tracker is unknown or written differently.
    """
    trackers = []
    for text in names.split(",") if names else []:
        name, colon, project = text.strip().partition(":")
        if name not in TRACKERS:
            raise InputError(unknown_name_message("tracker", name, TRACKERS))
        if colon and (name != "wandb" or not project):
            raise InputError(
                f"A tracker is written tensorboard, wandb or wandb:PROJECT, not {text!r}."
            )
        trackers.append((name, [project] if project else []))
    return trackers


# Workers


MOST_WORKERS = 1024


@dataclass(frozen=True)
class RayWorkers:
    """Actors of a Ray cluster that train clients, and what each of them reserves there."""

    count: int | None = None
    """How many; None: as many as the cluster has room for."""
    num_cpus: float = 1.0
    num_gpus: float = 0.0


def parse_workers(text: str) -> int | RayWorkers:
    """Return what a text says of workers: a number of processes, or actors of Ray.

    "auto" is 0, which means a process for each core. Raise InputError for any other text.
    """
    if text == "auto":
        return 0
    if text.isdecimal() and len(text) <= 4 and int(text) <= MOST_WORKERS:
        return int(text)
    first, *options = text.split(",")
    kind, colon, number = first.partition(":")
    values = {"count": parse_float_or_nan(number)} if colon else {}
    for option in options:
        name, _, value = option.partition("=")
        values[name] = parse_float_or_nan(value)
    count = values.pop("count", None)
    is_count = count is None or (is_round_count(count) and count <= MOST_WORKERS)
    is_known = set(values) <= {"num_cpus", "num_gpus"} and len(values) == len(options)
    in_range = all(0 <= value <= MOST_WORKERS for value in values.values())
    in_range = in_range and values.get("num_cpus", 1.0) > 0
    if kind != "ray" or not is_count or not is_known or not in_range:
        raise InputError(
            f"workers must be auto, a whole number up to {MOST_WORKERS}, or ray, ray:ACTORS such "
            "as ray:4, with what an actor reserves if it is not one core, such as "
            f"ray:4,num_cpus=2, not {truncated_repr(text)}."
        )
    return RayWorkers(None if count is None else int(count), **values)
