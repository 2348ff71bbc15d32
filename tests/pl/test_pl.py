"""Pictures: what is drawn is what the numbers say, from every kind of data."""

from __future__ import annotations

from dataclasses import replace

import anndata
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.legend import Legend

import heatmover as hm
from heatmover import pl, tl
from heatmover.statistics.manifold import diffusion_map
from heatmover.statistics.manifold import smoothness as smoothness_of
from heatmover.study.drawing import style as picture
from heatmover.study.drawing.heatmap import leaf_order

mpl.use("agg")


@pytest.fixture(scope="module")
def data():
    return hm.datasets.cohort(14, cells_per_sample=30, effect=4.0)


@pytest.fixture(scope="module")
def result(data):
    return hm.compare(data.points.astype(np.float32), data.labels)


@pytest.fixture(scope="module")
def cells(data):
    names = data.measures().names
    place = [names.index(label) for label in data.labels]
    obs = pd.DataFrame({"sample": data.labels}, index=[f"cell-{i}" for i in range(420)])
    obs["condition"] = pd.Categorical(data.annotations["condition"][place], categories=["control", "none", "case"])
    obs["age"] = np.arange(40, 54)[place]
    obs["score"] = np.where(np.arange(14) < 3, np.nan, np.arange(14) / 2.0)[place]
    obs["drug"] = pd.Series(np.where(np.arange(14) < 2, None, "a")[place], index=obs.index, dtype=object)
    obs["branch"] = data.coordinates[:, 0]
    adata = anndata.AnnData(data.points.astype(np.float32), obs=obs)
    tl.sample_distances(adata, "sample")
    return adata


@pytest.fixture(scope="module")
def samples(cells):
    return tl.samples(cells)


def axes():
    return Figure(figsize=(8, 6)).add_subplot()


def offsets(drawn):
    return np.vstack([np.asarray(collection.get_offsets()) for collection in drawn.collections])


def legend_of(drawn):
    return [text.get_text() for text in drawn.get_legend().get_texts()]


# The map of samples


@pytest.mark.parametrize("kind", ["cells", "samples", "result"])
def test_every_kind_of_data_gives_the_same_map(request, result, data, kind):
    source = request.getfixturevalue(kind)
    color = data.annotations["condition"] if kind == "result" else "condition"
    where = axes()
    assert pl.sample_map(source, color, ax=where) is where
    found = offsets(where)
    np.testing.assert_allclose(found[np.lexsort(found.T)], (c := result.coordinates())[np.lexsort(c.T)], atol=1e-5)
    assert "% of the variation" in where.get_xlabel()
    # Categories keep their order; an array has none but that of the alphabet.
    assert legend_of(where) == (["case (7)", "control (7)"] if kind == "result" else ["control (7)", "case (7)"])


def test_numbers_get_a_color_bar(samples):
    drawn = pl.sample_map(samples, "age", ax=axes())
    assert drawn.get_legend() is None
    bar = drawn.figure.axes[1]
    assert bar.get_ylabel() == "age"
    assert drawn.collections[0].get_clim() == (40, 53)
    assert drawn.collections[0].get_array().tolist() == list(range(40, 54))


def test_missing_numbers_are_gray_and_counted(samples):
    drawn = pl.sample_map(samples, "score", ax=axes())
    assert legend_of(drawn) == ["missing (3)"]
    gray = next(c for c in drawn.collections if len(c.get_offsets()) == 3)
    assert tuple(gray.get_facecolor()[0]) == to_rgba(picture.MISSING)
    np.testing.assert_allclose(gray.get_offsets(), samples.obsm["X_mds"][:3, :2])


def test_missing_groups_come_last_in_the_legend(samples):
    assert legend_of(pl.sample_map(samples, "drug", ax=axes())) == ["a (12)", "missing (2)"]


