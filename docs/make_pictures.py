"""Draw the pictures of the README and the documentation anew: ``python docs/make_pictures.py``."""

from pathlib import Path

import heatmover as hm
from heatmover.drawing.style import save

FOLDER = Path(__file__).parent / "_static"


def main() -> None:
    data = hm.datasets.cohort(30, cells_per_sample=200, effect=2.0, random_state=0)
    result = hm.compare(data.points, data.labels, random_state=0)
    FOLDER.mkdir(exist_ok=True)
    save(lambda axes: result.plot(data.annotations["condition"], axes), FOLDER / "sample-map.png")


if __name__ == "__main__":
    main()
