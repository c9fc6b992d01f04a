"""What a run is: every setting once, with its meaning, default and range.

`Settings` is what `fit` and the command line share; `RunConfig` adds what the command line must name (data set, model,
partition). Command line over file over preset over default; an unknown key is an error that names the nearest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from types import NoneType
from typing import Any

from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.settings.method_table import (
    METHOD_CLASS_PATHS,
    check_method_name,
    make_method,
    method_class,
)
from fedwmsam.settings.options import (
    field_types,
    option,
    parse_typed,
    truncated_repr,
    validate_fields,
    validate_value,
)
from fedwmsam.settings.parsers import (
    AVERAGING,
    SAMPLING,
    WEIGHT_DECAY_MODES,
    parse_aggregation,
    parse_corruption,
    parse_stragglers,
    parse_trackers,
    round_half_up,
)
from fedwmsam.settings.presets import preset_values

ALWAYS_IDENTIFYING = frozenset(
    {
        "method",
        "dataset",
        "model",
        "partition",
        "augmentation",
        "validation",
        "rounds",
        "participation",
        "sampling",
        "local_epochs",
        "batch_size",
        "lr",
        "lr_decay",
        "weight_decay",
        "weight_decay_mode",
        "clip_norm",
        "averaging",
        "seed",
        "evaluate_every",
        "global_lr",
        "rho",
        "rho_local",
        "alpha",
        "alpha_min",
        "alpha_max",
        "adapt_rate",
        "perturbation",
        "similarity",
        "correction",
        "correction_weight",
        "average_power",
        "lam",
        "beta",
        "beta1",
        "beta2",
        "tau",
        "server_dual",
        "reference",
        "warmup",
    }
)
"""Settings and options as old as the first kept runs: their values tell runs apart even where they are the defaults.
The list is closed. Every later setting counts only where it is not at its default, so that it renames no folder, splits
no row of a table and stops no run from being resumed."""
RECORDABLE = ("alignment", "drift", "echo")
DELTA = 1e-5
"""δ of differential privacy where none is given."""
CLIENTS = 20
"""How many there are when neither the user nor the data say."""

RUN = "What is run"
ROUNDS = "Rounds and clients"
LOCAL = "Local training"
SERVER = "Aggregation"
FAULTS = "Simulated faults"
PRIVACY = "Differential privacy"
EVALUATION = "Evaluation and stopping"
SAVING = "Saving and recording"
MACHINE = "Machine"
PANELS = (RUN, ROUNDS, LOCAL, SERVER, FAULTS, PRIVACY, EVALUATION, SAVING, MACHINE)
"""Where `--help` lists the flags of settings, in this order."""
FLOWER_REAL_FAULTS = "clients fail and lie by themselves here; simulate that with fedwmsam.fit"
FLOWER_NO_PRIVACY = "differential privacy is built for the simulator only"
FLOWER_NO_CLIENT_DATA = "it needs the clients' data where the server is"
FLOWER_OWN_PROCESSES = "each client is a process of its own"


@dataclass(frozen=True)
class Settings:
    """What `fit`, the command line and Flower share."""

    rounds: int = option(
        50, "rounds to train", low=1, high=10**9, panel=ROUNDS, held_equal=True, goal=True
    )
    participation: float = option(
        0.25, "share of the clients that train in a round", above=0, high=1, panel=ROUNDS
    )
    clients_per_round: int | None = option(
        None, "their number, instead of the share", low=1, panel=ROUNDS
    )
    sampling: str = option(
        "fixed",
        "fixed: always as many clients; bernoulli: each by its own coin",
        choices=SAMPLING,
        panel=ROUNDS,
    )
    local_epochs: int = option(5, "passes over a client's data in a round", low=1, panel=LOCAL)
    batch_size: int = option(50, "samples a local step", low=1, panel=LOCAL)
    lr: float = option(0.1, "local step size in the first round", above=0, panel=LOCAL)
    lr_decay: float = option(
        0.998, "factor on the step size from round to round", above=0, high=1, panel=LOCAL
    )
    weight_decay: float = option(1e-3, "strength of the L2 penalty", low=0, panel=LOCAL)
    weight_decay_mode: str = option(
        "objective",
        "objective: part of the gradient; sgd: beside it, as published code does",
        choices=WEIGHT_DECAY_MODES,
        panel=LOCAL,
    )
    clip_norm: float | None = option(
        10.0, "longest direction a local step may take (none: no limit)", above=0, panel=LOCAL
    )
    twin: float | None = option(
        None,
        "γ of an averaged twin, such as 8: an average of the global models, evaluated beside them and never trained on",
        low=0,
        high=1e9,
        panel=SERVER,
        see="docs/compare.md",
    )
    averaging: str = option(
        "uniform",
        "weigh clients alike, or by their number of samples",
        choices=AVERAGING,
        panel=SERVER,
    )
    aggregation: str | None = option(
        None,
        "instead of the mean: norm_bound or norm_bound:TAU, median, trimmed:0.1 (none: the mean)",
        panel=SERVER,
        see="docs/faults.md",
    )
    dropout: float | None = option(
        None,
        "probability that a sampled client never answers",
        low=0,
        high=1,
        panel=FAULTS,
        see="docs/faults.md",
        flower=FLOWER_REAL_FAULTS,
    )
    stragglers: str | None = option(
        None,
        "SHARE:FACTOR: so many clients are slower by that factor, such as 0.3:4; 0.3:4:drop: unfinished is lost",
        panel=FAULTS,
        flower=FLOWER_REAL_FAULTS,
    )
    deadline: float | None = option(
        None,
        "when a round closes, in the time an ordinary client needs for its steps (none: 1)",
        above=0,
        panel=FAULTS,
        flower=FLOWER_REAL_FAULTS,
    )
    corrupt: str | None = option(
        None,
        "KIND:SHARE: hostile clients, such as sign_flip:0.1; nan, huge, sign_flip, random, stale, label_flip",
        panel=FAULTS,
        flower=FLOWER_REAL_FAULTS,
    )
    dp_noise: float | None = option(
        None,
        "σ of differential privacy: noise on the sum, in units of dp_clip",
        low=0,
        panel=PRIVACY,
        see="docs/privacy.md",
        flower=FLOWER_NO_PRIVACY,
    )
    dp_epsilon: float | None = option(
        None,
        "ε that all rounds may spend, instead of the noise",
        above=0,
        panel=PRIVACY,
        flower=FLOWER_NO_PRIVACY,
    )
    dp_clip: float | None = option(
        None,
        "C of differential privacy: longest upload that counts in full",
        above=0,
        panel=PRIVACY,
    )
    dp_delta: float | None = option(
        None, "δ of differential privacy (none: 1e-5)", above=0, high=0.1, panel=PRIVACY
    )
    seed: int = option(0, "key of everything random", low=0, high=2**31 - 1, panel=ROUNDS)
    evaluate_every: int = option(
        1,
        "rounds from one evaluation to the next (the last is always evaluated)",
        low=1,
        panel=EVALUATION,
        held_equal=True,
    )
    checkpoint_every: int = option(
        10, "rounds from one checkpoint to the next", low=1, panel=SAVING, changes_numbers=False
    )
    target_accuracy: float | None = option(
        None,
        "stop when it is reached",
        above=0,
        high=1,
        panel=EVALUATION,
        held_equal=True,
        goal=True,
    )
    patience: int | None = option(
        None,
        "stop after so many rounds without a better validation score",
        low=1,
        panel=EVALUATION,
        held_equal=True,
        goal=True,
    )
    time_budget: float | None = option(
        None, "stop after so many seconds", above=0, panel=EVALUATION, held_equal=True, goal=True
    )
    memory_budget: float = option(
        1000.0,
        "megabytes of RAM for what is kept per client; the rest is on disk",
        low=0,
        panel=MACHINE,
        changes_numbers=False,
    )
    keep_states: int | None = option(
        None,
        "keep the state before every so many rounds, for later analysis",
        low=1,
        panel=SAVING,
        changes_numbers=False,
        flower=FLOWER_NO_CLIENT_DATA,
    )
    record: str | None = option(
        None,
        "dynamics to record, such as alignment,drift,echo",
        panel=SAVING,
        see="docs/dynamics.md",
        changes_numbers=False,
        flower=FLOWER_NO_CLIENT_DATA,
    )
    record_every: int = option(
        10,
        "rounds from one recording to the next (an echo is recorded in each)",
        low=1,
        panel=SAVING,
        changes_numbers=False,
    )
    workers: int = option(
        1,
        "processes that train clients side by side (0: one for each core)",
        low=0,
        high=1024,
        panel=MACHINE,
        changes_numbers=False,
        flower=FLOWER_OWN_PROCESSES,
    )
    device: str = option(
        "cpu",
        "where to compute: cpu, cuda, mps (the last two are untested)",
        panel=MACHINE,
        changes_numbers=False,
    )

    def __post_init__(self) -> None:
        validate_fields("", self)
        self.recorded()
        if self.aggregation == "mean":
            object.__setattr__(
                self, "aggregation", None
            )  # one name for one thing: the same run, the same row
        if self.aggregation is not None:
            parse_aggregation(self.aggregation)
        parse_stragglers(self.stragglers, self.deadline)
        if self.corrupt is not None:
            parse_corruption(self.corrupt)
        if self.private:
            self.check_privacy()

    def recorded(self) -> list[str]:
        """The kinds of dynamics to record, each once."""
        kinds = list(
            dict.fromkeys(kind.strip() for kind in (self.record or "").split(",") if kind.strip())
        )
        for kind in kinds:
            if kind not in RECORDABLE:
                raise InputError(unknown_name_message("kind of recording", kind, RECORDABLE))
        return kinds

    @property
    def private(self) -> bool:
        return self.dp_noise is not None or self.dp_epsilon is not None

    def check_privacy(self) -> None:
        if self.dp_noise is not None and self.dp_epsilon is not None:
            raise InputError("Give either dp_noise or dp_epsilon: each follows from the other.")
        if self.dp_clip is None:
            raise InputError(
                "Differential privacy needs dp_clip, the longest upload that counts in full; try dp_clip=1."
            )
        if self.dp_delta is None:
            object.__setattr__(self, "dp_delta", DELTA)
        for name, needed in (
            ("sampling", "bernoulli"),
            ("averaging", "uniform"),
            ("aggregation", None),
        ):
            if getattr(self, name) != needed:
                raise InputError(
                    f"Differential privacy needs {name}={needed or 'mean'}, not {getattr(self, name)}: "
                    "its ε holds for no other."
                )

    def per_round(self, clients: int) -> float:
        """Clients per round out of that many; their expected number under Bernoulli sampling."""
        if self.clients_per_round is not None:
            if self.clients_per_round > clients:
                raise InputError(
                    f"clients_per_round is {self.clients_per_round}, but there are only {clients} clients."
                )
            return self.clients_per_round
        if self.sampling == "bernoulli":
            if self.participation * clients < 0.1:
                raise InputError(
                    f"participation {self.participation:g} of {clients} clients leaves almost every round empty."
                )
            return self.participation * clients
        return max(1, round_half_up(self.participation * clients))


def is_natural(partition: object) -> bool:
    """Whether the data say how many clients there are."""
    return str(partition).startswith("natural")


@dataclass(frozen=True)
class RunConfig(Settings):
    """What the command line must name beside the settings: data set, model, partition, method."""

    method: str = option("fedwmsam", "which method; `fedwmsam methods` lists them", panel=RUN)
    dataset: str = option(
        "digits", "which data set", panel=RUN, see="docs/data.md", held_equal=True
    )
    model: str = option("mlp", "which model", panel=RUN, see="docs/models.md", held_equal=True)
    partition: str = option(
        "dirichlet:0.1",
        "how the data are dealt out, such as iid or dirichlet:BETA",
        panel=RUN,
        see="docs/partitions.md",
        held_equal=True,
    )
    augmentation: str = option(
        "none", "paper: flip and crop training images", choices=("none", "paper"), panel=RUN
    )
    clients: int | None = option(
        None,
        "number of clients: 20, or what the data say with natural",
        low=1,
        panel=RUN,
        held_equal=True,
    )
    validation: float = option(
        0.0,
        "share of the training data held out to choose the best model",
        low=0,
        high=0.9,
        panel=EVALUATION,
        held_equal=True,
    )
    data_dir: str | None = option(
        None, "folder with the data set's files", panel=RUN, changes_numbers=False
    )
    preset: str | None = option(
        None,
        "paper or tuned: named settings below any explicit value",
        panel=RUN,
        changes_numbers=False,
    )
    track: str | None = option(
        None,
        "where else to log each round: tensorboard, wandb or both, with a comma between",
        panel=SAVING,
        changes_numbers=False,
    )
    options: dict[str, Any] = field(default_factory=dict)
    """The method's own hyper-parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.make_method()
        parse_trackers(self.track)
        if self.clients is None and not is_natural(self.partition):
            object.__setattr__(self, "clients", CLIENTS)
        if self.clients is not None:
            self.per_round(self.clients)

    def make_method(self) -> Any:
        """The method with its options, a `Method`."""
        return make_method(self.method, **self.options)

    def flat(self) -> dict[str, Any]:
        """All keys at one level, as config.toml holds them, the method's resolved hyper-parameters last."""
        values = asdict(self)
        del values["options"]
        if values["clip_norm"] is None:
            values["clip_norm"] = "none"  # left out, it would read as the default
        first = ("method", "dataset", "model", "partition", "augmentation", "clients")
        return {k: values.pop(k) for k in first} | values | asdict(self.make_method())