def test_values_by_name_find_their_samples(result, data):
    values = dict(zip(result.names, data.annotations["condition"], strict=True))
    mapped = pl.sample_map(result, dict(reversed(values.items())), ax=axes())
    listed = pl.sample_map(result, data.annotations["condition"], ax=axes())
    np.testing.assert_array_equal(offsets(mapped), offsets(listed))
    rare = dict.fromkeys(result.names) | {"case-01": "x"}
    assert legend_of(pl.sample_map(result, rare, ax=axes())) == ["x (1)", "missing (13)"]


def test_the_diffusion_map(result, cells):
    drawn = pl.sample_map(result, basis="diffusion", ax=axes())
    again = pl.sample_map(cells, basis="diffusion", ax=axes())
    np.testing.assert_allclose(offsets(drawn), offsets(again), atol=1e-4)
    np.testing.assert_allclose(offsets(drawn), diffusion_map(result.distances, 2, k=10))
    assert drawn.get_xlabel() == "diffusion 1"


def test_a_palette_of_ones_own(samples):
    drawn = pl.sample_map(samples, "condition", palette={"case": "#123456"}, ax=axes())
    colors = [tuple(c.get_facecolor()[0]) for c in drawn.collections]
    assert colors == [to_rgba(picture.COLORS[0]), to_rgba("#123456")]
    assert pl.sample_map(samples, "age", palette="magma", ax=axes()).collections[0].get_cmap().name == "magma"


def test_names_can_be_left_out(samples):
    with_names = {text.get_text() for text in pl.sample_map(samples, names=True, ax=axes()).texts}
    without = {text.get_text() for text in pl.sample_map(samples, names=False, ax=axes()).texts}
    assert "case-01" in with_names - without


def test_many_groups_stand_beside_the_map():
    rng = np.random.default_rng(0)
    places = rng.normal(size=(120, 2))
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    many = fake(distances)
    drawn = pl.sample_map(many, [f"group {i % 40}" for i in range(120)], ax=axes())
    assert len(legend_of(drawn)) == 40
    markers = {(tuple(c.get_facecolor()[0]), c.get_paths()[0].vertices.tobytes()) for c in drawn.collections}
    assert len(markers) == 40  # color and shape together tell them apart
    few = pl.sample_map(many, ax=axes()).collections[0].get_sizes()
    assert few[0] < 62
    with pytest.raises(hm.InvalidInputError, match="at most 56 groups with distinct colors and shapes, found 60"):
        pl.sample_map(many, [f"group {i % 60}" for i in range(120)], ax=axes())
    with pytest.raises(hm.InvalidInputError, match="at most 56 groups with distinct colors and shapes, found 60"):
        pl.distance_heatmap(many, [f"group {i % 60}" for i in range(120)], ax=axes())


def test_nothing_global_changes(samples):
    before = dict(mpl.rcParams)
    pl.sample_map(samples, "age", ax=axes())
    pl.distance_heatmap(samples, "age", ax=axes())
    pl.scales(samples, ax=axes())
    assert dict(mpl.rcParams) == before


def fake(distances, names=None):
    """An AnnData of samples with these distances."""
    names = [f"s{i:03}" for i in range(len(distances))] if names is None else names
    obs = pd.DataFrame({"odd": np.arange(len(distances)) % 2}, index=names)
    made = anndata.AnnData(obs=obs, obsp={"distances": np.asarray(distances, dtype=float)})
    from heatmover.statistics.manifold import classical_scaling

    made.obsm["X_mds"] = classical_scaling(distances, 2)[0]
    made.uns["heatmover"] = {"varying": np.array([], dtype=object)}
    return made


NASTY = ["$\\frac{", "_hidden", "x" * 5000, "two\nlines"]


