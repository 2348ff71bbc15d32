"""Explanations: exact sums, plain oracles, and bad input."""

import dataclasses

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heatmover as hm
from heatmover import pl
from heatmover.attribution import explain, explain_groups
from heatmover.attribution.contrast import _modes, commonest, two_frames
from heatmover.errors import InvalidInputError
from heatmover.statistics import false_discovery
from heatmover.statistics.regression import block_columns, weigh

N_POINTS = 60


@pytest.fixture(scope="module")
def graph():
    points = np.random.default_rng(0).normal(size=(N_POINTS, 2))
    return hm.Graph.from_points(points, n_neighbors=8)


@pytest.fixture(scope="module")
def models(graph):
    rows = np.random.default_rng(1).dirichlet(np.full(N_POINTS, 0.5), 12)
    options = {
        "single": {"dtype": "float32", "method": "chebyshev"},
        "double": {"dtype": "float64", "method": "chebyshev"},
        "exact": {"method": "exact"},
        "compact": {"dtype": "float32", "compress": 0.3, "max_scale": 5},
        "function": {"dtype": "float32", "density": "function", "norm": "increments"},
        "coarsest": {"dtype": "float64", "norm": "coarsest"},
    }
    return {name: hm.DiffusionEMD(graph, **chosen).fit(rows) for name, chosen in options.items()}


MODELS = ["single", "double", "exact", "compact", "function", "coarsest"]
masses = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=N_POINTS, max_size=N_POINTS).filter(
    lambda values: sum(values) > 0.01
)


def distance(model, mu, nu):
    return float(np.abs(np.diff(model.transform(np.stack([mu, nu])).astype(np.float64), axis=0)).sum())


@pytest.mark.parametrize("name", MODELS)
@given(mu=masses, nu=masses)
@settings(max_examples=25, deadline=None)
def test_everything_sums_to_the_distance(models, name, mu, nu):
    mu, nu = np.array(mu) / np.sum(mu), np.array(nu) / np.sum(nu)
    found = explain(models[name], mu, nu)
    assert found.contributions.sum() == pytest.approx(found.distance, rel=1e-6)
    assert found.local.sum() == pytest.approx(found.distance, rel=1e-6)
    assert found.witness @ (mu - nu) == pytest.approx(found.distance, rel=1e-6)
    assert found.by(np.arange(N_POINTS) % 3).contributions.sum() == pytest.approx(found.distance, rel=1e-6)
    np.testing.assert_allclose(found.scale_witnesses.sum(axis=0), found.witness, rtol=0, atol=1e-9)
    assert found.distance == pytest.approx(distance(models[name], mu, nu), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["double", "exact", "coarsest"])
def test_the_witness_is_the_transposed_sign_and_no_other_does_better(models, name):
    model = models[name]
    dense = model.transform(np.eye(N_POINTS)).T
    rng = np.random.default_rng(2)
    mu, nu = rng.dirichlet(np.ones(N_POINTS), 2)
    found = explain(model, mu, nu)
    features = dense @ (mu - nu)
    smallest = np.argsort(np.abs(features))
    left_out = smallest[np.cumsum(np.abs(features)[smallest]) < 1e-5 * np.abs(features).sum()]
    assert left_out.size < 0.05 * features.size
    features[left_out] = 0
    np.testing.assert_allclose(found.witness, dense.T @ np.sign(features), atol=1e-4)
    by_node = (dense @ (mu - nu)).reshape(-1, N_POINTS)
    np.testing.assert_allclose(found.differences, model.graph_.share(by_node), atol=1e-9)
    for _ in range(20):
        other = rng.dirichlet(np.ones(N_POINTS))
        # A subgradient: the distance to any other measure is at least what the witness says.
        assert found.witness @ (other - nu) <= distance(model, other, nu) * (1 + 2e-5)


