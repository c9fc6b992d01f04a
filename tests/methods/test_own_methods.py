"""Methods outside the library: named by path or registered by a package, in every command."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers.flower_in_process import CLIENTS, SETTINGS, FakeGrid, load_data, network
from helpers.loose_modules import load_module
from helpers.markdown_pages import ROOT

import fedwmsam
from fedwmsam import InputError
from fedwmsam.experiment.experiment import load_config
from fedwmsam.experiment.trust import Trust
from fedwmsam.flower import FlowerStrategy, make_client_app
from fedwmsam.flower.strategy import from_run_config
from fedwmsam.methods import make_method
from fedwmsam.settings.config import resolve_config
from fedwmsam.settings.method_table import canonical_name, known_class

EXAMPLE = ROOT / "examples" / "own_method"
PATH = "fading_prox:FadingProx"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that holds the guide's method and nothing else."""
    shutil.copy(EXAMPLE / "fading_prox.py", tmp_path)
    return tmp_path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "fedwmsam", *map(str, arguments)]


def run(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, in an environment that does not know the folder by itself."""
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def only_run(out: Path, start: str = "") -> Path:
    (path,) = (p for p in out.iterdir() if p.is_dir() and p.name.startswith(start))
    return path


def results(out: Path) -> dict[str, tuple[bytes, bytes]]:
    """Return the metrics and the model of each run."""
    runs = sorted(path.parent for path in out.glob("*/config.toml"))
    return {
        run.name: ((run / "metrics.jsonl").read_bytes(), (run / "model.safetensors").read_bytes())
        for run in runs
    }


def test_the_guides_method_passes_its_own_tests():
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=EXAMPLE,
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0 and outcome.stdout.startswith("... "), outcome.stdout


@pytest.mark.slow
def test_a_comparison_killed_and_started_again_ends_as_if_it_never_was(folder):
    """Two seeds of an own method beside FedAvg, each run in a process of the comparison."""
    arguments = ["--methods", f"FedAvg,{PATH}", "--seeds", 2, "--rounds", 20]
    arguments += ["--set", "half_life=5", "--set", "checkpoint_every=2", "--jobs", 2]
    whole = run(folder, "compare", *arguments, "--out", "whole")
    assert whole.returncode == 0 and PATH in whole.stdout, whole.stderr
    process = subprocess.Popen(
        command("compare", *arguments, "--out", "killed"),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not list((folder / "killed").glob("fading*/metrics.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = run(folder, "compare", *arguments, "--out", "killed")
    assert again.returncode == 0, again.stderr
    assert results(folder / "killed") == results(folder / "whole")
    names = " ".join(results(folder / "whole"))
    assert names.count("fading_prox-FadingProx-seed") == names.count("fedavg-seed") == 2


@pytest.mark.slow
def test_a_run_is_resumed_evaluated_and_analysed_only_if_its_method_is_named_again(folder):
    first = run(folder, "run", "--method", PATH, "--rounds", 4, "--workers", 2, "--out", "a")
    assert first.returncode == 0, first.stderr
    cut = run(folder, "run", "--method", PATH, "--rounds", 2, "--out", "b")
    assert cut.returncode == 0, cut.stderr
    path = only_run(folder / "b")
    text = (path / "config.toml").read_text()
    assert f'method = "{PATH}"' in text and "half_life = 10.0" in text
    refused = run(folder, "resume", path, "--rounds", 4)
    assert refused.returncode == 2 and f"--method {PATH}" in refused.stderr
    resumed = run(folder, "resume", path, "--rounds", 4, "--method", PATH)
    assert resumed.returncode == 0, resumed.stderr
    assert results(folder / "a") == results(folder / "b")
    evaluated = run(folder, "evaluate", path, "--trust")
    assert evaluated.returncode == 0 and "accuracy" in evaluated.stdout
    analysed = run(
        folder, "analyse", "flatness", path, "--method", PATH, "--samples", 50, "--clients", 0
    )
    assert analysed.returncode == 0 and (path / "analysis" / "flatness.json").exists()


def test_a_report_imports_nothing_and_still_says_how_to_run_it_again(folder):
    arguments = ["--methods", f"FedAvg,{PATH}", "--rounds", 1, "--set", "lam=0.5", "--out", "a"]
    made = run(folder, "compare", *arguments)
    assert made.returncode == 0 and PATH in made.stdout, made.stderr
    (folder / "fading_prox.py").write_text("open('imported', 'w')\n")
    report = run(folder, "report", "a", "--html", "page.html")
    assert report.returncode == 0 and PATH in report.stdout, report.stderr
    page = (folder / "page.html").read_text()
    assert f"fedwmsam run --method {PATH}" in page and "--set lam=0.5" in page
    assert not (folder / "imported").exists()


def test_a_strangers_folder_imports_no_method(folder, monkeypatch):
    (folder / "mischief.py").write_text("open('imported', 'w')\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    made = run(folder, "run", "--rounds", 1, "--out", "a")
    assert made.returncode == 0, made.stderr
    path = only_run(folder / "a")
    config = path / "config.toml"
    config.write_text(config.read_text().replace('"fedwmsam"', '"mischief:Method"', 1))
    with pytest.raises(InputError, match="would be imported and run"):
        load_config(path)
    with pytest.raises(InputError, match="would be imported and run"):
        load_config(path, Trust(method="another:Method"))
    with pytest.raises(InputError, match="would be imported"):
        resolve_config({"method": "mischief:Method"})
    assert known_class("mischief:Method") is None
    assert not (folder / "imported").exists()
    with pytest.raises(InputError, match="Unknown class"):
        load_config(path, Trust(everything=True))
    assert (folder / "imported").exists()


@pytest.mark.slow
def test_an_installed_package_registers_methods(folder):
    information = folder / "site" / "fading_prox-1.0.dist-info"
    information.mkdir(parents=True)
    shutil.move(folder / "fading_prox.py", folder / "site")
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fading-prox\nVersion: 1\n")
    entries = information / "entry_points.txt"
    entries.write_text("[fedwmsam.methods]\nfading-prox = fading_prox:FadingProx\n")
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    made = run(
        folder, "run", "--method", "Fading-Prox", "--rounds", 1, "--out", "a", PYTHONPATH=path
    )
    assert made.returncode == 0, made.stderr
    assert 'method = "fading-prox"' in (only_run(folder / "a") / "config.toml").read_text()
    listed = run(folder, "methods", PYTHONPATH=path)
    assert re.search(r"^of installed packages\n.+\n  fading-prox +1 ", listed.stdout, re.MULTILINE)
    resumed = run(folder, "resume", only_run(folder / "a"), "--rounds", 2, PYTHONPATH=path)
    assert resumed.returncode == 0, resumed.stderr

    entries.write_text("[fedwmsam.methods]\nfading-prox = fading_prox:Missing\n")
    broken = run(folder, "run", "--method", "fading-prox", PYTHONPATH=path)
    assert broken.returncode == 2 and "cannot be imported from fading_prox:Missing" in broken.stderr
    entries.write_text("[fedwmsam.methods]\nfaded = fading_prox:FadingProx\n")
    misnamed = run(folder, "run", "--method", "faded", PYTHONPATH=path)
    assert misnamed.returncode == 2 and "another name than its own" in misnamed.stderr


def test_a_recipe_of_the_paper_takes_a_further_method(folder):
    outcome = run(
        folder,
        "reproduce",
        "table-5",
        "--method",
        PATH,
        "--rounds",
        1,
        "--set",
        "dataset=digits",
        "--out",
        "r",
    )
    assert outcome.returncode == 0, outcome.stderr
    table = (folder / "r" / "table-5-small" / "table.md").read_text()
    assert "| fading\\_prox:FadingProx | Acc. | 1 | – |" in table


def test_fit_takes_a_path(folder, monkeypatch):
    monkeypatch.chdir(folder)
    clients = [load_data(client, {}) for client in range(CLIENTS)]
    by_path = fedwmsam.fit(network, clients, PATH, **SETTINGS)
    example = load_module(folder / "fading_prox.py").FadingProx
    by_instance = fedwmsam.fit(network, clients, example(), **SETTINGS)
    assert by_path.rows == by_instance.rows
    assert "lam" in by_path.columns


# Names


@pytest.mark.parametrize(
    ("typed", "name"),
    [("FedAvg", "fedavg"), ("SCAFFOLD_M", "scaffold-m"), ("FedWMSAM-Plus", "fedwmsam-plus")],
)
def test_names_are_matched_whatever_their_case(typed, name):
    assert canonical_name(typed) == name
    assert resolve_config({"method": typed}) == resolve_config({"method": name})
    assert make_method(typed) == make_method(name)


def test_an_option_of_a_file_survives_the_same_method_in_another_case():
    config = resolve_config({"method": "fedsam", "rho": 0.3}, {"method": "FedSAM"})
    assert config.options == {"rho": 0.3}
    config = resolve_config({"method": "FedSAM", "rho": 0.3}, {"method": "fedavg"})
    assert config.options == {}


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("FadingProx", "package.module:FadingProx"),
        ("fading_prox.FadingProx", "fading_prox:FadingProx"),
        ("fading_prox.py", "fading_prox:Class"),
        ("own/fading_prox.py", "own.fading_prox:Class"),
    ],
)
def test_what_looks_like_a_file_or_a_class_is_answered_with_its_path_first(typed, named):
    with pytest.raises(InputError) as caught:
        canonical_name(typed)
    start = f"Unknown method {typed!r}. A method of your own is named as {named!r}."
    assert str(caught.value).startswith(start)


def test_a_mistyped_method_of_the_library_is_answered_with_the_nearest_first():
    with pytest.raises(
        InputError, match=r"'fedsan'\. Did you mean 'fedsam'.*package\.module:Class"
    ):
        canonical_name("fedsan")


def test_a_path_with_the_end_of_a_file_is_answered_with_the_path(folder):
    outcome = run(folder, "run", "--method", "fading_prox.py:FadingProx")
    assert outcome.returncode == 2 and "here 'fading_prox:FadingProx'" in outcome.stderr


@pytest.mark.parametrize("module", ["fading_prox", "mine"])
def test_of_a_module_only_the_methods_that_it_or_a_part_of_it_defines_are_listed(folder, module):
    with (folder / "fading_prox.py").open("a", encoding="utf-8") as file:
        file.write("def helper(): pass\nclass Helper: pass\n")
    (folder / "mine").mkdir()
    shutil.copy(folder / "fading_prox.py", folder / "mine" / "inner.py")
    (folder / "mine" / "__init__.py").write_text("from .inner import *", "utf-8")
    outcome = run(folder, "run", "--method", f"{module}:Fading")
    assert outcome.returncode == 2
    assert outcome.stderr.endswith("Did you mean 'FadingProx'? Known: FadingProx.\n")


OWN = """
import fedwmsam, dataclasses
@dataclasses.dataclass(frozen=True)
class X(fedwmsam.FedAvg):
"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "Unknown class in the module 'mine' 'X'. Known: none."),
        ("X = 3", "must be a class derived from fedwmsam.Method"),
        ("import missing_package", "cannot be imported"),
        ("class X: pass", "must be a class derived from fedwmsam.Method"),
        ("import fedwmsam\nclass X(fedwmsam.FedAvg): pass", "must be a @dataclass"),
        (f"{OWN}    def agregate(self, server, mean, info): pass", "did you mean aggregate?"),
        (f"{OWN}    def begin(self, down): pass", "must take (down, full_gradient, info)"),
    ],
)
def test_what_is_no_method_is_refused_in_one_sentence(tmp_path, source, message):
    (tmp_path / "mine.py").write_text(source)
    outcome = run(tmp_path, "run", "--method", "mine:X", "--out", "a")
    assert outcome.returncode == 2 and message in outcome.stderr
    assert outcome.stderr.count("\n") == 1 and not (tmp_path / "a").exists()


