"""Take a screenshot of the page of a small comparison.

    python docs/pictures/report_page.py

Needs playwright and Chromium.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
COMPARE = (
    "fedwmsam",
    "compare",
    "--methods",
    "fedavg,scaffold,fedwmsam",
    "--seeds",
    "3",
    "--baseline",
    "fedavg",
    "--quiet",
    "--html",
    "page.html",
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        subprocess.run(COMPARE, cwd=folder, check=True)
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1240, "height": 1120})
        page.goto((Path(folder) / "page.html").as_uri())
        plot = page.locator("figure.chart .plot").first.bounding_box()
        assert plot
        page.mouse.move(plot["x"] + 0.35 * plot["width"], plot["y"] + 60)
        page.screenshot(path=HERE / "report-page.png")


if __name__ == "__main__":
    main()
