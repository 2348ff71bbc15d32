"""`compare` agrees with the calls it stands for, and its result answers as plain formulas do."""

from __future__ import annotations

import csv
import sys
from dataclasses import FrozenInstanceError, replace
from itertools import combinations

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from matplotlib.figure import Figure

import heatmover as hm
from heatmover._base.words import naturally
from heatmover.errors import InvalidInputError
from heatmover.statistics import Separation
from heatmover.study import Comparison
from heatmover.study.tables import plain_text


@pytest.fixture(scope="module")
def data():
    return hm.datasets.cohort(12, cells_per_sample=40, effect=3.0)


@pytest.fixture(scope="module")
def result(data):
    return hm.compare(data.points, data.labels)


def with_distances(distances, names=None):
    """A comparison of which only the distances matter."""
    distances = np.array(distances, dtype=float)
    names = tuple(names or (f"s{i}" for i in range(len(distances))))
    sizes = np.ones(len(names), dtype=np.int64)
    masses = hm.measures_from_weights(np.ones((len(names), 2)), names=names)
    features = np.zeros((len(names), 1))
    return Comparison(names, sizes, distances, features, hm.Graph.from_grid((2,)), hm.DiffusionEMD(), masses)


def flat_distances(places):
    return np.linalg.norm(places[:, None] - places, axis=2)


class Recorder:
    """Progress that remembers."""

    def __init__(self):
        self.stages = []

    def stage(self, name, total):
        self.stages.append([name, total, 0])

    def advance(self, steps=1):
        self.stages[-1][2] += steps


def test_compare_is_what_the_single_calls_give(data, result):
    graph = hm.Graph.from_points(data.points)
    model = hm.DiffusionEMD(graph)
    embedding = model.fit_transform(data.measures())
    assert result.names == data.measures().names
    assert result.sizes.tolist() == [40] * 12
    np.testing.assert_array_equal(result.embedding, embedding)
    np.testing.assert_array_equal(result.distances, hm.pairwise_distances(embedding))
    np.testing.assert_array_equal(result.graph.affinity.toarray(), graph.affinity.toarray())
    assert result.model.max_scale_ == model.max_scale_
    assert result.diagnosis == graph.diagnose()


def test_threads_change_no_bit(data, result):
    alone = hm.compare(data.points, data.labels, n_jobs=1)
    np.testing.assert_array_equal(alone.distances, result.distances)
    assert alone.model.n_jobs == 1


def test_a_graph_and_a_model_replace_the_defaults(data):
    graph = hm.Graph.from_points(data.points, n_neighbors=12, kernel="adaptive")
    model = hm.DiffusionEMD(max_scale=4, norm="increments", n_jobs=1)
    found = hm.compare(graph, data.labels, model=model)
    expected = hm.DiffusionEMD(graph, max_scale=4, norm="increments").fit_transform(data.measures())
    np.testing.assert_array_equal(found.embedding, expected)
    assert found.graph is graph
    assert found.model.n_jobs == 1
    assert not hasattr(model, "graph_")
    assert model.graph is None


def test_measures_name_and_choose_the_samples(data):
    names = ["control-02", "case-01"]
    found = hm.compare(data.points, hm.measures_from_labels(data.labels, names=names))
    assert found.names == ("control-02", "case-01")
    assert found.distances.shape == (2, 2)


def test_progress_hears_of_every_stage(data):
    watcher = Recorder()
    hm.compare(data.points, data.labels, progress=watcher)
    assert watcher.stages == [
        ["find neighbors", 1, 1],
        ["choose scales", 1, 1],
        ["diffuse measures", 12, 12],
        ["compare", 1, 1],
    ]
    watcher = Recorder()
    hm.compare(hm.Graph.from_points(data.points), data.labels, progress=watcher)
    assert [stage[0] for stage in watcher.stages] == ["choose scales", "diffuse measures", "compare"]


def test_new_samples_land_in_the_same_space(data, result):
    again = result.model.transform(data.measures())
    np.testing.assert_array_equal(again, result.embedding)