STOPPING_SETTINGS = tuple(f.name for f in fields(RunConfig) if f.metadata.get("goal"))
"""Settings that say when a run ends."""
RESULT_NEUTRAL_SETTINGS = tuple(
    f.name for f in fields(RunConfig) if f.metadata and not f.metadata["changes_numbers"]
)
"""Settings that change no number of a run; a preset is in the values it sets."""


def resolve(*layers: dict[str, Any]) -> RunConfig:
    """One configuration from flat layers, the strongest last; each key is a setting or an option of the method.

    A mistake in a setting is found before the method's class is imported, which takes PyTorch and seconds.
    """
    given: dict[str, Any] = {}
    for layer in layers:
        if "method" in layer and layer["method"] != given.get("method"):
            drop_options(given)  # a file's options belong to the file's method
        given |= layer
    method = method_name(given)
    check_method_name(method)
    if isinstance(given.get("workers"), str):
        given["workers"] = parse_workers(given["workers"])
    if not isinstance(given.get("preset", ""), str | None):
        raise InputError(f"preset must be a word, not {truncated_repr(given['preset'])}.")
    preset = preset_values(given.get("preset"), method)
    if is_natural(given.get("partition")):
        preset.pop("clients", None)
    given = preset | given
    settings = known_settings(given)
    check_settings(settings)
    own = option_names(method)
    for key in given:
        if key not in settings and key not in own:
            raise InputError(
                unknown_name_message(
                    f"setting or option of {method}", key, [*setting_names(), *own]
                )
            )
    return RunConfig(**settings, options={key: value for key, value in given.items() if key in own})


