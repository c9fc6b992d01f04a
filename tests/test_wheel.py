"""What a release would install is complete and works without the repository."""

import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from helpers.wheels import ROOT, Release, build_release, create_environment, run_command

import fedwmsam

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Return the files of a release built from the sources."""
    return build_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def wheel(release: Release) -> Path:
    """Return the path of the wheel, which is built from the sdist."""
    return release.wheel


def test_the_sdist_has_the_package_and_what_it_is_built_from_and_no_tests(release: Release):
    with tarfile.open(release.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff"} <= names
    assert "src/fedwmsam/methods/fedwmsam.py" in names
    assert not [name for name in names if name.startswith("tests")]


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path):
    package = ROOT / "src" / "fedwmsam"
    files = [path for path in package.rglob("*") if path.is_file()]
    names = {str(path.relative_to(ROOT / "src")) for path in files}
    expected = {name for name in names if "__pycache__" not in name}
    assert {
        "fedwmsam/page/page.html.j2",
        "fedwmsam/flower/template/pyproject.toml",
        "fedwmsam/py.typed",
    } <= expected
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == expected


def test_the_metadata_say_what_pyproject_says(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Version"] == fedwmsam.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == project["requires-python"]
    assert set(metadata.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    assert str(metadata.get_payload()).startswith("# fedwmsam")


def test_an_installed_wheel_trains_reports_and_writes_an_app(wheel: Path, tmp_path: Path):
    python = create_environment(tmp_path / "environment", wheel)
    home = run_command([python, "-c", "import fedwmsam; print(fedwmsam.__file__)"], tmp_path)
    assert Path(home.strip()).is_relative_to(tmp_path / "environment")
    fedwmsam_command = python.with_name("fedwmsam")
    versions = run_command([fedwmsam_command, "--version"], tmp_path).splitlines()
    assert versions[0] == f"fedwmsam {fedwmsam.__version__}"
    run_command(
        [fedwmsam_command, "run", "--rounds", "2", "--local-epochs", "1", "--quiet"], tmp_path
    )
    run_command([fedwmsam_command, "report", "runs", "--html", "page.html"], tmp_path)
    assert "</html>" in (tmp_path / "page.html").read_text()
    run_command([fedwmsam_command, "flower", "new", "hospitals"], tmp_path)
    assert "fedwmsam" in (tmp_path / "hospitals" / "hospitals" / "client.py").read_text()
    assert "table-1" in run_command([fedwmsam_command, "reproduce"], tmp_path)
