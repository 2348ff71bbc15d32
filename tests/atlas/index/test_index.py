"""MeasureIndex: the same neighbors as a plain search, in memory and on disk, and one clear error for bad input."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.exceptions import NotFittedError

import heatmover as hm
from heatmover._base.storage import samples as samples_module
from heatmover.atlas.index import exact_emd
from heatmover.atlas.index import index as module
from heatmover.atlas.index.index import fingerprint
from heatmover.errors import InvalidInputError, MissingExtraError

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs faiss")

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(60, 5))
QUERIES = RNG.normal(size=(7, 5))


def plain(queries, rows, k):
    """The definition: all distances, sorted by distance and then by row."""
    distances = cdist(queries, rows, "cityblock")
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), order


def make(place, **options):
    """An index of ROWS: in memory, on disk and held in memory, on disk and read at every search, in three steps."""
    if place == "memory":
        return hm.MeasureIndex.from_embedding(ROWS, **options)
    path, memory = options.pop("path"), "1 GB" if place == "disk" else 1
    if place == "steps":
        index = hm.MeasureIndex.from_embedding(ROWS[:20], path=path, memory=memory, **options)
        index.add(ROWS[20:21])
        index.add(ROWS[21:])
        return index
    return hm.MeasureIndex.from_embedding(ROWS, path=path, memory=memory, **options)


PLACES = ("memory", "disk", "stream", "steps")


@pytest.fixture
def index(request, tmp_path):
    options = {} if request.param == "memory" else {"path": tmp_path / "index"}
    return make(request.param, **options)


everywhere = pytest.mark.parametrize("index", PLACES, indirect=True)


@everywhere
def test_nearest_of_rows(index):
    distances, rows = plain(QUERIES, ROWS, 4)
    found = index.nearest(QUERIES, 4)
    np.testing.assert_allclose(found.distances, distances, rtol=1e-12)
    np.testing.assert_array_equal(found.rows, rows)
    assert found.names[0] == tuple(str(row) for row in rows[0])
    assert found.exact
    assert len(found) == 7


@everywhere
def test_nearest_of_stored_samples_leaves_them_out(index):
    _, rows = plain(ROWS[[9, 2]], ROWS, 4)
    np.testing.assert_array_equal(index.nearest(["9", "2"], 3).rows, rows[:, 1:])
    np.testing.assert_array_equal(index.nearest("9", 59).rows[0], plain(ROWS[[9]], ROWS, 60)[1][0, 1:])


@everywhere
def test_within_a_radius(index):
    distances = cdist(QUERIES, ROWS, "cityblock")
    radius = float(np.quantile(distances, 0.2))
    found = index.within(QUERIES, radius)
    for query, each in enumerate(distances):
        assert set(found.rows[query].tolist()) == set(np.flatnonzero(each <= radius).tolist())
        assert (np.diff(found.distances[query]) >= 0).all()
    stored = index.within("5", 0)
    assert [len(rows) for rows in stored.rows] == [0]
    assert index.within(ROWS[[5]], 0).names == (("5",),)


@everywhere
def test_additions_count(index):
    index.add(QUERIES[:2] + 1e-9, names=["x", "y"])
    assert index.n_rows == len(index) == 62
    assert index.names[-2:] == ("x", "y")
    assert index.row("y") == 61
    assert index.nearest(QUERIES[:2], 1).names == (("x",), ("y",))
    _, rows = plain(QUERIES, np.vstack([ROWS, QUERIES[:2]]), 5)
    np.testing.assert_array_equal(index.nearest(QUERIES, 5).rows, rows)


def test_equal_rows_come_in_their_order(tmp_path):
    rows = np.zeros((9, 2))
    for path, memory in ((None, 1), (tmp_path / "i", 1)):
        found = hm.MeasureIndex.from_embedding(rows, path=path, memory=memory).nearest(rows[:1], 4)
        assert found.rows.tolist() == [[0, 1, 2, 3]]
    assert hm.MeasureIndex.from_embedding(rows).nearest("2", 3).rows.tolist() == [[0, 1, 3]]
    # Its own row is not among the first four.
    assert hm.MeasureIndex.from_embedding(rows).nearest("8", 3).rows.tolist() == [[0, 1, 2]]


def test_streams_have_the_bits_of_memory(tmp_path, monkeypatch):
    rows = np.random.default_rng(1).normal(size=(500, 33)).astype(np.float32)
    expected = hm.nearest(rows[:20], 6, other=rows)
    monkeypatch.setattr(samples_module, "PART_BYTES", 33 * 4 * 64)
    index = hm.MeasureIndex.from_embedding(rows, path=tmp_path / "i", memory=1)
    for n_jobs in (1, 2):
        found = index.nearest(rows[:20], 6, n_jobs=n_jobs)
        np.testing.assert_array_equal(found.distances, expected[0])
        np.testing.assert_array_equal(found.rows, expected[1])


def test_the_callers_array_stays_the_callers():
    rows = ROWS.copy()
    index = hm.MeasureIndex.from_embedding(rows)
    rows[:] = 0
    np.testing.assert_array_equal(index.nearest(QUERIES, 3).rows, plain(QUERIES, ROWS, 3)[1])


def test_other_handles_see_additions_when_they_refresh(tmp_path):
    one = make("disk", path=tmp_path / "i")
    two = hm.MeasureIndex.open(tmp_path / "i")
    three = hm.MeasureIndex.open(tmp_path / "i", memory=1)
    for handle in (two, three):
        handle.nearest(QUERIES, 1)
    one.add(QUERIES[:1], names=["new"])
    for handle in (two, three):
        assert handle.nearest(QUERIES[:1], 1).distances[0, 0] > 0
        handle.refresh()
        assert handle.nearest(QUERIES[:1], 1).names == (("new",),)
    two.add(QUERIES[1:2], names=["newer"])
    assert hm.MeasureIndex.open(tmp_path / "i").names[-2:] == ("new", "newer")


def test_variables_of_neighbors(tmp_path):
    variables = {"age": [*range(59), None], "sex": ["m", None] * 30}
    for path in (None, tmp_path / "i"):
        index = hm.MeasureIndex.from_embedding(ROWS, variables=variables, path=path)
        index.add(QUERIES[:1], names=["x"], variables={"age": [99], "sex": [None]})
        found = index.variables([[3, 59], [60, 0]])
        np.testing.assert_array_equal(found["age"], [[3, np.nan], [99, 0]])
        assert found["sex"].tolist() == [[None, None], [None, "m"]]
        assert index.variables()["sex"].shape == (61,)
        with pytest.raises(InvalidInputError, match="rows from 0 to 60, found 3 to 61"):
            index.variables([3, 61])


def test_check_reads_every_file(tmp_path):
    index = make("disk", path=tmp_path / "i")
    index.check()
    rows = next((tmp_path / "i").rglob("rows/c/0/0"))
    data = bytearray(rows.read_bytes())
    data[100] ^= 1
    rows.write_bytes(data)
    with pytest.raises(InvalidInputError, match="SHA-256"):
        index.check()
    with pytest.raises(InvalidInputError, match="SHA-256"):
        hm.MeasureIndex.open(tmp_path / "i").nearest(QUERIES, 1)
    with pytest.raises(InvalidInputError, match="SHA-256"):
        hm.MeasureIndex.open(tmp_path / "i", memory=1).nearest("3", 1)


BAD = {
    "k of at most 60, found 61; there are 60 stored samples": lambda index: index.nearest(QUERIES, 61),
    "k of at most 59, found 60; .*not its own neighbor": lambda index: index.nearest("3", 60),
    "k to be a whole number": lambda index: index.nearest(QUERIES, 0),
    "rows of 5 features, as in the index, found rows of 4": lambda index: index.nearest(QUERIES[:, :4], 1),
    "at least one row": lambda index: index.nearest(np.empty((0, 5)), 1),
    "embedding without NaN": lambda index: index.nearest(QUERIES * np.nan, 1),
    "the name of a stored sample, found '60'": lambda index: index.nearest("60", 1),
    "distinct names to search for": lambda index: index.nearest(["1", "1"], 1),
    "method to be one of": lambda index: index.nearest(QUERIES, 1, method="fast"),
    "radius to be a number": lambda index: index.within(QUERIES, -1),
    "radius to be finite|radius to be a number": lambda index: index.within(QUERIES, float("nan")),
    "a model that embeds measures": lambda index: index.nearest(hm.measures_from_weights(np.eye(5)), 1),
    "new sample names": lambda index: index.add(QUERIES[:1], names=["3"]),
    "distinct names of samples": lambda index: index.add(QUERIES[:2], names=["x", "x"]),
    "rows of 5 features": lambda index: index.add(QUERIES[:, :4]),
    "embedding without NaN or infinity": lambda index: index.add(QUERIES * np.inf),
    "one name per row": lambda index: index.add(QUERIES, names=["x"]),
    "the sample metadata of the store": lambda index: index.add(QUERIES, variables={"age": [1] * 7}),
    "sample to be a whole number": lambda index: index.recall(sample=0),
}


@pytest.mark.parametrize("index", ["memory", "disk"], indirect=True)
@pytest.mark.parametrize("said", BAD)
def test_bad_input_is_refused_and_nothing_changes(index, said):
    with pytest.raises(InvalidInputError, match=said):
        BAD[said](index)
    assert index.n_rows == 60
    np.testing.assert_array_equal(index.nearest(QUERIES, 3).rows, plain(QUERIES, ROWS, 3)[1])


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (np.empty((0, 3)), {}, "at least one row"),
        ([[np.nan]], {}, "NaN"),
        ([[1.0], [2.0]], {"names": ["a", "a"]}, "distinct names of samples, found 'a'"),
        ([[1.0], [2.0]], {"names": ["a"]}, "one name per row"),
        ([[1.0]], {"variables": {"age": [1, 2]}}, "'age': one value per sample"),
        ([[1.0]], {"memory": "much"}, "memory to be"),
    ],
)
def test_what_cannot_become_an_index(tmp_path, rows, options, said):
    for path in (None, tmp_path / "i"):
        with pytest.raises(InvalidInputError, match=said):
            hm.MeasureIndex.from_embedding(rows, path=path, **options)
    assert list(tmp_path.iterdir()) == []


def grid_model(size=20, **options):
    return hm.DiffusionEMD(hm.Graph.from_grid((size,)), **options)


MEASURES = hm.measures_from_weights(np.random.default_rng(3).random((12, 20)))


def test_measures_are_embedded_by_the_model(tmp_path):
    model = grid_model().fit(MEASURES)
    index = hm.MeasureIndex.from_measures(model, MEASURES, path=tmp_path / "i")
    rows = model.transform(MEASURES)
    new = hm.measures_from_weights(np.random.default_rng(4).random((2, 20)), names=["x", "y"])
    expected = hm.nearest(model.transform(new), 3, other=rows)[1]
    for handle in (index, hm.MeasureIndex.open(tmp_path / "i", model=model)):
        np.testing.assert_array_equal(handle.nearest(new, 3).rows, expected)
    index.add(new)
    assert index.names[-2:] == ("x", "y")
    assert index.nearest(new, 1).distances.max() == 0


def test_a_model_that_does_not_belong_is_refused(tmp_path):
    model = grid_model(max_scale=4).fit(MEASURES)
    hm.MeasureIndex.from_measures(model, MEASURES, path=tmp_path / "i")
    hm.MeasureIndex.open(tmp_path / "i", model=grid_model(max_scale=4, method="exact").fit(MEASURES))
    with pytest.raises(InvalidInputError, match="the model that embedded the rows of the index, found another model"):
        hm.MeasureIndex.open(tmp_path / "i", model=grid_model(max_scale=4, alpha=0.3).fit(MEASURES))
    with pytest.raises(
        InvalidInputError, match=r"rows of \d+ features, as in embeddings of this model, found rows of 100"
    ):
        hm.MeasureIndex.open(tmp_path / "i", model=grid_model(max_scale=6).fit(MEASURES))
    with pytest.raises(InvalidInputError, match="a fitted DiffusionEMD as model, found str"):
        hm.MeasureIndex.from_embedding(ROWS, model="model")


def test_without_faiss_the_search_is_exact_and_approximate_asks_for_it(monkeypatch):
    monkeypatch.setattr(module, "APPROXIMATE_ROWS", 1)
    monkeypatch.setattr(module, "APPROXIMATE_VALUES", 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    monkeypatch.setitem(sys.modules, "faiss", None)
    index = hm.MeasureIndex.from_embedding(ROWS)
    found = index.nearest(QUERIES, 3)
    assert found.exact
    np.testing.assert_array_equal(found.rows, plain(QUERIES, ROWS, 3)[1])
    with pytest.raises(MissingExtraError, match=r"heatmover\[search\]"):
        index.nearest(QUERIES, 3, method="approximate")


@needs_faiss
def test_size_chooses_the_method(monkeypatch):
    index = hm.MeasureIndex.from_embedding(ROWS)
    assert index.nearest(QUERIES, 3).exact
    monkeypatch.setattr(module, "APPROXIMATE_ROWS", 60)
    monkeypatch.setattr(module, "APPROXIMATE_VALUES", 300)
    assert not index.nearest(QUERIES, 3).exact
    monkeypatch.setattr(module, "RECALL", 1.1)  # more than any graph finds
    assert index.nearest(QUERIES, 3).exact
    assert not index.nearest(QUERIES, 3, method="approximate").exact


@needs_faiss
def test_one_sample_has_no_graph():
    index = hm.MeasureIndex.from_embedding([[1.0]])
    with pytest.raises(InvalidInputError, match="at least two samples"):
        index.build()
    assert index.nearest([[2.0]], 1).rows.tolist() == [[0]]


def test_rerank_orders_by_the_other_distance():
    index = hm.MeasureIndex.from_embedding(ROWS)
    candidates = index.nearest(QUERIES, 10)
    other = cdist(QUERIES, ROWS, "euclidean")
    found = index.rerank(candidates, lambda query, rows: other[query, rows], k=4)
    for query, rows in enumerate(candidates.rows):
        best = sorted(rows.tolist(), key=lambda row, query=query: other[query, row])[:4]
        assert found.rows[query].tolist() == best
        assert found.names[query] == tuple(map(str, best))
        np.testing.assert_array_equal(found.distances[query], other[query, best])
    assert not found.exact
    with pytest.raises(InvalidInputError, match="at most the length of the candidate list, 10"):
        index.rerank(candidates, lambda query, rows: other[query, rows], k=11)
    with pytest.raises(InvalidInputError, match="10 distances, found an array of shape"):
        index.rerank(candidates, lambda query, rows: [1.0])
    with pytest.raises(InvalidInputError, match="distances without NaN"):
        index.rerank(candidates, lambda query, rows: np.full(10, np.nan))


# Fingerprints tell models apart by what defines their embedding, and by nothing else.


POINTS = np.random.default_rng(0).normal(size=(80, 2))


def made(points=POINTS, **options):
    return hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=8), **{"max_scale": 5, **options}).fit()


def test_models_of_one_definition_share_it():
    base = fingerprint(made())
    for same in ({"method": "exact"}, {"n_jobs": 1}, {"tol": 1e-4, "dtype": "float32"}):
        assert fingerprint(made(**same)) == base


@pytest.mark.parametrize(
    "change",
    [
        {"max_scale": 6},
        {"alpha": 0.4},
        {"n_scales": 3},
        {"density": "function"},
        {"norm": "increments"},
        {"dtype": "float64"},
        {"compress": 0.3},
        {"weights": [1, 1, 1, 2]},
        {"points": POINTS[::-1]},
        {"points": POINTS + 1e-9 * POINTS**2},
    ],
)
def test_another_definition_has_another(change):
    assert fingerprint(made(**change)) != fingerprint(made())


def test_a_model_has_to_be_fitted():
    with pytest.raises(NotFittedError):
        fingerprint(hm.DiffusionEMD())


PLACES = np.arange(6.0)
COSTS = abs(PLACES[:, None] - PLACES)
STORED = np.random.default_rng(0).dirichlet(np.ones(6), size=5)
ASKED = np.random.default_rng(1).dirichlet(np.ones(6), size=2)


def on_the_line(one, other):
    """Between measures on a line: the area between their distribution functions."""
    return np.abs(np.cumsum(one - other))[:-1].sum()


needs_pot = pytest.mark.skipif(importlib.util.find_spec("ot") is None, reason="needs POT")


@needs_pot
@pytest.mark.parametrize("costs", [COSTS, lambda a, b: COSTS[np.ix_(a, b)].copy()])
def test_exact_emd_is_the_distance_on_the_line(costs):
    distance = exact_emd(STORED, ASKED, costs)
    rows = np.array([4, 0, 2])
    for query in range(2):
        expected = [on_the_line(ASKED[query], STORED[row]) for row in rows]
        np.testing.assert_allclose(distance(query, rows), expected, rtol=1e-9)


@needs_pot
def test_exact_emd_of_what_does_not_fit():
    with pytest.raises(InvalidInputError, match="queries on the 6 points"):
        exact_emd(STORED, np.ones((1, 3)) / 3, COSTS)
    with pytest.raises(InvalidInputError, match=r"costs of shape \(6, 6\)"):
        exact_emd(STORED, ASKED, COSTS[:3])
    with pytest.raises(InvalidInputError, match="non-negative costs"):
        exact_emd(STORED, ASKED, COSTS - 1)
    with pytest.raises(InvalidInputError, match="one measure for every row"):
        exact_emd(STORED, ASKED, COSTS)(0, np.array([5]))


@pytest.mark.parametrize("kept", ["memory", "folder"])
def test_a_variable_of_numbers_takes_numbers_alone(kept, tmp_path):
    path = tmp_path / "index" if kept == "folder" else None
    index = hm.MeasureIndex.from_embedding([[0.0], [5.0]], variables={"age": [30, None]}, path=path)
    with pytest.raises(hm.InvalidInputError, match=r"numbers for the variable 'age', .*found 'old'.*None where"):
        index.add([[4.0]], names=["new"], variables={"age": ["old"]})
    assert index.n_rows == 2
    index.add([[4.0], [6.0]], names=["new", "newer"], variables={"age": [None, 41.5]})
    np.testing.assert_array_equal(index.variables()["age"], [30, np.nan, np.nan, 41.5])
