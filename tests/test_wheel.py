"""What a release would install is complete and works without the repository."""

import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from helpers.wheels import ROOT, borrowing_environment, build_wheel, call

import fedwmsam

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_every_file_of_the_package_is_in_it(wheel: Path):
    package = ROOT / "src" / "fedwmsam"
    wanted = {str(path.relative_to(ROOT / "src")) for path in package.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    assert {
        "fedwmsam/page/page.html.j2",
        "fedwmsam/flower/template/pyproject.toml",
        "fedwmsam/py.typed",
    } <= wanted
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == wanted


def test_it_says_what_it_is(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(archive.read(name).decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (told["Version"], told["License-Expression"]) == (fedwmsam.__version__, "Apache-2.0")
    assert told["Requires-Python"] == project["requires-python"]
    assert set(told.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    assert str(told.get_payload()).startswith("# fedwmsam")


def test_installed_it_trains_reports_and_writes_an_app(wheel: Path, tmp_path: Path):
    python = borrowing_environment(tmp_path / "environment", wheel)
    home = call([python, "-c", "import fedwmsam; print(fedwmsam.__file__)"], tmp_path)
    assert Path(home.strip()).is_relative_to(tmp_path / "environment")
    fedwmsam_command = python.with_name("fedwmsam")
    assert call([fedwmsam_command, "--version"], tmp_path).strip() == fedwmsam.__version__
    call([fedwmsam_command, "run", "--rounds", "2", "--local-epochs", "1", "--quiet"], tmp_path)
    call([fedwmsam_command, "report", "runs", "--html", "page.html"], tmp_path)
    assert "</html>" in (tmp_path / "page.html").read_text()
    call([fedwmsam_command, "flower", "new", "hospitals"], tmp_path)
    assert "fedwmsam" in (tmp_path / "hospitals" / "hospitals" / "client.py").read_text()
    assert "table-1" in call([fedwmsam_command, "reproduce"], tmp_path)