def test_an_error_in_a_round_of_an_own_method_names_its_test(tmp_path, monkeypatch):
    lines = (
        "import fedwmsam",
        "from dataclasses import dataclass",
        "@dataclass(frozen=True)",
        "class Mine(fedwmsam.FedAvg):",
        "    def direction(self, w, grad, down, scratch):",
        "        return grad(w)",
    )
    (tmp_path / "mine.py").write_text("\n".join(lines))
    outcome = run(tmp_path, "run", "--method", "mine:Mine", "--out", "a", "--quiet")
    assert outcome.returncode == 1
    test = re.search(r"Is it Mine\? (.+) says what is wrong\.", outcome.stderr)[1]
    told = subprocess.run(test, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert "AssertionError: direction returned torch.Tensor; it must return two" in told.stderr


def test_an_error_in_a_method_that_no_module_has_names_its_test_too():
    cls = example_class()
    broken = type("Broken", (cls,), {"direction": lambda self, w, grad, down, scratch: 1 / 0})
    clients = [load_data(client, {}) for client in range(CLIENTS)]
    with pytest.raises(ZeroDivisionError) as caught:
        fedwmsam.fit(network, clients, broken(), **SETTINGS)
    note = "Is it Broken? fedwmsam.testing.check_method(Broken) says what is wrong."
    assert caught.value.__notes__[-1] == note


def test_an_option_with_the_name_of_a_setting_is_refused(tmp_path):
    source = (EXAMPLE / "fading_prox.py").read_text().replace("half_life", "patience")
    (tmp_path / "mine.py").write_text(source)
    outcome = run(tmp_path, "run", "--method", "mine:FadingProx", "--out", "a")
    assert outcome.returncode == 2 and "'patience'" in outcome.stderr
    assert "is the name of a setting" in outcome.stderr


# Flower


def example_class():
    return load_module(EXAMPLE / "fading_prox.py").FadingProx


def test_a_flower_client_trains_a_method_that_its_own_app_names():
    FadingProx = example_class()
    app = make_client_app(network, load_data, methods=[FadingProx])
    strategy = FlowerStrategy(FadingProx(lam=0.5), network, clients=CLIENTS, **SETTINGS)
    deployed = strategy.start(FakeGrid(app))
    clients = [load_data(client, {}) for client in range(CLIENTS)]
    simulated = fedwmsam.fit(network, clients, FadingProx(lam=0.5), **SETTINGS)
    final = deployed.arrays.to_torch_state_dict()
    assert all(torch.equal(final[name], simulated.model[name]) for name in simulated.model)


def test_a_flower_client_without_the_method_says_how_to_give_it(caplog):
    strategy = FlowerStrategy(example_class()(), network, clients=CLIENTS, wait=0.1, **SETTINGS)
    with pytest.raises(InputError):
        strategy.start(FakeGrid())
    assert "make_client_app(methods=" in caplog.text


def test_a_message_cannot_have_a_method_imported(folder, monkeypatch):
    (folder / "mischief.py").write_text("open('imported', 'w')\n")
    monkeypatch.chdir(folder)
    from fedwmsam.flower.wire import method_named

    with pytest.raises(InputError, match="has no method 'mischief:Method'"):
        method_named("mischief:Method", {}, ())
    assert not (folder / "imported").exists()


def test_the_run_config_of_a_flower_app_may_name_a_path(folder, monkeypatch):
    monkeypatch.chdir(folder)
    method, settings = from_run_config({"method": PATH, "half-life": 3.0, "clients": 4})
    assert (method.name, method.half_life) == ("fading-prox", 3.0)
    assert settings == {"clients": 4}
