"""Draw the pictures of the README and the documentation: ``python docs/make_pictures.py``.

``python docs/make_pictures.py --gallery`` draws only the thumbnails of the gallery, which need the extra ``docs``. The
pictures of the report are screenshots. They need the extra ``test`` and Chromium, as ``chromium`` or at the path in
HEATMOVER_CHROMIUM. Every PNG stores facts about its source, and ``tests/docs/test_pictures.py`` fails when the source
has changed.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pages

import heatmover as hm
from heatmover.study.drawing.style import save

FOLDER = Path(__file__).parent / "_static"
TUTORIAL = Path(__file__).parent / "tutorial-cohort.md"
BLOOD = Path(__file__).parent / "tutorials" / "blood-cells.md"
# In pixels. HEIGHT shows the headline, the map and the clustered distances; TOP, for the first page, ends with the map.
WIDTH, HEIGHT, TOP = 1300, 2560, 1460
# Twice as wide as a card of the gallery, for screens with two dots per pixel. With 160 colors a picture of thousands
# of marks stays below 40 KB.
CARD_WIDTH, COLORS = 640, 160


def main(arguments: list[str]) -> None:
    thumbnails()
    if "--gallery" in arguments:
        return
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        subprocess.run([sys.executable, "-m", "heatmover", "demo", "--quiet", "--out", str(out)], check=True)
        photograph(out, FOLDER / "report.png", command="heatmover demo")
        photograph(out, FOLDER / "report-top.png", height=TOP, command="heatmover demo")
        photograph(out, FOLDER / "report-top-dark.png", height=TOP, dark=True, command="heatmover demo")
    results = pages.run_cells(TUTORIAL)["folder"] / "results"
    photograph(results, FOLDER / "tutorial-report.png", code=pages.fingerprint(TUTORIAL))
    result, cycle = map_of_blood_cells()
    save(lambda axes: result.plot(cycle, axes), FOLDER / "blood-cells.png")
    fewer_colors(FOLDER / "blood-cells.png")
    pages.inscribe(FOLDER / "blood-cells.png", distances=checksum(result.distances))


def map_of_blood_cells() -> tuple[hm.study.Comparison, list[str]]:
    """Return the comparison in question 3 of the first tutorial, and the phase of each sample."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        adata = pages.run_cells(BLOOD)["adata"]
    result = hm.compare(adata.obsm["X_pca"], adata.obs["sample"], bias="corrected")
    return result, [name.split(", ")[1] for name in result.names]


def checksum(distances: np.ndarray) -> str:
    """Return a checksum of distances, rounded to three digits because further digits depend on the machine."""
    return hashlib.sha256(np.char.mod("%.3g", distances).tobytes()).hexdigest()


def thumbnails() -> None:
    """Run every example of the gallery and store its picture as a thumbnail."""
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
        small.quantize(COLORS).save(path, optimize=True)
        pages.inscribe(path, code=pages.fingerprint(page))


def photograph(results: Path, picture: Path, *, height: int = HEIGHT, dark: bool = False, **facts: str) -> None:
    """Write the top of the report in a result folder as PNG; the headline is one of its facts."""
    from playwright.sync_api import sync_playwright

    program = os.environ.get("HEATMOVER_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="dark" if dark else "light")
        tab.goto((results / "report.html").as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        tab.screenshot(path=picture)
        browser.close()
    fewer_colors(picture)
    pages.inscribe(picture, headline=headline(results), **facts)


def headline(results: Path) -> str:
    """Return the headline of the report in a result folder."""
    return (results / "index.txt").read_text(encoding="utf-8").partition("\n")[0]


def fewer_colors(picture: Path) -> None:
    """Reduce a PNG to a third of its size."""
    from PIL import Image

    with Image.open(picture) as large:
        small = large.convert("RGB")
    small.quantize(COLORS).save(picture, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