def known_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Those of the keys that are settings; the word none is None where a setting may be that."""
    kinds = field_types(RunConfig)
    return {
        key: None if given[key] == "none" and NoneType in kinds[key] else given[key]
        for key in setting_names()
        if key in given
    }


def check_settings(settings: dict[str, Any]) -> None:
    """Raise InputError at the first setting that is wrong by itself or beside the others."""
    kinds = field_types(RunConfig)
    for f in fields(RunConfig):
        if f.name in settings:
            validate_value(f.name, settings[f.name], kinds[f.name], f.metadata)
    shared = {f.name for f in fields(Settings)}
    Settings(**{key: value for key, value in settings.items() if key in shared})
    parse_trackers(settings.get("track"))


def method_name(*layers: dict[str, Any]) -> str:
    name = [RunConfig.method, *(layer["method"] for layer in layers if "method" in layer)][-1]
    if not isinstance(name, str):
        raise InputError(f"method must be a word, not {truncated_repr(name)}.")
    return name


def parse_workers(text: str) -> int:
    return 0 if text == "auto" else int(parse_typed("workers", text, (int,)))


def drop_options(given: dict[str, Any]) -> None:
    before = given.get("method")
    if isinstance(before, str) and before in METHOD_CLASS_PATHS:
        for name in option_names(before):
            given.pop(name, None)


def identifying_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a run from others, out of all that its folder says of it."""
    usual = defaults_of(config.get("method"))
    return {
        key: value
        for key, value in config.items()
        if key not in RESULT_NEUTRAL_SETTINGS
        and value is not None
        and (key in ALWAYS_IDENTIFYING or usual.get(key) != value)
    }


