"""Names beside points: as many as fit, against a search that looks at one box after another."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from heatmover.study.drawing.map import SIDES, SampleMap, place_names

FRAME = (0.0, 0.0, 400.0, 300.0)


def plainly(centers, sizes, radius, gap, frame):
    """The same, one name, side and box after another."""

    def cover(a, b):
        return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]

    def away(box, point):
        across = max(box[0] - point[0], point[0] - box[2], 0)
        along = max(box[1] - point[1], point[1] - box[3], 0)
        return across**2 + along**2

    taken = [(x - radius, y - radius, x + radius, y + radius) for x, y in centers]
    found = []
    for own, ((x, y), (width, height)) in enumerate(zip(centers, sizes, strict=True)):
        found.append((np.nan, np.nan))
        for side in SIDES:
            near = gap * (0.7 if all(side) else 1.0)
            to_x, to_y = side[0] * (width / 2 + near), side[1] * (height / 2 + near)
            box = (x + to_x - width / 2, y + to_y - height / 2, x + to_x + width / 2, y + to_y + height / 2)
            inside = box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]
            distances = [away(box, point) for point in centers]
            if inside and distances.index(min(distances)) == own and not any(cover(box, other) for other in taken):
                taken.append(box)
                found[-1] = (to_x, to_y)
                break
    return np.array(found)


@pytest.mark.parametrize("seed", range(5))
def test_names_stand_where_a_plain_search_puts_them(seed):
    rng = np.random.default_rng(seed)
    centers = rng.uniform((0, 0), (400, 300), size=(60, 2))
    sizes = np.column_stack([rng.uniform(10, 90, size=60), np.full(60, 11.0)])
    found = place_names(centers, sizes, radius=4, gap=7, frame=FRAME)
    np.testing.assert_allclose(found, plainly(centers, sizes, 4, 7, FRAME))
    placed = ~np.isnan(found[:, 0])
    assert 5 < placed.sum() < 60
    np.testing.assert_array_equal(found, place_names(centers, sizes, radius=4, gap=7, frame=FRAME))


def test_no_name_covers_another_a_point_or_the_edge():
    rng = np.random.default_rng(7)
    centers, sizes = rng.uniform((0, 0), (400, 300), size=(80, 2)), np.full((80, 2), [40.0, 11.0])
    found = place_names(centers, sizes, radius=4, gap=7, frame=FRAME)
    boxes = np.hstack([centers + found - sizes / 2, centers + found + sizes / 2])[~np.isnan(found[:, 0])]
    points = np.hstack([centers - 4, centers + 4])
    everything = np.vstack([boxes, points])
    for i, box in enumerate(boxes):
        cover = (box[:2] < everything[:, 2:]).all(axis=1) & (everything[:, :2] < box[2:]).all(axis=1)
        assert np.flatnonzero(cover).tolist() == [i]
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= [400, 300]).all()


def test_a_name_that_is_too_wide_has_no_place():
    found = place_names(np.array([[200.0, 150.0]]), np.array([[500.0, 10.0]]), radius=4, gap=7, frame=FRAME)
    assert np.isnan(found).all()


def test_many_samples_have_some_of_their_names():
    rng = np.random.default_rng(0)
    coordinates = np.vstack([rng.normal(size=(150, 2)) * 0.01, [(3, 3), (-3, 3), (3, -3)]])
    names = tuple(f"sample {i}" for i in range(153))
    axes = Figure(layout="constrained").add_subplot()
    SampleMap(names, coordinates, ("x", "y"), np.zeros(153, dtype=np.int64)).draw(axes)
    shown = {text.get_text() for text in axes.texts}
    assert {"sample 150", "sample 151", "sample 152"} <= shown
    assert len(shown & set(names)) < 60