def test_names_are_inert_text():
    places = np.array([[0, 0], [5, 0], [0, 5], [5, 5.5]])
    made = fake(np.linalg.norm(places[:, None] - places, axis=2), NASTY)
    drawn = pl.sample_map(made, NASTY, ax=axes())
    drawn.figure.draw_without_rendering()
    parts = pl.distance_heatmap(made, {"$\\frac{": NASTY, "_b": [1, 2, 3, 4]}, ax=axes())
    parts["heatmap"].figure.draw_without_rendering()
    assert "$\\frac{" in {label.get_text() for label in parts["strips"].get_yticklabels()}
    bars = pl.smoothness(made, {"$\\frac{": [0, 0, 1, 1]}, ax=axes())
    bars.figure.draw_without_rendering()
    bar = pl.sample_map(made, pd.Series([1.0, 2, 3, 4], name="$\\frac{"), ax=axes())
    bar.figure.draw_without_rendering()


@pytest.mark.parametrize("distances", [[[0, 4], [4, 0]], np.zeros((3, 3)), np.ones((5, 5)) - np.eye(5)])
def test_few_or_equal_samples(distances):
    made = fake(np.array(distances, dtype=float))
    for values in ("odd", np.full(len(distances), 2.5), [None] * len(distances)):
        pl.sample_map(made, values, ax=axes()).figure.draw_without_rendering()
        pl.distance_heatmap(made, values, ax=axes())["heatmap"].figure.draw_without_rendering()