BAD_INPUT = {
    "a label too few": (lambda p, n: {"labels": n[:-1]}, "one label for each of the 480 points, found 479 labels"),
    "one sample": (lambda p, n: {"labels": ["x"] * 480}, "at least two samples to compare, found one, 'x'"),
    "a missing label": (lambda p, n: {"labels": [None, *n[1:]]}, "label for every point"),
    "NaN": (lambda p, n: {"points": np.where(p > p.max() - 1e-9, np.nan, p)}, "without NaN or infinity"),
    "flat points": (lambda p, n: {"points": p[:, 0]}, "2-d array"),
    "more neighbors than points": (lambda p, n: {"n_neighbors": 480}, "more points than n_neighbors=480"),
    "no model": (lambda p, n: {"model": "chebyshev"}, "model to be a DiffusionEMD, found str"),
    "a model with a graph": (
        lambda p, n: {"model": hm.DiffusionEMD(hm.Graph.from_grid((4,)))},
        "model without a graph.*instead of the points",
    ),
    "a model of bad settings": (lambda p, n: {"model": hm.DiffusionEMD(alpha=2.0)}, "alpha"),
    "no threads": (lambda p, n: {"n_jobs": 0}, "n_jobs"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused(data, case):
    make, message = BAD_INPUT[case]
    arguments = {"points": data.points, "labels": data.labels} | make(data.points, list(data.labels))
    with pytest.raises(hm.InvalidInputError, match=message):
        hm.compare(**arguments)


def test_bad_settings_are_refused_before_any_work(data):
    watcher = Recorder()
    with pytest.raises(hm.InvalidInputError):
        hm.compare(data.points, data.labels, model=hm.DiffusionEMD(tol=-1.0), progress=watcher)
    assert watcher.stages == []


def test_separate_parts_give_a_warning_and_finite_distances():
    rng = np.random.default_rng(0)
    points = np.vstack([rng.normal(size=(40, 2)), rng.normal(size=(40, 2)) + 1000])
    labels = np.repeat(["a", "b", "c", "d"], 20)
    with pytest.warns(hm.GraphWarning, match="2 components"):
        found = hm.compare(points, labels, n_neighbors=5)
    assert np.isfinite(found.distances).all()
    assert found.diagnosis.n_components == 2


def test_the_result_cannot_be_changed(result):
    with pytest.raises(FrozenInstanceError):
        result.names = ()
    for array in (result.distances, result.embedding, result.sizes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_repr_says_what_there_is(result):
    assert repr(result).startswith("Comparison(12 samples of 40 points; distances ")
    uneven = replace(result, sizes=np.arange(1, 13))
    assert "samples of 1 to 12 points" in repr(uneven)


def test_nearest_is_that_of_the_embedding(result):
    distances, indices = result.nearest(4)
    expected_distances, expected_indices = hm.nearest(result.embedding, 4)
    np.testing.assert_array_equal(distances, expected_distances)
    np.testing.assert_array_equal(indices, expected_indices)
    assert result.nearest(11)[1].shape == (12, 11)


@pytest.mark.parametrize(("k", "message"), [(12, "k of at most 11"), (0, "at least 1"), (1.5, "whole number")])
def test_nearest_refuses_impossible_numbers(result, k, message):
    with pytest.raises(hm.InvalidInputError, match=message):
        result.nearest(k)


@settings(deadline=None, max_examples=30)
@given(st.integers(3, 12), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_the_map_keeps_flat_distances(n_samples, n_dimensions, seed):
    n_dimensions = min(n_dimensions, n_samples - 1)
    places = np.random.default_rng(seed).normal(size=(n_samples, n_dimensions))
    result = with_distances(flat_distances(places))
    coordinates = result.coordinates(n_dimensions)
    np.testing.assert_allclose(flat_distances(coordinates), result.distances, atol=1e-6)
    np.testing.assert_allclose(coordinates.mean(axis=0), 0, atol=1e-8)
    spread = (coordinates**2).sum(axis=0)
    assert (np.diff(spread) <= 1e-9).all()


def test_the_map_has_a_fixed_direction():
    # Three samples on a line at -1, 0 and 3 about their mean 2/3: the largest coordinate is that of the last.
    places = np.array([[-1.0], [0.0], [3.0]])
    for order in ([0, 1, 2], [2, 0, 1]):
        coordinates = with_distances(flat_distances(places[order])).coordinates(1)
        np.testing.assert_allclose(coordinates, places[order] - 2 / 3, atol=1e-12)
    # Two samples are equally far from their mean: the first is on the positive side.
    np.testing.assert_allclose(with_distances([[0, 2], [2, 0]]).coordinates(1), [[1], [-1]])


def test_axes_that_are_not_needed_are_zero():
    line = with_distances(flat_distances(np.arange(5.0)[:, None]))
    assert np.abs(line.coordinates(4)[:, 1:]).max() < 1e-6
    same = with_distances(np.zeros((3, 3)))
    np.testing.assert_array_equal(same.coordinates(), 0)
    with pytest.raises(hm.InvalidInputError, match="n of at most 2"):
        same.coordinates(3)


def separation_by_hand(distances, groups):
    pairs = list(combinations(range(len(groups)), 2))
    within = [distances[i, j] for i, j in pairs if groups[i] == groups[j]]
    between = [distances[i, j] for i, j in pairs if groups[i] != groups[j]]
    agreement = []
    for i, group in enumerate(groups):
        others = [j for j in range(len(groups)) if j != i]
        smallest = min(distances[i, j] for j in others)
        nearest = [j for j in others if distances[i, j] == smallest]
        agreement.append(np.mean([groups[j] == group for j in nearest]))
    chance = np.mean([groups[i] == groups[j] for i, j in pairs])
    return np.mean(within), np.mean(between), np.mean(agreement), chance


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from("abc"), min_size=3, max_size=9), st.integers(0, 2**32 - 1))
def test_separation_is_what_one_counts_by_hand(groups, seed):
    # Few distinct values, so that there are ties.
    upper = np.triu(np.random.default_rng(seed).integers(1, 5, size=(len(groups),) * 2), 1).astype(float)
    result = with_distances(upper + upper.T)
    if len(set(groups)) in (1, len(groups)):
        with pytest.raises(hm.InvalidInputError, match="two groups"):
            result.separation(groups)
        return
    found = result.separation(groups)
    expected = separation_by_hand(result.distances, groups)
    np.testing.assert_allclose([found.within, found.between, found.agreement, found.chance], expected)
    assert found.n_samples == len(groups)


def test_separation_sees_a_condition_and_not_a_random_grouping(data, result):
    condition = result.separation(data.annotations["condition"])
    assert condition.between > 1.1 * condition.within
    assert condition.agreement > condition.chance + 0.2
    alternating = result.separation(np.arange(12) % 2)
    assert abs(alternating.between / alternating.within - 1) < 0.1


def test_groups_come_in_order_or_by_name(data, result):
    condition = data.annotations["condition"]
    expected = result.separation(condition)
    series = pd.Series(condition, index=result.names)
    assert result.separation(list(condition)) == expected
    assert result.separation(dict(zip(result.names, condition, strict=True))) == expected
    assert result.separation(series.sample(frac=1, random_state=1)) == expected
    # An index that says nothing of samples does not count.
    assert result.separation(series.reset_index(drop=True)) == expected
    assert result.separation(series.astype("category")) == expected


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["a", "b"], r"one value per sample \(12\), found 2 values"),
        ("a", "one value per sample"),
        (["a"] * 11 + [None], "a group for every sample, found none for 'control-06'"),
        (["a"] * 11 + [float("nan")], "none for 'control-06'"),
        ({"case-01": "a"}, "groups for each of the 12 samples, found none for 'case-02', 'case-03'"),
        (["a"] * 12, "at least two groups.*found 1 group of 12 samples"),
        (range(12), "one of them with at least two samples, found 12 groups"),
    ],
)
def test_bad_groups_are_refused(result, groups, message):
    with pytest.raises(hm.InvalidInputError, match=message):
        result.separation(groups)


