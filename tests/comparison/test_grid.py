"""Which runs a comparison consists of."""

import pytest

from fedwmsam.comparison.grid import config_fingerprint, make_grid, parse_axes, parse_settings
from fedwmsam.errors import InputError
from fedwmsam.settings import config
from fedwmsam.settings.config import resolve_config


def runs(file_values=None, **cli_values):
    """Return the label and the seed of each run."""
    specs = make_grid(file_values or {}, cli_values).run_specs()
    return [(spec.label, spec.config.seed) for spec in specs]


def test_methods_times_seeds_with_all_methods_of_a_seed_first():
    assert runs(methods="fedavg, fedcm", seeds="2") == [
        ("fedavg", 0),
        ("fedcm", 0),
        ("fedavg", 1),
        ("fedcm", 1),
    ]
    assert runs(methods=["fedavg"], seeds=[4, 7]) == [("fedavg", 4), ("fedavg", 7)]
    assert runs() == [("fedwmsam", 0)]


def test_an_option_is_varied_only_for_the_methods_that_have_it():
    labels = runs(methods="fedavg,fedsam", grid={"rho": [0.1, 0.2]})
    assert labels == [("fedavg", 0), ("fedsam rho=0.1", 0), ("fedsam rho=0.2", 0)]


def test_a_common_option_goes_to_the_methods_that_have_it():
    specs = make_grid({}, {"methods": "fedavg,fedsam", "rho": 0.3}).run_specs()
    assert [spec.config.options for spec in specs] == [{}, {"rho": 0.3}]


def test_variants_belong_together_and_combine_with_the_grid():
    file_values = {
        "rounds": 7,
        "variants": [
            {"method": "fedcm", "weight_decay_mode": "sgd"},
            {"method": "fedcm", "alpha": 0.5},
        ],
        "grid": {"lr": [0.1, 0.2]},
    }
    assert [label for label, _ in runs(file_values)] == [
        "fedcm weight_decay_mode=sgd lr=0.1",
        "fedcm weight_decay_mode=sgd lr=0.2",
        "fedcm alpha=0.5 lr=0.1",
        "fedcm alpha=0.5 lr=0.2",
    ]
    specs = make_grid(file_values, {"rounds": 9}).run_specs()
    assert {spec.config.rounds for spec in specs} == {9}


def test_one_configuration_asked_for_twice_is_one_run():
    assert runs(methods="fedsam", grid={"rho": [0.01, 0.01]}) == [("fedsam rho=0.01", 0)]


def fingerprint(**values):
    return config_fingerprint(resolve_config(values))


def test_a_folder_name_tells_configurations_apart_but_not_machines():
    base = fingerprint(method="fedsam")
    for change in (
        {"rho": 0.2},
        {"seed": 1},
        {"rounds": 51},
        {"partition": "iid"},
        {"lr": 0.2},
        {"clip_norm": "none"},
    ):
        assert fingerprint(method="fedsam", **change) != base
    for same in ({"workers": 2}, {"checkpoint_every": 3}, {"data_dir": "/x"}, {"rho": 0.01}):
        assert fingerprint(method="fedsam", **same) == base
    preset_values = resolve_config({"preset": "paper"}).to_flat_dict()
    spelled_out = {k: v for k, v in preset_values.items() if v and k != "preset"}
    assert fingerprint(**spelled_out) == fingerprint(preset="paper")


DEFAULTS = {
    "fedwmsam": "9dd76735",
    "fedwmsam-plus": "accb0dc5",
    "fedavg": "d10e18ea",
    "fedprox": "cb66cd95",
    "fedavgm": "0c4d994d",
    "fedadam": "30a8e202",
    "fedacg": "33b2b705",
    "fedcm": "6cc28f80",
    "mimelite": "ead77d02",
    "scaffold": "d69f0b72",
    "scaffold-m": "319daa5b",
    "feddyn": "5b1c2897",
    "fedsam": "a55bb5bd",
    "mofedsam": "b62731b9",
    "fedgamma": "0e884f3c",
    "fedspeed": "472ffdb9",
    "fedsmoo": "d614a167",
    "fedlesam": "97525418",
    "fedlesam-s": "0d82dc73",
    "fedlesam-d": "f7b19386",
    "fedgloss": "b6c1f4f0",
}


