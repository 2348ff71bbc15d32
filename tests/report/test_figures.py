"""What the figures show agrees with the distances."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

import heatmover as hm
from heatmover import pl
from heatmover.report import page as figures
from heatmover.report import render
from heatmover.report.page import heatmap, maps, scale_shares, scaled, shared_data
from heatmover.study.drawing.heatmap import leaf_order
from heatmover.study.study import study_comparison


def unpacked(data):
    steps = np.frombuffer(base64.b64decode(data["steps"]), dtype="<u2")
    matrix = np.zeros((data["size"], data["size"]))
    matrix[np.triu_indices(data["size"], 1)] = steps / 65535 * data["largest"]
    return matrix + matrix.T


def test_the_heatmap_holds_the_distances_in_its_order(plain_study):
    data, distances = heatmap(plain_study.comparison), plain_study.comparison.distances
    order = data["order"]
    assert sorted(order) == list(range(12))
    np.testing.assert_allclose(unpacked(data), distances[np.ix_(order, order)], atol=distances.max() / 65535)


def test_near_and_far_have_the_same_colors_in_the_report_and_in_pl(plain_study):
    axes = Figure().add_subplot()
    drawn = pl.distance_heatmap(plain_study.comparison, ax=axes)["heatmap"].images[0]
    stops = heatmap(plain_study.comparison)["colors"]
    low, high = drawn.get_clim()
    assert heatmap(plain_study.comparison)["range"] == pytest.approx([low, high], rel=1e-4)
    shown = drawn.to_rgba(np.linspace(low, high, len(stops)))
    np.testing.assert_allclose(shown, [to_rgba(stop) for stop in stops], atol=0.01)
    # From dark, near, to light, far, and never back.
    assert (np.diff(shown[:, :3].sum(axis=1)) > 0).all()


def test_the_order_puts_like_beside_like():
    positions = np.array([0.0, 10.0, 0.1, 10.2, 0.3, 10.1])
    order = leaf_order(abs(positions[:, None] - positions))
    assert set(positions[order[:3]] < 5) == {bool(positions[order[0]] < 5)}


def test_of_many_samples_an_even_part_is_shown(plain_study, monkeypatch):
    monkeypatch.setattr(figures, "MOST_ROWS", 5)
    data = heatmap(plain_study.comparison)
    part = np.array([0, 3, 6, 8, 11])
    assert data["order"] == part[leaf_order(plain_study.comparison.distances[np.ix_(part, part)])].tolist()
    assert "5 of 12 samples are shown" in render(plain_study)


def test_the_map_is_that_of_the_comparison(plain_study):
    first = maps(plain_study.comparison)[0]
    np.testing.assert_allclose(first["x"], plain_study.comparison.coordinates(2)[:, 0], rtol=1e-4, atol=1e-9)
    assert first["axes"][0].startswith("axis 1 (")


def test_many_samples_are_placed_by_their_distances_to_a_part(monkeypatch):
    places = np.random.default_rng(0).normal(size=(60, 2)) * [3, 1]
    distances = np.sqrt(((places[:, None] - places) ** 2).sum(axis=2))
    monkeypatch.setattr(figures, "MOST_MAPPED", 20)
    coordinates, shares = scaled(distances)
    found = np.sqrt(((coordinates[:, None] - coordinates) ** 2).sum(axis=2))
    np.testing.assert_allclose(found, distances, atol=1e-9)
    np.testing.assert_allclose(shares.sum(), 1)


def test_the_nearest_sample_is_that_of_the_comparison(plain_study):
    distances, indices = plain_study.comparison.nearest(1)
    found = shared_data(plain_study)
    np.testing.assert_allclose(found["nearest_distance"], distances[:, 0], rtol=1e-4)
    assert found["nearest"] == indices[:, 0].tolist()


def test_shares_of_scales_are_those_of_the_mean_distance(plain_study):
    comparison = plain_study.comparison
    shares = [share["share"] for share in scale_shares(comparison)]
    edges = np.cumsum(comparison.model.n_regions_)[:-1]
    parts = [
        np.abs(block[:, None] - block[None]).sum()
        for block in np.split(comparison.embedding.astype(float), edges, axis=1)
    ]
    np.testing.assert_allclose(shares, np.array(parts) / sum(parts), rtol=1e-4)


@pytest.fixture(scope="module")
def large_study():
    """634 samples whose distances are those of random places."""
    data = hm.datasets.cohort(6, cells_per_sample=20)
    comparison = hm.compare(data.points, data.labels, n_neighbors=8)
    rng = np.random.default_rng(0)
    places, chosen = rng.normal(size=(634, 3)), rng.integers(0, 6, 634)
    many = replace(
        comparison,
        names=tuple(f"VALIGA_{i:010d}" for i in range(634)),
        sizes=rng.integers(2, 400, 634),
        distances=np.sqrt(((places[:, None] - places) ** 2).sum(axis=2)),
        embedding=comparison.embedding[chosen],
        measures=hm.measures_from_weights(comparison.measures.masses[chosen]),
    )
    variables = pd.DataFrame({"condition": rng.choice(["a", "b", "c"], 634), "age": rng.normal(50, 9, 634)})
    return study_comparison(many, variables, n_permutations=9)


def test_634_samples_make_a_light_page(large_study):
    page = render(large_study)
    assert len(page.encode()) < 10e6
    # Without plotly itself the page must stay small.
    assert len(page.encode()) - len(_plotly_script()) < 1.5e6


def _plotly_script():
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().encode()