@pytest.mark.parametrize(
    ("between", "words"),
    [
        (1.5, "50% further apart than"),
        (0.5, "50% closer together than"),
        (1.001, "as far apart as"),
        (13.4, "13 times as far apart as"),
    ],
)
def test_separation_in_words(between, words):
    text = Separation(within=1.0, between=between, agreement=0.75, chance=0.5, n_samples=10).describe("site")
    assert f"Samples of different sites are {words} samples of one site" in text
    assert "for 7.5 of 10 samples (5.0 expected by chance)" in text


def test_equal_samples_have_a_separation_in_words():
    text = str(Separation(within=0.0, between=0.0, agreement=0.5, chance=0.5, n_samples=4))
    assert "as far apart as" in text


def test_csv_holds_every_digit_and_any_name(tmp_path):
    names = ["plain", 'comma, quote " and\nnew line', "ümlaut 細胞", "=1+1"]
    distances = flat_distances(np.random.default_rng(1).normal(size=(4, 3)))
    path = tmp_path / "distances.csv"
    with_distances(distances, names).to_csv(path)
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    assert header == ["sample", *names[:3], "'=1+1"]
    assert [plain_text(row[0]) for row in rows] == names
    np.testing.assert_array_equal([[float(value) for value in row[1:]] for row in rows], distances)
    assert list(tmp_path.iterdir()) == [path]