def defaults_of(method: object) -> dict[str, Any]:
    """Of all settings, and of the method's options if it is one of this library's."""
    own = (
        fields(method_class(method))
        if isinstance(method, str) and method in METHOD_CLASS_PATHS
        else ()
    )
    return {f.name: f.default for f in (*fields(RunConfig), *own) if f.name != "options"}


def settings_by_panel() -> "list[Field[Any]]":
    """The declarations of all settings that have a flag, in the order of `--help`."""
    flags = [f for f in fields(RunConfig) if f.metadata.get("panel")]
    return sorted(flags, key=lambda f: PANELS.index(f.metadata["panel"]))


def setting_names() -> list[str]:
    return [f.name for f in fields(RunConfig) if f.name != "options"]


def option_names(method: str) -> list[str]:
    return [f.name for f in fields(method_class(method))]


def parse_assignments(assignments: Sequence[str], method: str) -> dict[str, Any]:
    """`key=value` texts as typed values; a setting's before an option's, which takes the method's class."""
    return {key: parse_value(key, text, method) for key, text in map(read_assignment, assignments)}


def read_assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set takes key=value, not {text!r}.")
    return key.strip().replace("-", "_"), value.strip()


def parse_value(key: str, text: str, method: str) -> Any:
    """A setting or an option of the method as its own type."""
    if key == "workers":
        return parse_workers(text)
    if key in setting_names():
        return parse_typed(key, text, field_types(RunConfig)[key])
    own = option_names(method)
    if key not in own:
        raise InputError(
            unknown_name_message(f"setting or option of {method}", key, [*setting_names(), *own])
        )
    return parse_typed(key, text, field_types(method_class(method))[key])
