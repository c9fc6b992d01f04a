"""The site of the documentation in a real browser, from a folder and without a network."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import start_browser

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
PAGES = ("index.html", "docs/compare.html", "docs/results/README.html", "docs/methods/README.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--conf-dir", "docs/site", "--doctree-dir", folder / "doctrees"]
    build = [sys.executable, "-m", "sphinx", *options, ".", folder / "pages"]
    subprocess.run(build, cwd=ROOT, check=True)
    return folder / "pages"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as started:
        yield started


def test_the_site_finds_words_and_fits_a_telephone_without_a_network(site: Path, browser: Any):
    page = browser.new_page(viewport={"width": 380, "height": 800})
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    for name in PAGES:
        page.goto((site / name).as_uri())
        overflow = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(overflow), f"{name} is wider than the screen"
    page.goto((site / "search.html").as_uri() + "?q=dirichlet")
    page.wait_for_selector("#search-results li a")
    page.wait_for_function("document.querySelectorAll('#search-results li').length > 5")
    found = page.locator("#search-results li a").all_inner_texts()
    assert any(title.startswith("Partitions") for title in found)
    assert {url.partition(":")[0] for url in urls} <= {"file", "data"}