BAD = {
    "a slip": ("samples", "conditon", "did you mean 'condition'"),
    "a variable of cells": ("samples", "branch", "'branch' to be constant within each sample"),
    "the same from cells": ("cells", "branch", "'branch' to be constant within each sample"),
    "a name for a comparison": ("result", "condition", "a Comparison has no sample metadata"),
    "too few": ("result", [1, 2, 3], r"one value per sample \(14\), found 3 values"),
    "two columns": ("result", np.zeros((14, 2)), "an array of shape"),
    "a number": ("result", 3, r"one value per sample \(14\), found int"),
    "strange names": ("result", {"nobody": 1}, "values for each of the 14 samples, found none for 'case-01'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_variables(request, case):
    kind, color, message = BAD[case]
    with pytest.raises(hm.InvalidInputError, match=message):
        pl.sample_map(request.getfixturevalue(kind), color, ax=axes())


def test_bad_data(samples, cells, result):
    with pytest.raises(hm.InvalidInputError, match=r"a Comparison, or an AnnData.*found ndarray"):
        pl.sample_map(np.zeros((3, 3)))
    with pytest.raises(hm.InvalidInputError, match=r"call hm\.tl\.sample_distances"):
        pl.scales(anndata.AnnData(np.zeros((3, 2), dtype=np.float32)))
    with pytest.raises(hm.InvalidInputError, match="did you mean 'heatmover'"):
        pl.scales(cells, key="heatmove")
    with pytest.raises(hm.InvalidInputError, match="at least two samples, found 1"):
        pl.distance_heatmap(samples[:1].copy())
    with pytest.raises(hm.InvalidInputError, match="the argument basis to be the name of a map in obsm"):
        pl.sample_map(samples, basis="tsne", ax=axes())
    with pytest.raises(hm.InvalidInputError, match="basis to be one of"):
        pl.sample_map(result, basis="tsne", ax=axes())
    with pytest.raises(hm.InvalidInputError, match="palette to be a color map"):
        pl.sample_map(samples, "age", palette="no such", ax=axes())


def test_some_of_the_samples(samples):
    some = samples[samples.obs["condition"] == "case"]
    drawn = pl.sample_map(some, "age", ax=axes())
    np.testing.assert_allclose(offsets(drawn), samples.obsm["X_mds"][:7, :2])


# The heatmap


def test_the_heatmap_shows_all_distances_in_the_order_of_the_tree(samples):
    parts = pl.distance_heatmap(samples, ["condition", "score"], ax=axes())
    assert set(parts) == {"heatmap", "dendrogram", "colorbar", "strips"}
    names = [label.get_text() for label in parts["heatmap"].get_yticklabels()]
    order = [list(samples.obs_names).index(name) for name in names]
    assert sorted(order) == list(range(14))
    drawn = np.asarray(parts["heatmap"].images[0].get_array())
    np.testing.assert_allclose(drawn, samples.obsp["distances"][np.ix_(order, order)])
    strips = np.asarray(parts["strips"].images[0].get_array())
    case = (samples.obs["condition"] == "case").to_numpy()[order]
    control, disease = picture.COLORS[:2]
    np.testing.assert_allclose(strips[0], [to_rgba(disease if each else control)[:3] for each in case])
    gaps = samples.obs["score"].isna().to_numpy()[order]
    np.testing.assert_allclose(strips[1][gaps], [to_rgba(picture.MISSING)[:3]] * 3)


def test_the_order_of_leaves_is_the_best_of_the_tree():
    places = np.array([0.0, 10.0, 1.0, 11.0, 2.0, 12.5])
    parts = pl.distance_heatmap(fake(np.abs(places[:, None] - places)), ax=axes())
    names = [label.get_text() for label in parts["heatmap"].get_yticklabels()]
    found = [int(name[1:]) for name in names]
    best = np.argsort(places).tolist()
    assert found in (best, best[::-1])
    assert "strips" not in parts


def test_groups_of_two_variables_have_different_colors(samples):
    half = ["x", "y"] * 7
    parts = pl.distance_heatmap(samples, {"a": samples.obs["condition"], "b": half}, ax=axes())
    strips = np.asarray(parts["strips"].images[0].get_array())
    assert not {tuple(c) for c in strips[0]} & {tuple(c) for c in strips[1]}


def test_more_groups_than_colors_still_differ_in_a_strip(samples):
    parts = pl.distance_heatmap(samples, {"each": [f"group {i}" for i in range(14)]}, ax=axes())
    strips = np.asarray(parts["strips"].images[0].get_array())
    assert len({tuple(c) for c in strips[0]}) == 14
    own = pl.distance_heatmap(samples, "condition", palette={"case": "#123456"}, ax=axes())["strips"]
    assert to_rgba("#123456")[:3] in {tuple(c) for c in np.asarray(own.images[0].get_array())[0]}


def test_names_are_written_if_they_can_be_read():
    places = np.random.default_rng(0).normal(size=(150, 1))
    parts = pl.distance_heatmap(fake(np.abs(places - places.T)), ax=axes())
    assert len(parts["heatmap"].get_yticklabels()) == 0


def test_legends_of_the_heatmap_do_not_hide_each_other(samples):
    figure = Figure(figsize=(8, 7), layout="constrained")
    long = [f"group {i}" for i in range(14)]
    parts = pl.distance_heatmap(samples, {"many": long, "age": samples.obs["age"]}, ax=figure.add_subplot())
    figure.draw_without_rendering()
    legends = [child for child in parts["heatmap"].get_children() if type(child).__name__ == "Legend"]
    boxes = [legend.get_window_extent() for legend in legends]
    assert len(boxes) == 2
    assert not boxes[0].overlaps(boxes[1])
    assert not parts["colorbar"].get_window_extent().overlaps(boxes[0])
    assert [text.get_text() for text in legends[0].get_texts()][-1] == "and 4 more"


# Scales and smoothness


@pytest.mark.parametrize("kind", ["cells", "samples", "result"])
def test_bars_of_scales_are_shares_of_the_distance(request, result, kind):
    drawn = pl.scales(request.getfixturevalue(kind), ax=axes())
    heights = np.array([bar.get_height() for bar in drawn.patches])
    blocks = np.split(result.embedding, len(result.model.scales_), axis=1)
    sums = np.array([sum(np.abs(a - b).sum() for a in block for b in block) for block in blocks])
    np.testing.assert_allclose(heights, sums / sums.sum(), rtol=1e-3)
    decay = drawn.lines[0].get_ydata()
    np.testing.assert_allclose(decay, result.model.decay_)
    assert "largest scale" in {text.get_text() for text in drawn.texts}


def test_scales_that_were_asked_for_have_no_decay(data):
    fixed = hm.compare(data.points, data.labels, model=hm.DiffusionEMD(max_scale=4))
    drawn = pl.scales(fixed, ax=axes())
    assert len(drawn.lines) == 0
    assert [tick.get_text() for tick in drawn.get_xticklabels()][-1] == "$2^{4}$"


def test_bars_of_smoothness_are_those_of_the_test(samples, result):
    drawn = pl.smoothness(samples, ["condition", "age", "score"], k=4, n_permutations=199, ax=axes())
    labels = [label.get_text() for label in drawn.get_yticklabels()]
    assert set(labels) == {"condition", "age", "score (11 of 14)"}
    observed = dict(zip(labels, [bar.get_width() for bar in drawn.containers[0]], strict=True))
    expected = smoothness_of(result.distances, samples.obs["condition"].astype(str), k=4, n_permutations=199)
    assert observed["condition"] == pytest.approx(expected.statistic)
    part = smoothness_of(result.distances[3:, 3:], samples.obs["score"].to_numpy()[3:], k=4, n_permutations=199)
    assert observed["score (11 of 14)"] == pytest.approx(part.statistic)
    values = [observed[label] for label in labels]
    assert values == sorted(values, reverse=True)
    texts = dict(zip(labels, [text.get_text() for text in drawn.texts], strict=True))
    assert texts["condition"] == f"p = {expected.p_value:.2g}"


def test_smoothness_is_tested_under_blocks(samples, result):
    patient = np.repeat(np.arange(7), 2)
    state = patient % 2
    drawn = pl.smoothness(samples, {"state": state}, blocks=patient, k=4, n_permutations=199, ax=axes())
    expected = smoothness_of(result.distances, state, k=4, blocks=patient, n_permutations=199)
    assert drawn.containers[0][0].get_width() == pytest.approx(expected.statistic)
    assert drawn.texts[0].get_text() == f"p = {expected.p_value:.2g}"
    assert expected.p_value != smoothness_of(result.distances, state, k=4, n_permutations=199).p_value
    both = {"patient": [f"p{i}" for i in patient], "batch": list("aaaaaaaabbbbbb")}
    drawn = pl.smoothness(samples, {"state": state}, blocks=both, k=4, ax=axes())
    expected = smoothness_of(result.distances, state, k=4, blocks=both)
    assert drawn.texts[0].get_text() == f"p = {expected.p_value:.2g}"
    with pytest.raises(hm.InvalidInputError, match="a block in 'score' for every sample, found none for 3 of 14"):
        pl.smoothness(samples, "age", blocks="score", ax=axes())


def test_bad_variables_of_smoothness(samples, result):
    with pytest.raises(hm.InvalidInputError, match="at least one variable"):
        pl.smoothness(samples, {}, ax=axes())
    with pytest.raises(hm.InvalidInputError, match="for at least 3 samples, found 1"):
        pl.smoothness(result, {"rare": dict.fromkeys(result.names) | {"case-01": 1.0}}, ax=axes())
    with pytest.raises(hm.InvalidInputError, match="the same value in all samples"):
        pl.smoothness(result, {"constant": [1] * 14}, ax=axes())


def test_new_axes_are_shown_by_pyplot(samples):
    from matplotlib import pyplot

    for drawn in (
        pl.sample_map(samples),
        pl.distance_heatmap(samples)["heatmap"],
        pl.scales(samples),
        pl.smoothness(samples, "age"),
    ):
        assert drawn.figure.number in pyplot.get_fignums()
        pyplot.close(drawn.figure)


@pytest.fixture(scope="module")
def unsure(data):
    return hm.compare(data.points, data.labels, n_bootstrap=30)


def hatched(drawn, n_samples):
    """The pairs under stripes."""
    image = drawn["heatmap"].images[1]
    assert image.get_extent() == [-0.5, n_samples - 0.5, n_samples - 0.5, -0.5]
    opaque = np.asarray(image.get_array())[..., 3] > 0
    side = len(opaque) // n_samples
    return opaque.reshape(n_samples, side, n_samples, side).any(axis=(1, 3))


def test_pairs_that_are_not_distinguishable_are_hatched(unsure, data):
    n_samples = len(unsure.names)
    drawn = pl.distance_heatmap(unsure, {"condition": data.annotations["condition"]}, ax=axes())
    order = [unsure.names.index(label.get_text()) for label in drawn["heatmap"].get_yticklabels()]
    alike = ~unsure.intervals.distinguishable[np.ix_(order, order)] & ~np.eye(n_samples, dtype=bool)
    assert 0 < alike.sum() < n_samples * (n_samples - 1)
    np.testing.assert_array_equal(hatched(drawn, n_samples), alike)
    assert drawn["heatmap"].get_xlim() == (-0.5, n_samples - 0.5)
    titles = [legend.get_title().get_text() for legend in drawn["heatmap"].get_children() if isinstance(legend, Legend)]
    assert sorted(titles) == ["condition", "not distinguishable"]


def test_without_intervals_nothing_is_hatched(result):
    assert len(pl.distance_heatmap(result, ax=axes())["heatmap"].images) == 1


def test_an_anndata_of_samples_knows_its_intervals(unsure, data):
    obs = pd.DataFrame({"sample": data.labels}, index=[f"c{i}" for i in range(len(data.labels))])
    adata = anndata.AnnData(data.points, obs=obs)
    hm.tl.sample_distances(adata, "sample", n_bootstrap=30)
    n_samples = len(unsure.names)
    expected = hatched(pl.distance_heatmap(unsure, ax=axes()), n_samples)
    np.testing.assert_array_equal(hatched(pl.distance_heatmap(adata, ax=axes()), n_samples), expected)
    np.testing.assert_array_equal(hatched(pl.distance_heatmap(hm.tl.samples(adata), ax=axes()), n_samples), expected)


# Composition


def heights(drawn):
    """Shares as they are drawn, ``(n_types, n_samples)``."""
    return np.array([[bar.get_height() for bar in container] for container in drawn.containers])


def test_bars_of_composition_are_shares_in_the_order_of_the_tree(data, cells, result):
    order = leaf_order(result.distances)
    counts = np.zeros((14, 5))
    names = list(result.names)
    for label, branch in zip(data.labels, data.coordinates[:, 0], strict=True):
        counts[names.index(label), int(branch)] += 1
    shares = counts / counts.sum(axis=1, keepdims=True)
    drawn = pl.composition(cells, "branch", ax=axes())
    by_size = np.argsort(-shares.mean(axis=0), kind="stable")
    np.testing.assert_allclose(heights(drawn), shares[order][:, by_size].T, atol=1e-12)
    assert [tick.get_text() for tick in drawn.get_xticklabels()] == [names[i] for i in order]
    again = pl.composition(result, data.coordinates[:, 0], ax=axes())
    np.testing.assert_allclose(heights(again), heights(drawn), atol=1e-12)


def test_groups_stand_side_by_side_with_a_gap(cells, samples):
    drawn = pl.composition(cells, "branch", color="condition", ax=axes())
    names = [tick.get_text() for tick in drawn.get_xticklabels()]
    assert names == sorted(names, key=lambda name: name.startswith("case"))  # categories: control, none, case
    left = [bar.get_x() for bar in drawn.containers[0]]
    steps = np.diff(left)
    assert (steps > 1.5).tolist() == [i == 6 for i in range(13)]
    assert [text.get_text() for text in drawn.texts] == ["control", "case"]
    by_age = pl.composition(cells, "branch", color="age", ax=axes())
    assert [tick.get_text() for tick in by_age.get_xticklabels()] == list(samples.obs_names)


def test_many_types_become_ten_and_other(result, data):
    kinds = [f"kind {i % 14:02d}" for i in range(len(data.labels))]
    drawn = pl.composition(result, kinds, ax=axes())
    labels = [text.get_text() for text in drawn.get_legend().get_texts()]
    assert len(labels) == 11
    assert labels[0] == "other (4 types)"
    assert to_hex(drawn.containers[-1][0].get_facecolor()).upper() == picture.MISSING.upper()
    np.testing.assert_allclose(heights(drawn).sum(axis=0), 1)


def test_hostile_types_are_text(result, data):
    names = np.array(["$\\frac{", "_hidden", "<b>x</b>", "x" * 300, " "])
    drawn = pl.composition(
        result, names[data.coordinates[:, 0].astype(int)], color=["$\\frac{"] * 7 + ["_"] * 7, ax=axes()
    )
    drawn.figure.draw_without_rendering()
    labels = {text.get_text().strip() for text in drawn.get_legend().get_texts()}
    assert {"$\\frac{", "_hidden", "<b>x</b>", "x" * 11 + "..." + "x" * 10} <= labels
    assert len(drawn.get_legend().get_texts()) == 5


def test_a_study_knows_its_types_and_variables(data):
    compared = hm.compare(data.points, data.labels)
    branch = {"branch": data.coordinates[:, 0].astype(int)}
    condition = {"condition": data.annotations["condition"]}
    study = hm.study_comparison(compared, condition, cells=branch, n_permutations=9)
    drawn = pl.composition(study, color="condition", ax=axes())
    assert drawn.get_legend().get_title().get_text() == "branch"
    assert [text.get_text() for text in drawn.texts] == ["case", "control"]
    assert pl.sample_map(study, "condition", ax=axes()).get_legend() is not None
    with pytest.raises(hm.InvalidInputError, match="did you mean 'condition'"):
        pl.sample_map(study, "conditon", ax=axes())
    with pytest.raises(hm.InvalidInputError, match="the cell types of the study, found other types"):
        pl.composition(study, branch["branch"], ax=axes())


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("cells", "brunch", "did you mean 'branch'"),
        ("cells", None, "the type of each cell, found none"),
        ("cells", [1, 2], "the argument cells to be the name of a column of obs, found list"),
        ("samples", "branch", "an AnnData of cells, with the column 'branch' in obs, found an AnnData of samples"),
        ("result", ["a", "b"], "one cell type for each of the 420 points"),
        ("result", ["a"] * 420, "2 to 1,000 cell types"),
    ],
)
def test_bad_types(request, kind, given, message):
    with pytest.raises(hm.InvalidInputError, match=message):
        pl.composition(request.getfixturevalue(kind), given, ax=axes())