def test_csv_is_replaced_whole_or_not_at_all(result, tmp_path, monkeypatch):
    path = tmp_path / "distances.csv"
    path.write_text("before")
    with monkeypatch.context() as patch:
        patch.setattr("csv.writer", lambda *_, **__: pytest.fail("full"))
        with pytest.raises(pytest.fail.Exception):
            result.to_csv(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    result.to_csv(str(path))
    assert path.read_text().startswith("sample,case-01,")


def test_csv_into_a_folder_that_is_not_there(result, tmp_path):
    with pytest.raises(FileNotFoundError):
        result.to_csv(tmp_path / "absent" / "distances.csv")


def legend_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_plot_draws_every_sample_in_its_group(data, result):
    axes = Figure().add_subplot()
    assert result.plot(data.annotations["condition"], ax=axes) is axes
    drawn = np.vstack([np.asarray(collection.get_offsets()) for collection in axes.collections])
    # Cases come first, in the names and in the picture.
    np.testing.assert_allclose(drawn, result.coordinates())
    assert legend_of(axes) == ["case (6)", "control (6)"]
    colors = {tuple(collection.get_facecolor()[0]) for collection in axes.collections}
    assert len(colors) == 2
    assert "%" in axes.get_xlabel()
    assert "%" in axes.get_ylabel()


def test_plot_without_groups_has_no_legend(result):
    axes = result.plot(ax=Figure().add_subplot())
    assert axes.get_legend() is None
    assert len(axes.collections) == 1


def test_plot_makes_its_own_axes(result):
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    axes = result.plot()
    assert axes.figure.number in pyplot.get_fignums()
    pyplot.close(axes.figure)


def test_names_in_the_picture_do_not_hide_each_other(data, result):
    figure = Figure(figsize=(8, 6), dpi=150)
    axes = result.plot(data.annotations["condition"], ax=figure.add_subplot())
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text() in result.names]
    assert len(boxes) >= 10
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_names_in_the_picture_are_inert_text():
    names = ["$\\frac{", "_hidden", "x" * 5000, "two\nlines"]
    result = with_distances(flat_distances(np.array([[0, 0], [5, 0], [0, 5], [5, 5.5]])), names)
    figure = Figure(figsize=(8, 6))
    axes = result.plot(["$\\frac{", "_g", "_g", "_g"], ax=figure.add_subplot())
    figure.draw_without_rendering()
    shown = {text.get_text() for text in axes.texts}
    assert {"$\\frac{", "_hidden", "x" * 11 + "..." + "x" * 10, "two lines"} <= shown
    assert legend_of(axes) == ["$\\frac{ (1)", " _g (3)"]


def test_plot_has_a_limit_of_groups():
    result = with_distances(flat_distances(np.random.default_rng(0).normal(size=(60, 2))))
    with pytest.raises(hm.InvalidInputError, match="at most 56 groups with distinct colors and shapes, found 60"):
        result.plot([f"group {i}" for i in range(60)], ax=Figure().add_subplot())


def test_plot_of_two_samples_lies_on_one_axis():
    axes = with_distances([[0, 4], [4, 0]]).plot(ax=Figure().add_subplot())
    np.testing.assert_allclose(axes.collections[0].get_offsets(), [[2, 0], [-2, 0]], atol=1e-6)
    assert axes.get_xlabel() == "axis 1 (100% of the variation)"


def test_plot_without_matplotlib_names_the_extra(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(hm.MissingExtraError, match=r"heatmover\[cohort\]"):
        result.plot()


def test_a_series_with_another_index_is_refused():
    data = hm.datasets.cohort(6, cells_per_sample=40)
    result = hm.compare(data.points, data.labels, n_neighbors=10)
    right = pd.Series(data.annotations["condition"], index=list(result.names))
    expected = result.separation(data.annotations["condition"])
    assert result.separation(right.sample(frac=1, random_state=0)) == expected
    assert result.separation(pd.Series(data.annotations["condition"])) == expected
    with pytest.raises(InvalidInputError, match="groups for each of the 6 samples"):
        result.separation(right.rename(index=str.upper))


def test_separation_with_equal_samples_within_groups_in_words():
    text = str(Separation(within=0.0, between=1.0, agreement=1.0, chance=0.4, n_samples=4))
    assert "further apart than" in text
    assert "as far apart as" not in text


def test_the_order_of_samples_changes_no_bit_of_an_embedding():
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(360, 3)), np.repeat([f"s{i}" for i in range(1, 13)], 30)
    by_text = hm.compare(points, labels, n_neighbors=8)
    assert by_text.names[:3] == ("s1", "s10", "s11")
    order = naturally(by_text.names)
    by_number = hm.compare(points, hm.measures_from_labels(labels, names=order), n_neighbors=8)
    assert by_number.names == tuple(f"s{i}" for i in range(1, 13))
    rows = [by_text.names.index(name) for name in by_number.names]
    assert np.array_equal(by_text.embedding[rows], by_number.embedding)
    assert np.array_equal(by_text.distances[np.ix_(rows, rows)], by_number.distances)
