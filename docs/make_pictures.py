"""Draw the pictures of the README and the documentation anew: ``python docs/make_pictures.py``.

``python docs/make_pictures.py --gallery`` draws the thumbnails of the gallery alone, which need the extra ``docs``. The
picture of the report is a screenshot of the demo's: it needs Chromium, by its path in HEATMOVER_CHROMIUM or as
``chromium``, and the extra ``test``.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pages

import heatmover as hm
from heatmover.study.drawing.style import save

FOLDER = Path(__file__).parent / "_static"
# The finding, the map and the clustered distances.
WIDTH, HEIGHT = 1300, 2560
# Twice as wide as a card of the gallery, for screens with two dots per pixel; so many colours keep a picture of
# thousands of marks below 40 KB.
CARD_WIDTH, CARD_COLOURS = 640, 160


def main(arguments: list[str]) -> None:
    thumbnails()
    if "--gallery" in arguments:
        return
    data = hm.datasets.cohort(30, cells_per_sample=200, effect=2.0, random_state=0)
    result = hm.compare(data.points, data.labels, random_state=0)
    FOLDER.mkdir(exist_ok=True)
    save(lambda axes: result.plot(data.annotations["condition"], axes), FOLDER / "sample-map.png")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        subprocess.run([sys.executable, "-m", "heatmover", "demo", "--quiet", "--out", str(out)], check=True)
        photograph(out / "report.html", FOLDER / "report.png")


def thumbnails() -> None:
    """Run every example of the gallery and keep its picture, small."""
    import matplotlib
    import matplotlib.pyplot
    from PIL import Image

    matplotlib.use("agg")
    folder = pages.GALLERY / "thumbnails"
    folder.mkdir(exist_ok=True)
    for page in pages.examples():
        path = folder / f"{page.stem}.png"
        with matplotlib.rc_context():  # a page may set its style
            figure = pages.run_cells(page)["figure"]
            figure.savefig(path, dpi=2 * CARD_WIDTH / figure.get_figwidth())
            matplotlib.pyplot.close(figure)
        with Image.open(path) as large:
            small = large.convert("RGB").resize((CARD_WIDTH, round(large.height * CARD_WIDTH / large.width)))
        small.quantize(CARD_COLOURS).save(path, optimize=True)


def photograph(page: Path, picture: Path) -> None:
    """Write the upper part of a report as PNG."""
    from playwright.sync_api import sync_playwright

    program = os.environ.get("HEATMOVER_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        tab.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
