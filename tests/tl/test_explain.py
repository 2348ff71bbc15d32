"""`tl.explain`: scores of cells are those of `explain_groups`, written last, and every bad input is one sentence."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.attribution import explain_groups
from heatmover.errors import InvalidInputError
from heatmover.tl import explain, sample_distances, samples

QUICK = {"n_permutations": 49}
COLUMNS = ["heatmover_score", "heatmover_log_ratio", "heatmover_q_value", "heatmover_witness"]


@pytest.fixture(scope="module")
def data():
    return hm.datasets.cohort(16, cells_per_sample=40, effect=3.0)


@pytest.fixture(scope="module")
def fresh(data):
    """Cells of sixteen samples, not yet compared."""
    names = data.measures().names
    place = np.array([names.index(label) for label in data.labels])
    obs = pd.DataFrame({"sample": pd.Categorical(data.labels)}, index=[f"cell-{i}" for i in range(640)])
    obs["condition"] = pd.Categorical(data.annotations["condition"][place], categories=["control", "case", "unseen"])
    obs["stage"] = (np.arange(16) % 3)[place]
    obs["partly"] = np.where(place == 3, None, obs["condition"].astype(str))
    obs["patient"] = [f"p{i}" for i in place // 2]
    obs["batch"] = [f"b{i}" for i in place % 2]
    obs["branch"] = [f"branch {int(value)}" for value in data.coordinates[:, 0]]
    obs["alone"] = "same"
    # Not in the order of the samples.
    order = np.random.default_rng(0).permutation(640)
    return anndata.AnnData(data.points.astype(np.float32), obs=obs)[order].copy()


@pytest.fixture(scope="module")
def compared(fresh):
    adata = fresh.copy()
    sample_distances(adata, "sample", n_neighbors=15)
    return adata


@pytest.fixture
def adata(compared):
    return compared.copy()


def oracle(adata, groups, **settings):
    """Compare and explain without AnnData, in the order of its cells."""
    result = hm.compare(adata.X, adata.obs["sample"].astype(str).to_numpy(), n_neighbors=15)
    per_sample = adata.obs.groupby("sample", observed=True)[groups].first().loc[list(result.names)]
    return explain_groups(result.model, result.measures, per_sample.astype(str).tolist(), **QUICK, **settings)


def test_scores_are_those_of_explain_groups(adata):
    assert explain(adata, "condition", annotation="branch", **QUICK) is None
    found = oracle(adata, "condition", annotation=adata.obs["branch"].tolist())
    for column, values in zip(
        COLUMNS, (found.scores, found.log_ratios, found.q_values, found.explanation.witness), strict=True
    ):
        np.testing.assert_allclose(adata.obs[column], values, rtol=1e-5, atol=1e-6)
    stored = adata.uns["heatmover"]["explain"]
    assert stored["params"]["group"] == "case"
    assert stored["params"]["reference"] == "control"
    assert stored["distance"] == pytest.approx(found.distance)
    kinds = stored["types"]
    assert kinds["share"].sum() == pytest.approx(1)
    np.testing.assert_allclose(kinds.loc[list(found.types.names), "score"], found.types.scores, rtol=1e-6, atol=1e-9)


def test_the_reference_turns_the_signs(adata):
    explain(adata, "condition", **QUICK)
    explain(adata, "condition", reference="case", key_added="turned", **QUICK)
    np.testing.assert_allclose(adata.obs["turned_witness"], -adata.obs["heatmover_witness"], atol=1e-5)
    assert adata.uns["heatmover"]["turned"]["params"]["group"] == "control"
    assert adata.uns["heatmover"]["explain"]["params"]["group"] == "case"


def test_of_three_groups_one_is_compared_with_one_or_all(adata):
    explain(adata, "stage", group="2", **QUICK)
    assert adata.uns["heatmover"]["explain"]["params"]["reference"] == "all others"
    assert adata.uns["heatmover"]["explain"]["n_samples"].tolist() == [5, 11]
    explain(adata, "stage", group=2, reference=0, **QUICK)
    assert adata.uns["heatmover"]["explain"]["n_samples"].tolist() == [5, 6]


def test_samples_without_a_group_do_not_take_part(adata):
    explain(adata, "partly", **QUICK)
    assert sum(adata.uns["heatmover"]["explain"]["n_samples"]) == 15
    assert np.isfinite(adata.obs[COLUMNS].to_numpy()).all()


@pytest.mark.parametrize(("blocks", "counts"), [("patient", [4, 4]), ("batch", [8, 8])])
def test_blocks_are_units_or_strata(adata, blocks, counts):
    explain(adata, "condition", blocks=blocks, annotation="branch", **QUICK)
    assert adata.uns["heatmover"]["explain"]["n_samples"].tolist() == counts


def test_through_landmarks_cells_have_the_values_of_their_landmark(fresh):
    adata = fresh.copy()
    sample_distances(adata, "sample", n_neighbors=15, landmarks=80)
    explain(adata, "condition", annotation="branch", **QUICK)
    assert adata.obs["heatmover_score"].nunique() <= 80
    shares = pd.crosstab(adata.obs["sample"], adata.obs["branch"], normalize="index")
    case = shares[shares.index.astype(str).str.startswith("case")].mean()
    types = adata.uns["heatmover"]["explain"]["types"]["in_group"].loc[case.index]
    pd.testing.assert_series_equal(types, case, check_names=False, check_index_type=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"standardize": True},
        {"use_rep": ["0", "1", "2"]},
        {"model": hm.DiffusionEMD(max_scale=5, alpha=0.3, norm="coarsest", compress=0.1)},
        {"random_state": 7},
    ],
)
def test_settings_are_taken_from_the_stored_parameters_also_of_a_file(fresh, settings, tmp_path):
    adata = fresh.copy()
    sample_distances(adata, "sample", n_neighbors=15, **settings)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    read = anndata.read_h5ad(tmp_path / "cells.h5ad")
    for one in (adata, read):
        explain(one, "condition", annotation="branch", **QUICK)
    np.testing.assert_array_equal(read.obs[COLUMNS], adata.obs[COLUMNS])
    read.write_h5ad(tmp_path / "again.h5ad")
    again = anndata.read_h5ad(tmp_path / "again.h5ad")
    pd.testing.assert_frame_equal(
        again.uns["heatmover"]["explain"]["types"], adata.uns["heatmover"]["explain"]["types"], check_index_type=False
    )


def test_a_graph_that_was_there_is_taken_again(fresh):
    adata = fresh.copy()
    adata.obsp["near"] = hm.Graph.from_points(adata.X, n_neighbors=15).affinity
    sample_distances(adata, "sample", neighbors_key="near")
    explain(adata, "condition", **QUICK)
    assert set(COLUMNS) <= set(adata.obs)


def test_a_copy_leaves_the_original_and_a_view_becomes_real(adata):
    before = list(adata.obs.columns)
    made = explain(adata, "condition", copy=True, **QUICK)
    assert list(adata.obs.columns) == before
    assert "explain" not in adata.uns["heatmover"]
    assert set(COLUMNS) <= set(made.obs)
    view = adata[:, :]
    explain(view, "condition", **QUICK)
    assert set(COLUMNS) <= set(view.obs)
    assert list(adata.obs.columns) == before


def test_samples_still_read_the_results(adata):
    explain(adata, "condition", annotation="branch", **QUICK)
    assert samples(adata).n_obs == 16


BAD = {
    "unknown column": (
        {"groupby": "conditon"},
        r"the argument groupby to be the name of a column of obs, found 'conditon' \(did you mean 'cond",
    ),
    "varies": ({"groupby": "branch"}, "groupby='branch' to be the same in all cells of a sample, found that it varies"),
    "one group": ({"groupby": "alone"}, "at least two groups of samples in 'alone', found one \\('same'\\)"),
    "group": (
        {"groupby": "condition", "group": "Cases"},
        r"group to be one of the groups in 'condition', .*did you mean 'case'",
    ),
    "reference": ({"groupby": "condition", "reference": "healthy"}, "reference to be one of the groups in 'condition'"),
    "both": ({"groupby": "condition", "group": "case", "reference": "case"}, "a reference other than the group"),
    "which": ({"groupby": "stage"}, "the argument group, which names the group to explain, found 3 groups in 'stage'"),
    "annotation": ({"groupby": "condition", "annotation": "branches"}, r"annotation to be .*did you mean 'branch'"),
    "one kind": ({"groupby": "condition", "annotation": "alone"}, "2 to 1,000 cell types, found 1 in 'alone'"),
    "blocks": ({"groupby": "condition", "blocks": "branch"}, "blocks='branch' to be the same in all cells"),
    "gaps": ({"groupby": "condition", "blocks": "partly"}, "a block in 'partly' for every sample, found none for 1"),
    "sample": ({"groupby": "condition", "sample_key": "batch"}, "sample_key='sample', as in hm.tl.sample_distances"),
    "key": ({"groupby": "condition", "key": "heatmovr"}, "the argument key to name results of hm.tl.sample_distances"),
    "taken": ({"groupby": "condition", "key_added": "distances"}, "key_added to be a new name"),
    "permutations": ({"groupby": "condition", "n_permutations": 0}, "n_permutations"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_nothing_is_written(adata, case):
    arguments, sentence = BAD[case]
    before = list(adata.obs.columns)
    with pytest.raises(InvalidInputError, match=sentence):
        explain(adata, **arguments)
    assert list(adata.obs.columns) == before
    assert "explain" not in adata.uns["heatmover"]


def test_distances_must_be_there_and_of_these_cells(fresh, adata):
    with pytest.raises(InvalidInputError, match="an AnnData with distances between samples, found none in uns"):
        explain(fresh.copy(), "condition")
    with pytest.raises(
        InvalidInputError, match="the cells of all 16 samples whose distances are stored, found cells of 15"
    ):
        explain(adata[adata.obs["sample"] != "case-01"].copy(), "condition")
    with pytest.raises(InvalidInputError, match="other cells in 1 sample"):
        explain(adata[1:].copy(), "condition")
    moved = adata.copy()
    moved.X = np.random.default_rng(0).normal(size=moved.shape).astype(np.float32)
    with pytest.raises(InvalidInputError, match="the cells from which the distances were computed, found other cells"):
        explain(moved, "condition")


def test_distances_that_cannot_be_made_again_are_refused(fresh):
    other = fresh.copy()
    sample_distances(other, "sample", n_neighbors=15, random_state=None)
    with pytest.raises(InvalidInputError, match="distances that can be computed again, found random_state=None"):
        explain(other, "condition")


def test_a_failure_of_the_work_writes_nothing(adata, monkeypatch):
    before = list(adata.obs.columns)

    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr("heatmover.tl._explain.contrast_cells", fail)
    with pytest.raises(MemoryError):
        explain(adata, "condition", annotation="branch", **QUICK)
    assert list(adata.obs.columns) == before
    assert "explain" not in adata.uns["heatmover"]


@pytest.mark.parametrize(
    "settings", [{"landmarks": None}, {"landmarks": 100}, {"landmarks": None, "bias": "corrected"}]
)
def test_cells_that_were_not_drawn_have_no_score(fresh, settings):
    adata = fresh.copy()
    sample_distances(adata, "sample", equal_cells=25, **settings)
    assert adata.uns["heatmover"]["drawn"]["n_cells"] == 25
    assert samples(adata).obs["n_cells"].tolist() == [40] * 16
    explain(adata, "condition", group="case", reference="control", annotation="branch", **QUICK)
    assert np.isfinite(adata.obs["heatmover_score"]).sum() == 16 * 25
    assert adata.uns["heatmover"]["explain"]["types"]["cells"].sum() == 16 * 25
    assert adata.obs.loc[np.isfinite(adata.obs["heatmover_score"]), "sample"].value_counts().tolist() == [25] * 16


def test_units_are_explained_in_units(fresh):
    adata = fresh.copy()
    sample_distances(adata, "sample", units="euclidean", n_bootstrap=10, landmarks=None)
    stored = adata.uns["heatmover"]
    assert stored["units"]["ground"] == "euclidean"
    assert stored["units"]["n_pairs"] == 64
    explain(adata, "condition", group="case", reference="control", annotation="branch", **QUICK)
    packed = stored["explain"] if "explain" in stored else adata.uns["heatmover"]["explain"]
    assert packed["types"]["contribution"].sum() == pytest.approx(packed["distance"])
    embedding = stored["embedding"]
    groups = np.array([str(name).startswith("case") for name in stored["names"]])
    linear = np.abs(embedding[groups].mean(axis=0) - embedding[~groups].mean(axis=0)).sum()
    expected = np.interp(linear, stored["units"]["knots"], stored["units"]["values"])
    assert packed["distance"] == pytest.approx(expected, rel=1e-4)


def test_intervals_follow_the_samples_that_are_left(fresh):
    adata = fresh.copy()
    sample_distances(adata, "sample", n_bootstrap=10)
    whole = adata.uns["heatmover"]["intervals"]
    left = adata[~adata.obs["sample"].isin(list(adata.uns["heatmover"]["names"][:3]))].copy()
    made = samples(left).uns["heatmover"]["intervals"]
    np.testing.assert_array_equal(made["lower"], whole["lower"][3:, 3:])
    np.testing.assert_array_equal(made["upper"], whole["upper"][3:, 3:])


def test_features_are_compared_within_types(adata):
    adata.var_names = [f"gene {i}" for i in range(adata.n_vars)]
    explain(adata, "condition", annotation="branch", features=["gene 1", "gene 0"], **QUICK)
    drivers = adata.uns["heatmover"]["explain"]["drivers"]
    assert len(drivers) == 2 * adata.obs["branch"].nunique()
    assert set(drivers["feature"]) == {"gene 0", "gene 1"}
    cell = (adata.obs["condition"] == "case") & (adata.obs["branch"] == "branch 4")
    row = drivers[(drivers["cell_type"] == "branch 4") & (drivers["feature"] == "gene 1")].iloc[0]
    assert row["in_group"] == pytest.approx(adata[cell.to_numpy(), "gene 1"].X.mean(), abs=0.1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"features": ["gene 1"]}, "Expected annotation= with features="),
        ({"features": "gene 1", "annotation": "branch"}, "the argument features to be a list of variable names"),
        (
            {"features": ["gene x"], "annotation": "branch"},
            "every name in the argument features to be one of var_names of X, found 'gene x'",
        ),
    ],
)
def test_bad_features_are_one_sentence(adata, settings, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        explain(adata, "condition", **settings, **QUICK)


def test_where_nothing_can_be_called_the_reason_is_stored(adata):
    explain(adata, "condition", annotation="branch", n_permutations=9)
    found = adata.uns["heatmover"]["explain"]
    assert found["no_calls"].startswith("With 9 permutations the smallest possible p-value is 0.1, so")
    assert (found["types"][["abundance_q", "state_q"]].to_numpy() == 1).all()
    explain(adata, "condition", annotation="branch", **QUICK)
    assert "no_calls" not in adata.uns["heatmover"]["explain"]


def test_all_genes_of_a_layer_are_compared_by_default(fresh):
    counts = np.random.default_rng(0).poisson(np.linspace(2.0, 20.0, 30), size=(fresh.n_obs, 30))
    genes = sc_like(fresh, counts)
    sample_distances(genes, "sample")
    explain(genes, "condition", annotation="branch", **QUICK)
    found = genes.uns["heatmover"]["explain"]
    assert set(found["drivers"]["feature"]) == set(genes.var_names)
    assert "log-normalized counts of layer 'counts'" in found["drivers_test"]
    explain(genes, "condition", annotation="branch", layer="X", features=["gene 3"], **QUICK)
    found = genes.uns["heatmover"]["explain"]
    assert set(found["drivers"]["feature"]) == {"gene 3"}
    assert "values of X, as stored" in found["drivers_test"]
    whole, reverse = genes.X.mean(), genes.var_names[::-1].tolist()
    explain(genes, "condition", annotation="branch", layer="X", features=reverse, **QUICK)
    drivers = genes.uns["heatmover"]["explain"]["drivers"]
    first = drivers.groupby("feature")["in_reference"].mean().loc["gene 29"]
    assert first == pytest.approx(genes[:, "gene 29"].X.mean(), abs=0.2)
    assert first != pytest.approx(whole, abs=0.5)
    explain(genes, "condition", annotation="branch", layer="none", **QUICK)
    assert "drivers" not in genes.uns["heatmover"]["explain"]
    with pytest.raises(
        InvalidInputError, match=r"layer to be a layer, raw or X, .* found 'cuonts' .did you mean 'counts'"
    ):
        explain(genes, "condition", annotation="branch", layer="cuonts", **QUICK)


def sc_like(adata, counts):
    """Return cells with genes in X and in a layer, whose distances come from obsm."""
    import anndata

    names = [f"gene {i}" for i in range(counts.shape[1])]
    made = anndata.AnnData(np.log1p(counts), obs=adata.obs.copy(), var={"names": names})
    made.var_names = names
    made.layers["counts"] = counts
    made.obsm["X_pca"] = np.asarray(adata.X)
    return made


def test_a_trend_and_covariates_are_those_of_explain_groups(adata):
    explain(adata, "stage", trend=True, adjust=["batch"], annotation="branch", layer="none", **QUICK)
    result = hm.compare(adata.X, adata.obs["sample"].astype(str).to_numpy(), n_neighbors=15)
    columns = adata.obs.groupby("sample", observed=True)[["stage", "batch"]].first().loc[list(result.names)]
    expected = explain_groups(
        result.model, result.measures, columns["stage"].astype(float).tolist(), trend="stage",
        adjust={"batch": columns["batch"].tolist()}, **QUICK,
    )  # fmt: skip
    np.testing.assert_allclose(adata.obs["heatmover_score"], expected.scores, atol=1e-6)
    params = adata.uns["heatmover"]["explain"]["params"]
    assert (params["group"], params["trend"], list(params["adjust"])) == ("higher stage", True, ["batch"])
    assert len(adata.uns["heatmover"]["explain"]["types"]) == adata.obs["branch"].nunique()
    with pytest.raises(InvalidInputError, match="numbers or an ordered category in 'condition' for a trend"):
        explain(adata, "condition", trend=True, **QUICK)
    with pytest.raises(InvalidInputError, match="argument adjust to be a list of columns"):
        explain(adata, "stage", trend=True, adjust="batch", **QUICK)