def test_more_colors_than_there_are(cells):
    with pytest.raises(hm.InvalidInputError, match="the argument most to be at most 10"):
        pl.composition(cells, "branch", most=11, ax=axes())


# Abundance and state


@pytest.fixture(scope="module")
def contrasted(data):
    condition = {"condition": data.annotations["condition"]}
    branch = {"branch": [f"branch {int(b)}" for b in data.coordinates[:, 0]]}
    return hm.study_comparison(hm.compare(data.points, data.labels), condition, cells=branch, n_permutations=99)


def test_bars_of_number_and_state_are_parts_of_the_distance(contrasted):
    drawn = pl.abundance_state(contrasted, ax=axes())
    types = contrasted.contrast.types
    assert [label.get_text() for label in drawn.get_yticklabels()] == [kind.name for kind in types]
    widths = [[bar.get_width() for bar in container] for container in drawn.containers]
    distance = contrasted.contrast.distance
    np.testing.assert_allclose(widths[0], [100 * kind.abundance / distance for kind in types], rtol=1e-6)
    np.testing.assert_allclose(widths[1], [100 * kind.state / distance for kind in types], rtol=1e-6)
    assert np.sum(widths) == pytest.approx(100)
    full = [bar.get_facecolor()[3] == 1 for bar in drawn.containers[0]]
    assert full == [kind.abundance_q <= 0.1 for kind in types]
    assert any(full)
    assert not all(full)
    alone = pl.abundance_state(contrasted.contrast, most=2, ax=axes())
    assert len(alone.containers[0]) == 2
    assert "3 further types not shown" in alone.get_xlabel()