def test_nearly_equal_measures_are_distinguishable_in_single_precision(models):
    mu, step = np.full(N_POINTS, 1 / N_POINTS), np.zeros(N_POINTS)
    step[3], step[40] = 1e-9, -1e-9
    near, far = explain(models["single"], mu + step, mu), explain(models["single"], mu + 1e6 * step, mu)
    assert near.distance == pytest.approx(1e-6 * far.distance, rel=1e-4)
    np.testing.assert_allclose(near.witness, far.witness, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_equal_measures_have_nothing_to_explain(models, name):
    row = np.random.default_rng(3).dirichlet(np.ones(N_POINTS))
    found = explain(models[name], row, row)
    assert found.distance == 0
    for array in (found.witness, found.scale_witnesses, found.contributions, found.local, found.surplus):
        assert not array.any()
    assert not found.by(np.arange(N_POINTS) % 2).shares.any()
    assert "zero" in str(found)


def test_signs_say_which_measure_is_denser():
    model = hm.DiffusionEMD(hm.Graph.from_grid((40,))).fit()
    found = explain(model, np.eye(40)[10], np.eye(40)[29])
    assert (found.witness[:20] > 0).all()
    assert (found.witness[20:] < 0).all()
    assert (found.surplus[:20] > 0).all()
    assert (found.surplus[20:] < 0).all()
    assert set(np.flatnonzero(found.contributions)) == {10, 29}


@pytest.mark.parametrize("method", ["chebyshev", "spectral"])
def test_a_region_without_mass_gets_no_witness_from_rounding(method):
    model = hm.DiffusionEMD(hm.Graph.from_grid((600,)), max_scale=7, n_scales=6, dtype="float32", method=method).fit()
    found = explain(model, np.eye(600)[10], np.eye(600)[30])
    assert np.abs(found.witness[300:]).max() < 1e-3 * np.abs(found.witness).max()


def test_measures_by_name_index_and_row(models):
    rows = np.random.default_rng(4).dirichlet(np.ones(N_POINTS), 3)
    named = hm.measures_from_weights(rows, names=["anna", "bert", "carla"])
    model = models["double"]
    by_name = explain(model, "anna", "carla", measures=named)
    assert by_name.names == ("anna", "carla")
    assert explain(model, 0, -1, measures=named).distance == by_name.distance
    assert explain(model, rows[0], rows[2:]).distance == pytest.approx(by_name.distance)
    assert explain(model, named.masses[[0]], rows[2]).distance == pytest.approx(by_name.distance)
    assert explain(model, 0, 2, measures=rows).names == ("0", "2")


BAD = {
    "another name": (lambda m, r, n: explain(m, "ana", "bert", measures=n), "did you mean 'anna'"),
    "no measures": (lambda m, r, n: explain(m, "anna", "bert"), "also pass measures="),
    "index": (lambda m, r, n: explain(m, 0, 7, measures=n), "index 7"),
    "name of plain rows": (lambda m, r, n: explain(m, "anna", 1, measures=r), "names require Measures"),
    "length": (lambda m, r, n: explain(m, np.ones(7) / 7, r[0]), "rows of width 7"),
    "two rows": (lambda m, r, n: explain(m, r[:2], r[0]), "first measure to be one row, "),
    "no measure": (lambda m, r, n: explain(m, 2 * r[0], r[1]), "sum to one"),
    "no model": (lambda m, r, n: explain("model", r[0], r[1]), "a fitted DiffusionEMD"),
    "annotation": (lambda m, r, n: explain(m, r[0], r[1]).by(["a"] * 7), "one label for each point"),
    "missing": (lambda m, r, n: explain(m, r[0], r[1]).by([None] + ["a"] * 59), r"1 missing \(first: point 0\)"),
    "of": (lambda m, r, n: explain(m, r[0], r[1]).by(["a"] * 60, of="all"), "of to be one of"),
    "coordinates": (lambda m, r, n: pl.explanation(explain(m, r[0], r[1]), np.ones((60, 1))), r"shape \(60, 2\)"),
    "no explanation": (
        lambda m, r, n: pl.explanation(r, np.ones((60, 2))),
        "the result of hm.explain or hm.explain_groups",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(models, case):
    rows = np.random.default_rng(4).dirichlet(np.ones(N_POINTS), 3)
    call, message = BAD[case]
    with pytest.raises(hm.InvalidInputError, match=message):
        call(models["double"], rows, hm.measures_from_weights(rows, names=["anna", "bert", "carla"]))


def test_a_breakdown_is_sorted_counted_and_printed(models):
    mu, nu = np.random.default_rng(5).dirichlet(np.ones(N_POINTS), 2)
    kinds = np.array(["x", "y", "z"])[np.arange(N_POINTS) % 3]
    found = explain(models["double"], mu, nu)
    for of in ("contributions", "local"):
        parts = found.by(kinds, of=of)
        assert (np.diff(parts.contributions) <= 0).all()
        for name, contribution, count, pair in zip(
            parts.names, parts.contributions, parts.points, parts.masses, strict=True
        ):
            assert contribution == pytest.approx(getattr(found, of)[kinds == name].sum())
            assert count == 20
            np.testing.assert_allclose(pair, [mu[kinds == name].sum(), nu[kinds == name].sum()])
        assert parts.shares.sum() == pytest.approx(1)
        assert list(parts.table().index) == list(parts.names)
        assert str(parts).count("\n") == 3
    assert "7 more" in str(found.by([f"kind {i % 19:02}" for i in range(N_POINTS)]))


def test_tables_and_pictures(models):
    mpl.use("Agg")
    mu, nu = np.random.default_rng(5).dirichlet(np.ones(N_POINTS), 2)
    found = explain(models["double"], mu, nu)
    np.testing.assert_array_equal(found.table()["contributions"], found.contributions)
    places = np.random.default_rng(0).normal(size=(N_POINTS, 2))
    for of in ("witness", "surplus", "contributions"):
        axes = pl.explanation(found, places, of=of)
        drawn = axes.collections[0]
        low, high = drawn.get_clim()
        assert low == -high < 0
        assert sorted(drawn.get_array()) == sorted(getattr(found, of))
    assert pl.explanation(found, places, ax=axes) is axes
    mpl.pyplot.close("all")


def test_explanations_are_read_only(models):
    found = explain(models["double"], np.eye(N_POINTS)[0], np.eye(N_POINTS)[1])
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.distance = 1.0
    with pytest.raises(ValueError, match="read-only"):
        found.witness[0] = 1.0
    assert repr(found).startswith("Explanation(first against second")


# Groups


@pytest.fixture(scope="module")
def cohort():
    data = hm.datasets.cohort(16, cells_per_sample=60, effect=5.0, random_state=1)
    measures = data.measures()
    return data, measures, hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)


def area(scores, positive):
    """Share of pairs of a positive and another in the right order, ties half."""
    wins = (scores[positive][:, None] > scores[~positive]) + 0.5 * (scores[positive][:, None] == scores[~positive])
    return wins.mean()


def test_the_enriched_branch_is_found(cohort):
    data, measures, model = cohort
    branch = data.coordinates[:, 0].astype(int)
    found = explain_groups(model, measures, data.annotations["condition"], group="case", annotation=branch)
    called = found.q_values <= 0.1
    assert area(found.scores, branch == 4) > 0.95
    assert called[branch == 4].mean() > 0.7
    assert (branch[called] == 4).mean() > 0.9
    assert (found.group, found.reference, found.n_samples) == ("case", "control", (8, 8))
    assert found.types.names[int(np.argmin(found.types.abundance_q))] == "4"
    assert found.types.abundance_q[4] < 0.1 < np.delete(found.types.abundance_q, 4).min()
    case = data.annotations["condition"] == "case"
    means = measures.toarray()[case].mean(axis=0), measures.toarray()[~case].mean(axis=0)
    assert found.distance == pytest.approx(distance(model, *means), rel=1e-4)
    assert found.explanation.contributions.sum() == pytest.approx(found.distance)
    assert "case (8 samples)" in str(found)
    assert len(found.table()) == len(branch)
    assert len(found.types.table()) == 5


def test_exchanging_the_groups_changes_the_signs(cohort):
    data, measures, model = cohort
    labels = data.annotations["condition"]
    found = explain_groups(model, measures, labels, group="case", n_permutations=99)
    other = explain_groups(model, measures, labels, reference="case", n_permutations=99)
    assert other.group == "control"
    # Of two equally dense places the mode is the lower one, and so not quite symmetric.
    np.testing.assert_allclose(other.scores, -found.scores, atol=0.02)
    np.testing.assert_allclose(other.log_ratios, -found.log_ratios, atol=0.02)


def test_the_picture_hides_what_may_be_chance(cohort):
    mpl.use("Agg")
    data, measures, model = cohort
    found = explain_groups(model, measures, data.annotations["condition"], n_permutations=99)
    drawn = pl.explanation(found, data.points).collections[0].get_array()
    assert np.count_nonzero(drawn) == (found.q_values <= 0.1).sum()
    mpl.pyplot.close("all")


def brute_force(densities, members, blocks, modes):
    """Studentized differences within blocks in both frames, column by column and permutation by permutation."""
    logs = np.log(densities / densities.mean(axis=0) + 0.1)
    values, variances = np.zeros((2, len(members), logs.shape[1]))
    for k, column in enumerate(logs.T):
        for i, inside in enumerate(members):
            columns = np.column_stack([inside, *(blocks == block for block in set(blocks))]).astype(float)
            inverse = np.linalg.pinv(columns)
            residuals = column - columns @ (inverse @ column)
            leverages = np.diag(columns @ inverse)
            values[i, k] = inverse[0] @ column
            variances[i, k] = (inverse[0] ** 2 * residuals**2 / np.maximum(1 - leverages, 1e-6) ** 2).sum()
    errors = np.sqrt((variances + np.median(variances[0])) / 2)
    share, frame = values / errors, (values - np.asarray(modes)[:, None]) / errors
    p_values = [[np.mean(np.abs(t) >= abs(one) - 1e-9) for one in t[0]] for t in (share, frame)]
    same = share[0] * frame[0] > 0
    scores = np.sign(share[0]) * np.minimum(np.abs(share[0]), np.abs(frame[0]))
    return np.where(same, scores, 0), np.where(same, np.max(p_values, axis=0), 1)


@pytest.mark.parametrize("n_blocks", [1, 2])
def test_two_frames_against_brute_force(n_blocks):
    rng = np.random.default_rng(0)
    densities = rng.dirichlet(np.full(7, 5.0), 10)
    blocks = np.arange(10) % n_blocks
    members = np.array([rng.permutation(np.arange(10) < 4) for _ in range(30)])
    weighed = weigh(members, block_columns(blocks))
    modes = commonest(densities, weighed)
    found = two_frames(densities, np.arange(7), modes, np.ones(7), weighed)
    scores, p_values = brute_force(densities, members, blocks, modes)
    np.testing.assert_allclose(found.scores, scores, atol=1e-9)
    np.testing.assert_allclose(found.p_values, p_values)


def test_a_heavy_column_counts_as_many_columns():
    """Columns with weights give the p-values of repeated columns."""
    rng = np.random.default_rng(0)
    densities, weights = rng.dirichlet(np.full(7, 5.0), 10), np.array([3, 1, 2, 1, 1, 4, 1])
    weighed = weigh(np.array([rng.permutation(np.arange(10) < 4) for _ in range(30)]), np.ones((10, 1)))
    drawn, modes = np.repeat(np.arange(7), weights), rng.normal(0, 0.01, 30)
    found = two_frames(densities, drawn, modes, weights, weighed)
    repeated = two_frames(densities[:, drawn], np.arange(13), modes, np.ones(13), weighed)
    np.testing.assert_allclose(found.p_values[drawn], repeated.p_values)
    q_values = false_discovery(found.p_values, weights)
    np.testing.assert_allclose(q_values[drawn], false_discovery(repeated.p_values))


def test_many_columns_are_tested_in_parts(monkeypatch):
    rng = np.random.default_rng(0)
    densities = rng.dirichlet(np.full(50, 5.0), 10)
    members = np.array([rng.permutation(np.arange(10) < 4) for _ in range(30)])
    given = densities, np.arange(50), rng.normal(0, 0.01, 30), np.ones(50), weigh(members, np.ones((10, 1)))
    whole = two_frames(*given)
    monkeypatch.setattr("heatmover.attribution.contrast.AT_ONCE", 210)
    for a, b in zip(whole, two_frames(*given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_the_mode_stays_with_the_most():
    values = np.concatenate(
        [np.random.default_rng(0).normal(0, 0.1, 600), np.random.default_rng(1).normal(2, 0.1, 400)]
    )
    modes = _modes(np.stack([values, -values, np.zeros(values.size)]))
    assert abs(modes[0]) < 0.06 < np.median(values)
    assert abs(modes[1]) < 0.06
    assert modes[2] == 0
    assert _modes(np.array([[3.0]])) == 3.0


def test_columns_that_never_differ_are_no_discovery():
    members = np.array([[True, True, False, False], [True, False, True, False]])
    given = np.arange(3), np.zeros(2), np.ones(3), weigh(members, np.ones((4, 1)))
    found = two_frames(np.tile([[0.0, 0.4, 0.6]], (4, 1)), *given)
    assert np.isfinite(found.scores).all()
    np.testing.assert_array_equal(found.p_values, 1.0)


def test_identical_samples_are_no_difference(cohort):
    _, measures, model = cohort
    same = measures.masses[[0] * 8]
    found = explain_groups(model, same, ["a", "b"] * 4)
    assert found.distance == 0
    assert not found.scores.any()
    np.testing.assert_array_equal(found.q_values, 1.0)


def test_samples_of_one_unit_are_averaged(cohort):
    data, measures, model = cohort
    few = np.r_[0:4, 8:12]  # so few that all permutations are looked at
    labels = data.annotations["condition"][few]
    alone = explain_groups(model, measures.masses[few], labels)
    twice = np.repeat(np.arange(8), 2)
    repeated = explain_groups(model, measures.masses[few[twice]], labels[twice], blocks=[f"patient {i}" for i in twice])
    assert alone.complete
    assert repeated.n_samples == (4, 4)
    np.testing.assert_allclose(repeated.scores, alone.scores, atol=1e-5)
    np.testing.assert_allclose(repeated.p_values, alone.p_values)


def test_blocks_take_a_difference_between_batches_away(cohort):
    """A batch that enriches a branch is taken for the group's doing, unless samples are compared within batches."""
    data, measures, model = cohort
    batch = data.annotations["condition"]  # what differs here is the batch
    labels = np.array([*"aaaaabab", *"bbbbbaba"])
    ignoring = explain_groups(model, measures, labels)
    within = explain_groups(model, measures, labels, blocks=batch)
    branch = data.coordinates[:, 0] == 4
    assert np.abs(ignoring.scores[branch]).mean() > 2 * np.abs(within.scores[branch]).mean()
    assert not (within.q_values <= 0.1).any()


def test_other_groups_take_part_only_if_no_reference_is_named(cohort):
    _, measures, model = cohort
    labels = ["a"] * 6 + ["b"] * 5 + ["c"] * 5
    assert explain_groups(model, measures, labels, group="a", n_permutations=19).n_samples == (6, 10)
    named = explain_groups(model, measures, labels, group="a", reference="c", n_permutations=19)
    assert (named.n_samples, named.reference) == ((6, 5), "c")
    assert repr(named).startswith("GroupContrast(a against c")


BAD_GROUPS = {
    "one group": ({"groups": ["a"] * 16}, "at least two groups"),
    "which": ({"groups": ["a"] * 6 + ["b"] * 5 + ["c"] * 5}, "the argument group, which names the group"),
    "name": ({"group": "cases"}, "did you mean 'case'"),
    "reference": ({"group": "case", "reference": "case"}, "other than the group"),
    "length": ({"groups": ["a", "b"]}, "one label for each sample"),
    "one sample": ({"groups": ["a"] + ["b"] * 15}, "a group with 1"),
    "missing": ({"groups": [None] + ["b"] * 15}, "1 missing"),
    "annotation": ({"annotation": ["a"] * 5}, "one label for each point"),
    "blocks": ({"blocks": np.repeat([0, 1], 8)}, "at least two blocks in each group"),
}


@pytest.mark.parametrize("case", BAD_GROUPS)
def test_bad_groups_are_named(cohort, case):
    data, measures, model = cohort
    options, message = BAD_GROUPS[case]
    options = {"groups": data.annotations["condition"], **options}
    with pytest.raises(hm.InvalidInputError, match=message):
        explain_groups(model, measures, **options)


def test_one_row_of_a_sparse_array_is_one_measure():
    """Taken out by its number it has one dimension only."""
    measures = hm.measures_from_labels(["a", "b", "a", "b", "c", "c"])
    model = hm.DiffusionEMD(hm.Graph.from_grid((6,)), max_scale=2).fit()
    expected = explain(model, "a", "b", measures=measures).distance
    assert explain(model, measures.masses[0], measures.masses[1]).distance == expected
    assert explain(model, measures.masses[[0]], measures.toarray()[1]).distance == expected
    with pytest.raises(
        InvalidInputError, match=r"first measure to be one row, \(6,\) or \(1, 6\), found shape \(3, 6\); pass one row"
    ):
        explain(model, measures.masses, measures.masses[0])


# Covariates, numbers, false discoveries


def drifting(rng, level, n_cells=300):
    """Samples on a line of 24 places, whose last places have more cells at a higher level, and their graph's model."""
    places = np.arange(24)
    rates = np.exp(0.2 * rng.normal(size=(len(level), 24)) + np.outer(level, places >= 20))
    counts = np.array([rng.multinomial(n_cells, row / row.sum()) for row in rates])
    return counts / n_cells, hm.DiffusionEMD(hm.Graph.from_grid((24,)), max_scale=2).fit()


def test_points_that_rise_with_a_number_are_found():
    rng = np.random.default_rng(0)
    dose = rng.permutation(np.repeat(np.arange(4.0), 6))
    counts, model = drifting(rng, 0.5 * dose)
    found = explain_groups(model, counts, dose, trend="dose")
    called = found.q_values <= 0.1
    assert (found.group, found.reference) == ("higher dose", "lower dose")
    assert called[21:].all()
    assert (found.scores[21:] > 0).all()
    assert not called[:17].any()
    reverse = explain_groups(model, counts, -1_000 * dose, trend="dose")
    np.testing.assert_allclose(reverse.scores, -found.scores, atol=0.05)
    # The change is between the mean of the higher and the mean of the lower values, whatever the unit.
    np.testing.assert_allclose(reverse.log_ratios, -found.log_ratios, atol=0.05)


@pytest.mark.parametrize("held", ["none", "blocks", "adjust"])
def test_a_confounded_batch_is_held_fixed(held):
    """The batch changes the cells, and cases are mostly in one batch; the condition has no effect."""
    any_call = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        batch = np.repeat([0, 1], 10)
        case = np.concatenate([rng.permutation([0] * 8 + [1] * 2), rng.permutation([1] * 8 + [0] * 2)])
        counts, model = drifting(rng, 2.0 * batch)
        how = {"none": {}, "blocks": {"blocks": batch}, "adjust": {"adjust": {"batch": batch.astype(str)}}}[held]
        found = explain_groups(
            model, counts, np.where(case, "case", "control"), n_permutations=199, random_state=seed, **how
        )
        assert found.adjusted == (("batch",) if held == "adjust" else ())
        any_call.append((found.q_values <= 0.1).any())
    # Without a difference, 10% of the cohorts may have a call: 8 of 30 have a probability of 1%.
    assert (sum(any_call) <= 7) == (held != "none")


def test_the_false_discovery_rate_is_over_cells():
    """Two points of equal evidence differ only in their cells: calls are the share of the cells, not of the points."""
    rates = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        case = np.arange(16) % 2
        # Most points have one cell. Half the cells are at three points that do not differ.
        cells = np.r_[np.full(40, 1.0), 20, 20, 20]
        columns = np.exp(0.3 * rng.normal(size=(16, 43)))
        columns[:, :20] *= np.exp(0.8 * case)[:, None]
        members = np.array([case, *(rng.permutation(case) for _ in range(199))], dtype=bool)
        drawn = rng.choice(43, 300, p=cells / cells.sum())
        found = two_frames(columns, drawn, np.zeros(200), cells, weigh(members, np.ones((16, 1))))
        called = false_discovery(found.p_values, cells) <= 0.1
        rates.append(cells[20:][called[20:]].sum() / max(cells[called].sum(), 1))
    assert np.mean(rates) <= 0.1 + 2 * np.std(rates) / np.sqrt(len(rates))


def test_few_samples_call_nothing_and_say_why():
    counts, model = drifting(np.random.default_rng(0), np.repeat([0, 3], 3))
    found = explain_groups(model, counts, list("aaabbb"), group="b")
    assert not (found.q_values <= 0.1).any()
    assert "With 6 samples the smallest possible p-value is 0.1" in str(found)
    assert str(found).endswith("No cell is called.")