def test_the_fingerprints_of_the_first_version_stay():
    """Comparisons made years ago go on: a new setting or option must not rename their runs."""
    assert {method: fingerprint(method=method) for method in DEFAULTS} == DEFAULTS


def test_a_later_setting_counts_only_where_it_is_not_at_its_default(monkeypatch):
    for name in ("lr_decay", "alpha"):  # as if they were new, a setting and an option
        monkeypatch.setattr(config, "ALWAYS_IDENTIFYING", config.ALWAYS_IDENTIFYING - {name})
        settings = config.identifying_settings(resolve_config({}).to_flat_dict())
        assert name not in settings and config.identifying_settings(settings) == settings
        changed = config.identifying_settings(resolve_config({name: 0.5}).to_flat_dict())
        assert changed == settings | {name: 0.5}


def test_a_folder_name_is_a_plain_word():
    axes = {"partition": ["natural", "dirichlet:0.1"]}
    specs = make_grid({}, {"methods": "fedsam", "grid": axes}).run_specs()
    name = specs[1].folder_name
    assert name.startswith("fedsam-partition")
    assert "/" not in name and ":" not in name and " " not in name


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"methods": "fedavgg"}, "Did you mean 'fedavg'"),
        ({"methods": 3}, "list of names"),
        ({"seeds": 0}, "at least 1"),
        ({"seeds": 10**9}, "at most 100000"),
        ({"seeds": str(10**30)}, "at most 100000"),
        ({"grid": {name: [0.1] * 99 for name in ("lr", "rho", "dp_clip")}}, "970,299 runs"),
        ({"seeds": "a,b"}, "seeds must be"),
        ({"seeds": [-1]}, "seeds must be"),
        ({"seeds": True}, "seeds must be"),
        ({"seed": 3}, "use seeds"),
        ({"methods": "fedavg", "method": "fedcm"}, "not both"),
        ({"methods": "fedavg", "variants": [{"method": "fedcm"}]}, "not both"),
        ({"variants": 3}, "variants must be tables"),
        ({"grid": {"rho": 0.1}}, "table of lists"),
        ({"grid": {"rho": []}}, "table of lists"),
        ({"grid": {"seed": [1, 2]}}, "use seeds"),
        ({"methods": "fedavg", "grid": {"rho": [0.1]}}, "fedavg has no option 'rho'; .*fedsam"),
        ({"methods": "fedavg,fedcm", "grid": {"rho": [1]}}, "None of fedavg, fedcm has an option"),
        ({"grid": {"learning_rate": [0.1]}}, "Did you mean 'lr'"),
        ({"metods": ["fedavg"]}, "Did you mean 'methods'.* rounds, .*seeds, .*tuning, .*variants"),
        ({"methods": "fedavg", "tune": {"lr": [0.1]}}, "Did you mean 'tuning'"),
        ({"methods": "fedavg", "rho": 0.1}, "fedavg has no option 'rho'; .*fedsam"),
        ({"rho": 0.2, "grid": {"rho": [0.1]}}, "leave one out"),
        ({"rho": 0.2, "variants": [{"rho": 0.1}]}, "leave one out"),
    ],
)
def test_what_cannot_be_meant_is_refused(values, words):
    with pytest.raises(InputError, match=words):
        make_grid({}, values).run_specs()


def test_an_unknown_common_setting_is_refused_for_all():
    with pytest.raises(InputError, match="rhoo"):
        make_grid({}, {"methods": "fedavg,fedsam", "rhoo": 1}).run_specs()


def test_axes_are_typed_as_their_options():
    values = {"methods": "fedavg,fedwmsam"}
    assert parse_axes(["rho=0.1, 0.2", "local-epochs=1,5"], values) == {
        "rho": [0.1, 0.2],
        "local_epochs": [1, 5],
    }
    assert parse_settings(["perturbation=none"], values) == {"perturbation": "none"}
    with pytest.raises(InputError, match="key=a,b,c"):
        parse_axes(["rho"], values)


def test_what_changes_no_number_names_no_run():
    plain, kept = (
        make_grid({"variants": [{"method": "fedavg"} | extra]}, {}).run_specs()[0]
        for extra in ({}, {"keep_states": 10})
    )
    assert plain.folder_name == kept.folder_name and plain.label == kept.label == "fedavg"