def test_number_and_state_of_an_anndata(data):
    obs = pd.DataFrame({"sample": data.labels}, index=[f"cell-{i}" for i in range(len(data.labels))])
    obs["condition"] = obs["sample"].str.split("-").str[0]
    obs["branch"] = [f"$\\frac{{ {int(b)}" for b in data.coordinates[:, 0]]
    adata = anndata.AnnData(data.points, obs=obs)
    tl.sample_distances(adata, "sample")
    with pytest.raises(hm.InvalidInputError, match="a contrast of cell types in uns"):
        pl.abundance_state(adata, ax=axes())
    tl.explain(adata, "condition", group="case", annotation="branch", n_permutations=19)
    drawn = pl.abundance_state(adata, ax=axes())
    drawn.figure.draw_without_rendering()
    table = adata.uns["heatmover"]["explain"]["types"]
    widths = [bar.get_width() for bar in drawn.containers[1]]
    np.testing.assert_allclose(widths, 100 * table["state"] / (table["abundance"] + table["state"]).sum())


def test_without_a_contrast_there_is_nothing_to_draw(result):
    without = hm.study_comparison(result, n_permutations=9)
    for bad, found in ((without, "a study without such a contrast"), (result, "Comparison"), (3, "int")):
        with pytest.raises(hm.InvalidInputError, match=f"a contrast of cell types.*found {found}"):
            pl.abundance_state(bad, ax=axes())


