"""The order of rows decides nothing: every builder, landmarks, cohorts in pieces and every front end, ties included."""

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import heatmover as hm
from heatmover.cli import app
from heatmover.cohort import read_cohort
from heatmover.study.scale import compare_cohort
from heatmover.transport.baselines import cluster_tree, exact_emd, quad_tree

pytestmark = pytest.mark.filterwarnings("ignore::heatmover.GraphWarning", "ignore::UserWarning")

BUILDERS = {
    "tree": {"neighbors": "tree"},
    "exact": {"neighbors": "exact"},
    "approximate": {"neighbors": "approximate"},
    "adaptive": {"kernel": "adaptive"},
    "box": {"kernel": "box"},
    "radius": {"radius": 1.3},
}
MODELS = {
    "chebyshev": {"method": "chebyshev"},
    "exact": {"method": "exact"},
    "spectral": {"method": "spectral"},
    "interpolative": {"method": "interpolative"},
    "compact": {"compress": 0.1},
    "function": {"density": "function", "norm": "increments"},
}


def tied_points(kind, n_points, n_dimensions, rng):
    """Points with ties of every degree: counts, a lattice that rounding has shaken, rounded numbers, copies, none."""
    if kind == "counts":
        return rng.poisson(0.8, size=(n_points, n_dimensions)).astype(float)
    if kind == "standardized":
        points = rng.integers(0, 4, size=(n_points, n_dimensions)).astype(float)
        return (points - points.mean(axis=0)) / (points.std(axis=0) + 0.1)
    if kind == "rounded":
        return rng.normal(size=(n_points, n_dimensions)).round(1)
    points = rng.normal(size=(n_points, n_dimensions))
    if kind == "copies":
        return points[rng.integers(0, max(n_points // 3, 1), n_points)]
    return points


@settings(deadline=None, max_examples=500)
@given(
    kind=st.sampled_from(["counts", "standardized", "rounded", "copies", "continuous"]),
    builder=st.sampled_from(sorted(BUILDERS)),
    n_points=st.integers(8, 60),
    n_dimensions=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_distances_do_not_depend_on_the_order_of_points(kind, builder, n_points, n_dimensions, seed):
    rng = np.random.default_rng(seed)
    points = tied_points(kind, n_points, n_dimensions, rng)
    labels = np.r_[np.arange(4), rng.integers(0, 4, n_points - 4)]
    order = rng.permutation(n_points)
    graph, other = (hm.Graph.from_points(x, 5, **BUILDERS[builder]) for x in (points, points[order]))
    one, two = hm.compare(graph, labels), hm.compare(other, labels[order])
    assert one.model.max_scale_ == two.model.max_scale_
    np.testing.assert_array_equal(one.embedding, two.embedding)
    np.testing.assert_array_equal(one.distances, two.distances)


@pytest.fixture(scope="module")
def cells():
    """Counts of 1,200 cells, sorted by sample and thus by group, and the same in another order."""
    rng = np.random.default_rng(1)
    points = rng.poisson([0.5, 1.0, 2.0], size=(1200, 3)).astype(float)
    frame = pd.DataFrame(points, columns=["a", "b", "c"])
    frame["sample"] = np.repeat([f"s{i:02d}" for i in range(12)], 100)
    frame["group"] = np.repeat(["case", "control"], 600)
    frame["type"] = np.where(points[:, 2] > 2, "T", "B")
    order = rng.permutation(1200)
    return frame, frame.iloc[order].reset_index(drop=True), order


def points_of(frame):
    return frame[["a", "b", "c"]].to_numpy()


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("tied", [True, False])
def test_no_way_to_diffuse_depends_on_it(cells, options, tied):
    frame, _, order = cells
    points, labels = points_of(frame), frame["sample"].to_numpy()
    if not tied:
        points, labels, order = np.random.default_rng(0).normal(size=(300, 3)), labels[::4], np.argsort(order[:300])
    model = hm.DiffusionEMD(**options)
    one = hm.compare(points, labels, n_neighbors=10, model=model)
    two = hm.compare(points[order], labels[order], n_neighbors=10, model=model)
    np.testing.assert_array_equal(one.embedding, two.embedding)
    np.testing.assert_array_equal(one.distances, two.distances)


def test_weights_of_equal_points_are_added_in_any_order(cells):
    frame, _, order = cells
    points, weights = points_of(frame), np.random.default_rng(3).dirichlet(np.ones(1200), 4)
    one = hm.compare(points, hm.measures_from_weights(weights))
    two = hm.compare(points[order], hm.measures_from_weights(weights[:, order]))
    np.testing.assert_array_equal(one.distances, two.distances)
    sparse = hm.compare(points[order], hm.measures_from_weights(sp.csr_array(weights[:, order])))
    np.testing.assert_array_equal(one.distances, sparse.distances)


def test_a_given_affinity_in_another_order(cells):
    """The same scales and the same densities; only sums over points round in another order."""
    rng = np.random.default_rng(0)
    points, labels, order = rng.normal(size=(200, 3)), rng.integers(0, 5, 200), rng.permutation(200)
    affinity = hm.Graph.from_points(points, 10).affinity
    for options in MODELS.values():
        model = hm.DiffusionEMD(**options)
        one = hm.compare(hm.Graph.from_affinity(affinity), labels, model=model)
        two = hm.compare(hm.Graph.from_affinity(affinity[order][:, order]), labels[order], model=model)
        assert one.model.max_scale_ == two.model.max_scale_
        np.testing.assert_allclose(one.distances, two.distances, rtol=1e-6, atol=1e-9)
        if "compress" not in options:
            blocks = one.embedding.reshape(5, -1, 200)[:, :, order], two.embedding.reshape(5, -1, 200)
            np.testing.assert_array_equal(*blocks)


@pytest.mark.parametrize("tied", [True, False])
def test_landmarks(cells, tied):
    frame, shuffled, order = cells
    points = points_of(frame) if tied else np.random.default_rng(0).normal(size=(1200, 3))
    one, two = (hm.Landmarks.from_points(x, 35) for x in (points, points[order]))
    np.testing.assert_array_equal(one.centers, two.centers)
    np.testing.assert_array_equal(one.counts, two.counts)
    assert one.distortion == two.distortion
    one = hm.compare(points, frame["sample"], landmarks=35)
    two = hm.compare(points[order], shuffled["sample"], landmarks=35)
    np.testing.assert_array_equal(one.distances, two.distances)
    assert one.landmark_agreement == two.landmark_agreement


def write(frame, path):
    """Write cells in the format that the name of the file says."""
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        obs = frame[["sample", "group", "type"]].set_axis([f"cell{i}" for i in range(len(frame))])
        values = sp.csr_array(points_of(frame)) if "sparse" in path.stem else points_of(frame)
        adata = anndata.AnnData(values, obs=obs, var=pd.DataFrame(index=["a", "b", "c"]))
        adata.write_h5ad(path) if path.suffix == ".h5ad" else adata.write_zarr(path)
    return path


FORMATS = ["cells.csv", "cells.parquet", "cells.h5ad", "sparse.h5ad"]


@pytest.mark.parametrize("name", FORMATS)
def test_cohorts_in_pieces(cells, tmp_path, name):
    found = []
    for frame, folder in zip(cells[:2], ("sorted", "shuffled"), strict=True):
        (tmp_path / folder).mkdir()
        options = {"representation": ["a", "b", "c"], "sample_key": "sample", "standardize": True}
        cohort = read_cohort(write(frame, tmp_path / folder / name), **options)
        found.append(compare_cohort(cohort, landmarks=33, n_neighbors=10))
    one, two = found
    np.testing.assert_array_equal(one.landmarks.centers, two.landmarks.centers)
    np.testing.assert_array_equal(one.distances, two.distances)
    assert one.landmark_agreement == two.landmark_agreement


def test_draws_from_many_cells(monkeypatch, tmp_path, cells):
    """With fewer cells looked at than there are."""
    monkeypatch.setattr("heatmover.study.scale.landmarks.PER_LANDMARK", 10)
    monkeypatch.setattr("heatmover.study.scale.landmarks.AGREEMENT_POINTS", 300)
    found = []
    for frame, name in zip(cells[:2], ("a.parquet", "b.parquet"), strict=True):
        cohort = read_cohort(write(frame, tmp_path / name), sample_key="sample", representation=["a", "b", "c"])
        found.append(compare_cohort(cohort, landmarks=33, n_neighbors=10))
    assert found[0].landmarks.how["n_looked_at"] < 500
    np.testing.assert_array_equal(found[0].distances, found[1].distances)
    assert found[0].landmark_agreement == found[1].landmark_agreement


def test_standardized_points_and_principal_components(cells, tmp_path):
    rng = np.random.default_rng(5)
    points = rng.normal(size=(1200, 6)) * [1, 10, 0.1, 1, 1, 1] + [0, 1000, 5, 0, 0, 0]
    points[600:] = points[:600]
    _, _, order = cells
    found = {}
    for name, rows in (("one", np.arange(1200)), ("two", order)):
        obs = pd.DataFrame({"sample": np.repeat(["s", "t"], 600)[rows]}, index=[f"c{i}" for i in range(1200)])
        adata = anndata.AnnData(points[rows], obs=obs)
        for n_components in (None, 3):
            cohort = read_cohort(
                adata, sample_key="sample", representation="X", standardize=True, n_components=n_components
            )
            found[name, n_components] = cohort.points()
    np.testing.assert_array_equal(found["one", None][order], found["two", None])
    np.testing.assert_allclose(found["one", 3][order], found["two", 3], atol=1e-12)
    # Equal cells stay equal, wherever they are.
    np.testing.assert_array_equal(found["one", 3][:600], found["one", 3][600:])


def test_anndata(cells):
    results = []
    for frame in cells[:2]:
        obs = frame[["sample", "group"]].set_axis([f"cell{i}" for i in range(1200)])
        adata = anndata.AnnData(points_of(frame), obs=obs)
        hm.tl.sample_distances(adata, "sample", use_rep="X", standardize=True)
        results.append(adata.uns["heatmover"])
    np.testing.assert_array_equal(results[0]["distances"], results[1]["distances"])
    np.testing.assert_array_equal(results[0]["embedding"], results[1]["embedding"])


def test_the_command_line(cells, tmp_path):
    written = []
    for frame, name in zip(cells[:2], ("one", "two"), strict=True):
        path = write(frame, tmp_path / f"{name}.csv")
        arguments = ["compare", path, "-s", "sample", "-c", "group", "--cells", "type", "-o", tmp_path / name]
        result = CliRunner().invoke(app, [*map(str, arguments), "--permutations", "99", "-q"])
        assert result.exit_code == 0, result.output
        written.append({n: (tmp_path / name / n).read_bytes() for n in ("distances.csv", "cell-types.csv")})
    assert written[0] == written[1]


def test_explanations_sorted_back(cells):
    frame, shuffled, order = cells
    found = []
    for cohort in (frame, shuffled):
        measures = hm.measures_from_labels(cohort["sample"])
        model = hm.DiffusionEMD(hm.Graph.from_points(points_of(cohort), 10)).fit(measures)
        groups = ["case"] * 6 + ["control"] * 6
        pair = hm.explain(model, "s00", "s07", measures=measures)
        contrast = hm.explain_groups(model, measures, groups, annotation=cohort["type"], n_permutations=99)
        found.append((pair, contrast, pair.by(cohort["type"])))
    (pair, contrast, parts), (pair_2, contrast_2, parts_2) = found
    assert pair.distance == pair_2.distance
    for name in ("witness", "contributions", "local"):
        np.testing.assert_array_equal(getattr(pair, name)[order], getattr(pair_2, name))
    assert pair.contributions.sum() == pytest.approx(pair.distance)
    assert pair.local.sum() == pytest.approx(pair.distance, rel=1e-5)
    for name in ("scores", "p_values", "q_values"):
        np.testing.assert_array_equal(getattr(contrast, name)[order], getattr(contrast_2, name))
    np.testing.assert_array_equal(parts.contributions, parts_2.contributions)
    for name in ("abundance", "state"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(parts_2, name))
    for name in ("abundance", "state", "abundance_p", "state_p"):
        np.testing.assert_array_equal(getattr(contrast.types, name), getattr(contrast_2.types, name))


def test_barycenters_sorted_back(cells):
    frame, shuffled, order = cells
    found = []
    for cohort in (frame, shuffled):
        measures = hm.measures_from_labels(cohort["sample"])
        model = hm.DiffusionEMD(hm.Graph.from_points(points_of(cohort), 10)).fit(measures)
        found.append(hm.barycenter(model, measures, tol=0.1))
    np.testing.assert_array_equal(found[0].masses[order], found[1].masses)
    assert found[0].objective == found[1].objective
    assert found[0].masses.sum() == pytest.approx(1)


def test_the_loss(cells):
    torch = pytest.importorskip("torch")
    frame, _, order = cells
    points, values = points_of(frame)[:300], []
    order = np.random.default_rng(0).permutation(300)
    masses = np.random.default_rng(2).dirichlet(np.ones(300), 2)
    for rows in (np.arange(300), order):
        loss = hm.differentiable.DiffusionEMDLoss(hm.Graph.from_points(points[rows], 10), points=points[rows])
        first, second = torch.tensor(masses[:, rows], requires_grad=True)
        moved = torch.tensor(points[rows], requires_grad=True)
        still, at = loss(first, second), loss(first, second, points=moved)
        gradient = torch.autograd.grad(at, [first, moved])
        entered = loss.enter(torch.tensor(points[:5] + 0.01))
        values.append((float(still), float(at), *(g.numpy() for g in gradient), entered.numpy()))
    one, two = values
    np.testing.assert_allclose(one[:2], two[:2], rtol=1e-12)
    for a, b in zip(one[2:], two[2:], strict=True):
        np.testing.assert_allclose(a[order], b, atol=1e-10)


def test_trees(cells):
    frame, shuffled, _ = cells
    for method in (quad_tree, cluster_tree):
        one, two = (method(points_of(x), hm.measures_from_labels(x["sample"]), n_trees=3) for x in (frame, shuffled))
        np.testing.assert_allclose(one, two, rtol=1e-12)
    graphs = [hm.Graph.from_points(points_of(x), 10) for x in (frame, shuffled)]
    measures = [hm.measures_from_labels(x["sample"]) for x in (frame, shuffled)]
    chosen = [m.masses[:3] for m in measures]
    np.testing.assert_allclose(exact_emd(graphs[0], chosen[0]), exact_emd(graphs[1], chosen[1]), rtol=1e-9)


@pytest.mark.parametrize("kind", ["counts", "continuous"])
def test_identical_samples_are_at_distance_zero(kind):
    points = np.tile(tied_points(kind, 100, 3, np.random.default_rng(0)), (6, 1))
    labels = np.repeat(np.arange(6), 100)
    order = np.random.default_rng(1).permutation(600)
    for landmarks in (None, 35):
        assert not hm.compare(points[order], labels[order], landmarks=landmarks).distances.any()
    assert not hm.compare(np.zeros((60, 2)), np.repeat(np.arange(6), 10)).distances.any()


@pytest.mark.parametrize("copies", [2, 3, 7])
@pytest.mark.parametrize("landmarks", [None, 35])
def test_copies_of_every_cell_change_no_distance(cells, copies, landmarks):
    frame, _, _ = cells
    points, labels = points_of(frame) + np.arange(1200)[:, None] % 3 * 0.1, frame["sample"].to_numpy()
    once = hm.compare(points, labels, landmarks=landmarks)
    often = hm.compare(np.repeat(points, copies, axis=0), np.tile(labels[:, None], copies).ravel(), landmarks=landmarks)
    assert once.model.max_scale_ == often.model.max_scale_
    # Masses of 1 of 100 and of 3 of 300 differ in their last bits, and densities have a rounding of 6e-8 of all mass.
    np.testing.assert_allclose(often.distances, once.distances, rtol=1e-6, atol=6e-8)
