"""The configuration of a run: every setting once, with its meaning, default and range.

`Settings` holds what `fit` and the command line share. `RunConfig` adds what the command line must
name: data set, model, partition and method. `resolve` makes a `RunConfig` from layers: the command
line goes before the file, the file before the preset, the preset before the defaults. An unknown
key is an error that names the nearest known one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from types import NoneType
from typing import Any

from fedwmsam.errors import InputError, unknown_name_message
from fedwmsam.settings.method_table import (
    allow_import,
    canonical_name,
    known_class,
    make_method,
    method_class,
    missing_option_message,
    option_names,
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
    LAST_BATCH,
    MOST_WORKERS,
    OPTIMIZERS,
    PRECISIONS,
    SAMPLING,
    WEIGHT_DECAY_MODES,
    parse_aggregation,
    parse_corruption,
    parse_lr_schedule,
    parse_stragglers,
    parse_trackers,
    parse_workers,
    round_half_up,
)
from fedwmsam.settings.presets import preset_values

# A closed list: a new setting is declared in `Settings` or `RunConfig` below, and never added here.
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
"""Do not add to this: it lists the settings and options that are as old as the first kept runs.

Their values tell runs apart even where they are the defaults. Every later setting counts only where
it differs from its default, so that it renames no folder, splits no row of a table and stops no run
from being resumed.
"""
RECORDABLE = ("alignment", "drift", "echo")
"""The dynamics of training that the setting `record` may name."""
DEFAULT_DELTA = 1e-5
"""The δ of differential privacy that is used unless `dp_delta` is set."""
MOST = 10**9
"""The largest whole number of a setting: no run needs more, and 32 bits hold it."""
DEFAULT_CLIENTS = 20
"""The number of clients if neither the user nor the data determine it."""

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
"""The headings under which `--help` lists the flags of settings, in this order."""
FLOWER_REAL_FAULTS = "clients fail and lie by themselves here; simulate that with fedwmsam.fit"
FLOWER_NO_PRIVACY = "differential privacy is built for the simulator only"
FLOWER_NO_CLIENT_DATA = "it needs the clients' data where the server is"
FLOWER_OWN_PROCESSES = "each client is a process of its own"


@dataclass(frozen=True)
class Settings:
    """The settings that `fit`, the command line and Flower share."""

    rounds: int = option(
        50, "rounds to train", low=1, high=MOST, panel=ROUNDS, must_match=True, ends_run=True
    )
    participation: float = option(
        0.25, "share of the clients that train in a round", above=0, high=1, panel=ROUNDS
    )
    clients_per_round: int | None = option(
        None, "clients that train in a round, instead of the share", low=1, high=MOST, panel=ROUNDS
    )
    sampling: str = option(
        "fixed",
        "fixed: always as many clients; bernoulli: each independently",
        choices=SAMPLING,
        panel=ROUNDS,
    )
    local_epochs: int = option(
        5, "passes over a client's data in a round", low=1, high=10**6, panel=LOCAL
    )
    batch_size: int = option(50, "samples per local step", low=1, high=MOST, panel=LOCAL)
    lr: float = option(0.1, "local step size in the first round", above=0, panel=LOCAL)
    lr_decay: float = option(
        0.998, "factor on the step size from round to round", above=0, high=1, panel=LOCAL
    )
    weight_decay: float = option(1e-3, "strength of the L2 penalty", low=0, panel=LOCAL)
    weight_decay_mode: str = option(
        "objective",
        "objective: part of the gradient; sgd: added after the clip, as published code does",
        choices=WEIGHT_DECAY_MODES,
        panel=LOCAL,
    )
    local_steps: int | None = option(
        None, "local steps in a round, instead of epochs", low=1, high=10**6, panel=LOCAL
    )
    last_batch: str = option(
        "keep",
        "samples that do not fill an epoch's last batch: keep it, drop it, or merge it with the "
        "one before",
        choices=LAST_BATCH,
        panel=LOCAL,
        see="docs/local-training.md",
    )
    lr_schedule: str | None = option(
        None,
        "instead of lr_decay: cosine, step:ROUNDS:FACTOR or exponential:FACTOR",
        panel=LOCAL,
        see="docs/local-training.md",
    )
    lr_warmup: int = option(
        0, "first rounds, over which the step size rises", low=0, high=10**9, panel=LOCAL
    )
    optimizer: str = option(
        "sgd",
        "what becomes of a gradient before the method uses it",
        choices=OPTIMIZERS,
        panel=LOCAL,
        see="docs/local-training.md",
    )
    momentum: float = option(
        0.0, "μ of sgd and nesterov, fresh in every round", low=0, high=0.9999, panel=LOCAL
    )
    adam_beta1: float = option(0.9, "β₁ of adam and adamw", low=0, high=0.9999, panel=LOCAL)
    adam_beta2: float = option(0.999, "β₂ of adam and adamw", low=0, high=0.999999, panel=LOCAL)
    adam_epsilon: float = option(1e-8, "ε of adam and adamw", above=0, high=1, panel=LOCAL)
    micro_batch: int | None = option(
        None,
        "samples that pass through the model at a time; gradients are added up to a batch's",
        low=1,
        high=10**9,
        panel=LOCAL,
    )
    precision: str = option(
        "float32",
        "bf16: local training computes in bfloat16 where that is safe; weights stay float32",
        choices=PRECISIONS,
        panel=LOCAL,
    )
    clip_norm: float | None = option(
        10.0, "longest direction a local step may take (none: no limit)", above=0, panel=LOCAL
    )
    twin: float | None = option(
        None,
        "γ of an averaged twin, such as 8: an average of the global models, evaluated beside them "
        "and never trained on",
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
        see="docs/trust.md",
    )
    dropout: float | None = option(
        None,
        "probability that a sampled client never answers",
        low=0,
        high=1,
        panel=FAULTS,
        see="docs/trust.md",
        flower_refusal=FLOWER_REAL_FAULTS,
    )
    stragglers: str | None = option(
        None,
        "SHARE:FACTOR: so many clients are slower by that factor, such as 0.3:4; "
        "0.3:4:drop: unfinished is lost",
        panel=FAULTS,
        flower_refusal=FLOWER_REAL_FAULTS,
    )
    deadline: float | None = option(
        None,
        "when a round closes, in the time an ordinary client needs for its steps (none: 1)",
        above=0,
        panel=FAULTS,
        flower_refusal=FLOWER_REAL_FAULTS,
    )
    corrupt: str | None = option(
        None,
        "KIND:SHARE: hostile clients, such as sign_flip:0.1; "
        "nan, huge, sign_flip, random, stale, label_flip",
        panel=FAULTS,
        flower_refusal=FLOWER_REAL_FAULTS,
    )
    dp_noise: float | None = option(
        None,
        "σ of differential privacy: noise on the sum, in units of dp_clip",
        low=0,
        panel=PRIVACY,
        see="docs/trust.md",
        flower_refusal=FLOWER_NO_PRIVACY,
    )
    dp_epsilon: float | None = option(
        None,
        "ε that all rounds may spend, instead of the noise",
        above=0,
        panel=PRIVACY,
        flower_refusal=FLOWER_NO_PRIVACY,
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
    seed: int = option(0, "seed of everything random", low=0, high=2**31 - 1, panel=ROUNDS)
    evaluate_every: int = option(
        1,
        "rounds from one evaluation to the next (the last is always evaluated)",
        low=1,
        high=MOST,
        panel=EVALUATION,
        must_match=True,
    )
    checkpoint_every: int = option(
        10,
        "rounds from one checkpoint to the next",
        low=1,
        high=MOST,
        panel=SAVING,
        affects_results=False,
    )
    target_accuracy: float | None = option(
        None,
        "stop when it is reached",
        above=0,
        high=1,
        panel=EVALUATION,
        must_match=True,
        ends_run=True,
    )
    patience: int | None = option(
        None,
        "stop after so many rounds without a better validation score",
        low=1,
        high=MOST,
        panel=EVALUATION,
        must_match=True,
        ends_run=True,
    )
    time_budget: float | None = option(
        None,
        "stop after so many seconds",
        above=0,
        panel=EVALUATION,
        must_match=True,
        ends_run=True,
    )
    memory_budget: float = option(
        1000.0,
        "megabytes of RAM for what is kept per client; the rest is on disk",
        low=0,
        panel=MACHINE,
        affects_results=False,
    )
    keep_states: int | None = option(
        None,
        "keep the state before every so many rounds, for later analysis",
        low=1,
        high=MOST,
        panel=SAVING,
        affects_results=False,
        flower_refusal=FLOWER_NO_CLIENT_DATA,
    )
    record: str | None = option(
        None,
        "dynamics to record, such as alignment,drift,echo",
        panel=SAVING,
        see="docs/dynamics.md",
        affects_results=False,
        flower_refusal=FLOWER_NO_CLIENT_DATA,
    )
    record_every: int = option(
        10,
        "rounds from one recording to the next (an echo is recorded in each)",
        low=1,
        high=MOST,
        panel=SAVING,
        affects_results=False,
    )
    record_host: bool = option(
        False,
        "also note this machine's name in provenance.json",
        panel=SAVING,
        affects_results=False,
    )
    workers: int | str = option(
        1,
        "processes that train clients side by side (0: one for each core), or ray:4 for a cluster",
        low=0,
        high=MOST_WORKERS,
        panel=MACHINE,
        see="docs/clusters.md",
        affects_results=False,
        flower_refusal=FLOWER_OWN_PROCESSES,
    )
    device: str = option(
        "cpu",
        "where to compute: cpu, cuda, cuda:1, mps, or auto for the first of cuda, mps, cpu",
        panel=MACHINE,
        see="docs/project/versions.md",
        affects_results=False,
    )

    def __post_init__(self) -> None:
        validate_fields("", self)
        self.recording_kinds()
        if isinstance(self.workers, str) and isinstance(parse_workers(self.workers), int):
            object.__setattr__(self, "workers", parse_workers(self.workers))
        if self.aggregation == "mean":  # one name for one rule: the same run, the same row
            object.__setattr__(self, "aggregation", None)
        if self.aggregation is not None:
            parse_aggregation(self.aggregation)
        parse_stragglers(self.stragglers, self.deadline)
        self.check_local_training()
        if self.corrupt is not None:
            parse_corruption(self.corrupt)
        if self.uses_privacy:
            self.check_privacy()

    def check_local_training(self) -> None:
        """Raise InputError for an optimizer and a schedule of the step size that cannot be.

        A cosine is written with its number of rounds: a run that is extended keeps its own.
        """
        if self.lr_schedule == "cosine":
            rounds = max(1, self.rounds - self.lr_warmup)
            object.__setattr__(self, "lr_schedule", f"cosine:{rounds}")
        if self.lr_schedule is not None:
            parse_lr_schedule(self.lr_schedule)
        if self.momentum and self.optimizer in ("adam", "adamw"):
            raise InputError(
                f"momentum {self.momentum:g} is for sgd and nesterov; adam's is adam_beta1."
            )
        if self.optimizer == "nesterov" and not self.momentum:
            raise InputError("optimizer=nesterov needs a momentum, such as momentum=0.9.")

    def recording_kinds(self) -> list[str]:
        """Return the kinds of dynamics to record, each once; raise InputError if one is unknown."""
        names = [name.strip() for name in (self.record or "").split(",")]
        kinds = list(dict.fromkeys(name for name in names if name))
        for kind in kinds:
            if kind not in RECORDABLE:
                raise InputError(unknown_name_message("kind of recording", kind, RECORDABLE))
        return kinds

    @property
    def uses_privacy(self) -> bool:
        """Return whether the run is differentially private."""
        return self.dp_noise is not None or self.dp_epsilon is not None

    def check_privacy(self) -> None:
        """Raise InputError unless the guarantee of differential privacy holds for the settings.

        A `dp_delta` that is not set becomes `DELTA`.
        """
        if self.dp_noise is not None and self.dp_epsilon is not None:
            raise InputError("Give either dp_noise or dp_epsilon: each follows from the other.")
        if self.dp_clip is None:
            raise InputError(
                "Differential privacy needs dp_clip, the longest upload that counts in full; "
                "try dp_clip=1."
            )
        if self.dp_delta is None:
            object.__setattr__(self, "dp_delta", DEFAULT_DELTA)
        if self.recording_kinds():
            raise InputError(
                f"Differential privacy does not go with record={self.record}: recordings hold "
                "numbers of single clients, made without noise. Leave record out."
            )
        required = {"sampling": "bernoulli", "averaging": "uniform", "aggregation": None}
        for name, value in required.items():
            if getattr(self, name) != value:
                raise InputError(
                    f"Differential privacy needs {name}={value or 'mean'}, "
                    f"not {getattr(self, name)}: its ε holds for no other."
                )

    def cohort_size(self, clients: int) -> float:
        """Return how many out of that many clients train in a round.

        Under Bernoulli sampling it is their expected number. Raise InputError if there are not so
        many clients, or if almost every round would be empty.
        """
        if self.clients_per_round is not None:
            if self.clients_per_round > clients:
                raise InputError(
                    f"clients_per_round is {self.clients_per_round}, "
                    f"but there are only {clients} clients."
                )
            return self.clients_per_round
        if self.sampling == "bernoulli":
            if self.participation * clients < 0.1:
                raise InputError(
                    f"participation {self.participation:g} of {clients} clients "
                    "leaves almost every round empty."
                )
            return self.participation * clients
        return max(1, round_half_up(self.participation * clients))


def is_natural(partition: object) -> bool:
    """Return whether a partition takes the clients, and so their number, from the data."""
    return str(partition).startswith("natural")


@dataclass(frozen=True)
class RunConfig(Settings):
    """The settings of a run on the command line: also data set, model, partition and method."""

    method: str = option(
        "fedwmsam",
        "which method; `fedwmsam methods` lists them, package.module:Class is your own",
        panel=RUN,
        see="docs/add-a-method.md",
    )
    dataset: str = option(
        "digits", "which data set", panel=RUN, see="docs/your-model-and-data.md", must_match=True
    )
    model: str = option(
        "mlp", "which model", panel=RUN, see="docs/your-model-and-data.md", must_match=True
    )
    partition: str = option(
        "dirichlet:0.1",
        "how the data are divided among clients, such as iid or dirichlet:BETA",
        panel=RUN,
        see="docs/partitions.md",
        must_match=True,
    )
    augmentation: str = option(
        "none", "paper: flip and crop training images", choices=("none", "paper"), panel=RUN
    )
    clients: int | None = option(
        None,
        "number of clients: 20, or what the data say with natural",
        low=1,
        high=MOST,
        panel=RUN,
        must_match=True,
    )
    validation: float = option(
        0.0,
        "share of the training data held out to choose the best model",
        low=0,
        high=0.9,
        panel=EVALUATION,
        must_match=True,
    )
    data_dir: str | None = option(
        None, "folder with the data set's files", panel=RUN, affects_results=False
    )
    preset: str | None = option(
        None,
        "paper or tuned: named settings below any explicit value",
        panel=RUN,
        affects_results=False,
    )
    track: str | None = option(
        None,
        "where else to log each round: tensorboard, wandb or both, with a comma between",
        panel=SAVING,
        affects_results=False,
    )
    options: dict[str, Any] = field(default_factory=dict)
    """The hyper-parameters of the method that are set; the others keep their defaults."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "method", canonical_name(self.method))
        self.make_method()
        parse_trackers(self.track)
        if self.clients is None and not is_natural(self.partition):
            object.__setattr__(self, "clients", DEFAULT_CLIENTS)
        if self.clients is not None:
            self.cohort_size(self.clients)

    def make_method(self) -> Any:
        """Return the method with its options, a `Method`."""
        return make_method(self.method, **self.options)

    def to_flat_dict(self) -> dict[str, Any]:
        """Return all settings at one level, as config.toml holds them.

        The hyper-parameters of the method come last, those at their defaults included. A setting
        that was switched off is "none": left out of the file, it would be read as its default.
        """
        values = asdict(self)
        del values["options"]
        for f in fields(self):
            if f.default is not None and getattr(self, f.name) is None:
                values[f.name] = "none"
        first = ("method", "dataset", "model", "partition", "augmentation", "clients")
        return {key: values.pop(key) for key in first} | values | asdict(self.make_method())