# Drivers


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(12 * 40, 3)), columns=["x", "$\\frac{", "z"])
    frame["sample"] = np.repeat([f"s{i:02}" for i in range(12)], 40)
    frame["group"] = np.repeat(["control", "case"] * 6, 40)
    frame["type"] = np.tile(["B", "_T"], 240)
    frame.loc[frame["type"] == "B", "x"] += 4
    frame.loc[(frame["group"] == "case") & (frame["type"] == "B"), "z"] += 2
    path = tmp_path_factory.mktemp("driven") / "cells.csv"
    frame.to_csv(path, index=False)
    cohort = hm.read_cohort(path, sample_key="sample")
    return hm.study_cohort(cohort, variables=["group"], cells="type", n_permutations=199)


def test_drivers_are_drawn_as_they_were_found(driven):
    drawn = pl.drivers(driven, ax=axes())
    drawn.figure.draw_without_rendering()
    rows = [label.get_text() for label in drawn.get_yticklabels()]
    columns = [label.get_text() for label in drawn.get_xticklabels()]
    found = driven.contrast.drivers
    assert rows == [kind.name for kind in driven.contrast.types]
    assert columns[0] == "z"
    shown = np.asarray(drawn.images[0].get_array())
    expected = [[found.standardized[found.types.index(r), found.features.index(c)] for c in columns] for r in rows]
    np.testing.assert_allclose(shown, expected)
    dots = {(rows[int(y)], columns[int(x)]) for x, y in drawn.collections[0].get_offsets()}
    sure = zip(*np.nonzero(found.q_values <= 0.1), strict=True)
    assert dots == {(found.types[row], found.features[place]) for row, place in sure}
    assert ("B", "z") in dots
    assert len(dots) < 6
    low, high = drawn.images[0].get_clim()
    assert low == -high
    assert len(pl.drivers(driven.contrast, most=1, ax=axes()).get_xticklabels()) == 1


def test_without_features_there_are_no_drivers(contrasted, result):
    for bad in (replace(contrasted, contrasts=()), result):
        with pytest.raises(hm.InvalidInputError, match="a contrast of cell types with the features"):
            pl.drivers(bad, ax=axes())
