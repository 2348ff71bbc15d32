from __future__ import annotations

import numpy as np
import pytest

import heatmover as hm

pytest.importorskip("matplotlib")


def small_roll(script):
    ablation = script("ablation")
    data = hm.datasets.swiss_roll(12, points_per_measure=40, random_state=0)
    graph = hm.Graph.from_points(data.points)
    truth = np.abs(np.subtract.outer(np.arange(12.0), np.arange(12.0)))
    return ablation, ablation.Roll(graph, data.measures(), truth, 6)


def l1(rows):
    return np.abs(rows[:, None] - rows[None]).sum(axis=2)


def test_even_weights_multiply_each_block_by_the_points_of_one_center(script):
    ablation, _ = small_roll(script)
    rows = np.random.default_rng(0).normal(size=(3, 7))
    found = ablation.evenly_weighted(rows, np.array([4, 2, 1]), 12)
    expected = np.hstack([rows[:, :4] * 12 / 4, rows[:, 4:6] * 12 / 2, rows[:, 6:] * 12 / 1])
    np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_the_panel_of_scales_is_the_preset_with_that_number_of_scales(script):
    ablation, roll = small_roll(script)
    found = {setting: score for _, setting, score in ablation.preset_by_n_scales(roll)}
    k = int(found["chosen"].x)
    assert found["every"].x == (k + 1) * roll.graph.n_points
    for n_scales, setting in [(1, 1), (3, 3), (k + 1, k + 1), (None, "every")]:
        rows = hm.DiffusionEMD.from_paper(roll.graph, n_scales=n_scales).fit_transform(roll.measures)
        expected = roll.score(l1(rows), 0)
        assert found[setting].spearman == pytest.approx(expected.spearman, abs=1e-12)
        assert found[setting].precision == pytest.approx(expected.precision, abs=1e-12)
    assert len({round(found[n].spearman, 6) for n in range(1, k + 2)}) > 1


def test_the_panel_of_thresholds_reads_algorithm_1_at_the_centers(script):
    ablation, roll = small_roll(script)
    found = {setting: score for _, setting, score in ablation.preset_by_threshold(roll)}
    counts = []
    for delta in ablation.THRESHOLDS:
        model = hm.DiffusionEMD.from_paper(roll.graph, compress=delta)
        rows = model.fit_transform(roll.measures)
        counts.append(rows.shape[1])
        assert found[delta].x == rows.shape[1] == sum(model.n_regions_)
        assert found[delta].spearman == pytest.approx(roll.score(l1(rows), 0).spearman, abs=1e-12)
    full = hm.DiffusionEMD.from_paper(roll.graph).fit_transform(roll.measures)
    assert found["full"].x == full.shape[1] > counts[0]
    assert counts == sorted(counts, reverse=True)
    assert found["full"].spearman == pytest.approx(roll.score(l1(full), 0).spearman, abs=1e-12)


def test_the_fewest_regions_make_the_floor_of_the_ablation():
    # 256 regions by experiment, more for smaller thresholds; six scales at the minimum have 3,762 columns.
    fewest = pytest.importorskip("heatmover.embedding.preparation").fewest_regions
    assert fewest(1e-6) == round(256 * np.sqrt(6)) == 627
    assert 6 * fewest(1e-6) == 3762


def test_the_preset_as_a_method_is_the_preset(script):
    pytest.importorskip("pywt")
    exhibit = script("exhibit")
    data = hm.datasets.swiss_roll(6, points_per_measure=20, random_state=1)
    graph = hm.Graph.from_points(data.points)
    found = exhibit.method_named("from_paper")(graph, data.measures())
    expected = l1(hm.DiffusionEMD.from_paper(graph).fit_transform(data.measures()))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert not np.allclose(found, exhibit.method_named("diffusion_emd")(graph, data.measures()))


def test_the_rows_of_the_line_are_distances_from_the_middle(script):
    line = script("line")
    models = line.plain(np.linspace(0, 1, 400)[:, None])
    assert models["from_paper"].get_params() == {
        **hm.DiffusionEMD.from_paper().get_params(),
        "graph": models["from_paper"].graph,
    }
    model = models["from_paper"]
    rows = model.fit_transform(np.eye(400))
    np.testing.assert_allclose(
        line.distances_from_the_middle(model, 400), l1(rows[[200]])[0, 0] + np.abs(rows - rows[200]).sum(1)
    )