STOPPING_SETTINGS = tuple(f.name for f in fields(RunConfig) if f.metadata.get("ends_run"))
"""The settings that decide when a run ends."""
RESULT_NEUTRAL_SETTINGS = tuple(
    f.name for f in fields(RunConfig) if f.metadata and not f.metadata["affects_results"]
)
"""The settings that leave the results of a run as they are; a preset acts by the values it sets."""


def resolve_config(*layers: dict[str, Any]) -> RunConfig:
    """Return one configuration from flat layers, the strongest last.

    Each key is a setting or an option of the method. Raise InputError if a key is unknown or a
    value wrong; a mistake in a setting is found before the class of the method is imported, which
    takes PyTorch and seconds.
    """
    values = merge_layers(layers)
    method = method_name(values)
    values = add_preset(values, method)
    settings = select_settings(values)
    check_settings(settings)
    method_options = option_names(method)
    for key in set(method_options) & set(setting_names()):
        raise InputError(f"The option {key!r} of {method} is the name of a setting: rename it.")
    for key in values:
        if key not in settings and key not in method_options:
            raise InputError(unknown_key_message(key, method))
    options = {key: value for key, value in values.items() if key in method_options}
    return RunConfig(**settings, options=options)


def merge_layers(layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of all layers, where a later layer is stronger.

    A layer that names another method drops the method's options of the layers before it: the
    options of a file belong to the method of that file.
    """
    values: dict[str, Any] = {}
    for layer in layers:
        if "method" in layer and method_name(layer) != method_name(values):
            remove_method_options(values)
        values |= layer
    return values


def add_preset(values: dict[str, Any], method: str) -> dict[str, Any]:
    """Return the values with those of the preset that they name, if any, where they have none.

    Raise InputError if the preset is unknown or not a word. Where the data name the clients, the
    preset's number of clients does not count.
    """
    if not isinstance(values.get("preset", ""), str | None):
        raise InputError(f"preset must be a word, not {truncated_repr(values['preset'])}.")
    preset = preset_values(values.get("preset"), method)
    if is_natural(values.get("partition")):
        preset.pop("clients", None)
    return preset | values


def select_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings among the values; "none" becomes None where a setting may be that."""
    types = field_types(RunConfig)
    settings = {key: values[key] for key in setting_names() if key in values}
    for key, value in settings.items():
        if value == "none" and NoneType in types[key]:
            settings[key] = None
    return settings


def check_settings(settings: dict[str, Any]) -> None:
    """Raise InputError at the first setting that is wrong by itself or together with others."""
    types = field_types(RunConfig)
    for f in fields(RunConfig):
        if f.name in settings:
            validate_value(f.name, settings[f.name], types[f.name], f.metadata)
    shared = {f.name for f in fields(Settings)}
    Settings(**{key: value for key, value in settings.items() if key in shared})
    parse_trackers(settings.get("track"))


def method_name(*layers: dict[str, Any]) -> str:
    """Return the canonical name of the method that the last layer to name one chooses.

    Without one it is the default. Raise InputError if there is no such method.
    """
    names = [layer["method"] for layer in layers if "method" in layer]
    name = names[-1] if names else RunConfig.method
    if not isinstance(name, str):
        raise InputError(f"method must be a word, not {truncated_repr(name)}.")
    return canonical_name(name)


def requested_method(*layers: dict[str, Any]) -> str:
    """Return the name of the method in layers that are the user's own, who may have it imported.

    The layers of a run folder or of a message are not: they may be a stranger's.
    """
    name = method_name(*layers)
    allow_import(name)
    return name


def remove_method_options(values: dict[str, Any]) -> None:
    """Delete the options of the method that the values name, if they name one that is known."""
    cls = known_class(values.get("method"))
    for f in fields(cls) if cls else ():
        values.pop(f.name, None)


def identifying_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings and options of a run that tell it from other runs.

    A value counts if the results depend on it and if it is not the default or, for the settings in
    `ALWAYS_IDENTIFYING`, in any case.
    """
    defaults = defaults_of(config.get("method"))
    return {
        key: value
        for key, value in config.items()
        if key not in RESULT_NEUTRAL_SETTINGS
        and value is not None
        and (key in ALWAYS_IDENTIFYING or defaults.get(key) != value)
    }


def defaults_of(method: object) -> dict[str, Any]:
    """Return the defaults of all settings and, for a method that is known, of its options."""
    declared = list(fields(RunConfig))
    cls = known_class(method)
    if cls is not None:
        declared += fields(cls)
    return {f.name: f.default for f in declared if f.name != "options"}


def settings_in_help_order() -> "list[Field[Any]]":
    """Return the declarations of all settings that have a flag, in the order of `--help`."""
    flags = [f for f in fields(RunConfig) if f.metadata.get("panel")]
    return sorted(flags, key=lambda f: PANELS.index(f.metadata["panel"]))


def setting_names() -> list[str]:
    """Return the names of all settings, without the options of methods."""
    return [f.name for f in fields(RunConfig) if f.name != "options"]


def unknown_key_message(key: str, method: str) -> str:
    """Return the sentence for a key that is neither a setting nor an option of the method."""
    names = [*setting_names(), *option_names(method)]
    message = missing_option_message(key, [method])
    return message or unknown_name_message(f"setting or option of {method}", key, names)


def parse_assignments(assignments: Sequence[str], method: str) -> dict[str, Any]:
    """Return the values of `key=value` texts, each converted to the type of its field.

    Raise InputError if a text has no "=", if its key is neither a setting nor an option of the
    method, or if the value is no number where a number is expected.
    """
    pairs = map(split_assignment, assignments)
    return {key: parse_value(key, text, method) for key, text in pairs}


def split_assignment(text: str) -> tuple[str, str]:
    """Return the key and the text of the value of `key=value`, or raise InputError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set takes key=value, not {text!r}.")
    return key.strip().replace("-", "_"), value.strip()


def parse_value(key: str, text: str, method: str) -> Any:
    """Return a text, converted to the type of the setting or of the method's option called `key`.

    The class of the method, which takes PyTorch, is imported only if the key is not a setting.
    """
    if key == "workers":
        return text
    if key in setting_names():
        return parse_typed(key, text, field_types(RunConfig)[key])
    if key not in option_names(method):
        raise InputError(unknown_key_message(key, method))
    return parse_typed(key, text, field_types(method_class(method))[key])
