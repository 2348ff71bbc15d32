"""The words of the page: methods, findings and cautions."""

from __future__ import annotations

import numpy as np
import pytest

import heatmover as hm
from heatmover.errors import GraphWarning
from heatmover.report.findings import cautions, methods, references, row
from heatmover.study.study import study_comparison


def study_with(variables, *, n_samples=8, blocks=None, landmarks=None, model=None, cells=30):
    data = hm.datasets.cohort(n_samples, cells_per_sample=cells, effect=4.0)
    comparison = hm.compare(data.points, data.labels, n_neighbors=8, landmarks=landmarks, model=model)
    return study_comparison(comparison, variables, blocks=blocks, n_permutations=99, random_state=7)


def test_methods_tell_what_was_done(plain_study):
    distances, tests = methods(plain_study)
    model = plain_study.comparison.model
    assert distances.startswith("12 samples with 360 cells in total were compared by Diffusion Earth Mover's Distances")
    assert f"heatmover {hm.__version__}" in distances
    assert "its 10 nearest neighbors" in distances
    assert f"bandwidth b = {plain_study.comparison.graph.construction['bandwidth']:.3g}" in distances
    assert f"K = {model.max_scale_}" in distances
    assert model.max_scale_reason_ in distances
    assert "alpha = 0.5" in distances
    assert "PERMANOVA for groups" in tests
    assert "distance correlation for numbers" in tests
    assert "999 permutations" in tests
    assert "P-values of the 3 variables were adjusted" in tests


def test_only_what_is_cited_is_listed(plain_study):
    every = references(methods(plain_study))
    few = references(methods(study_with(None)))
    assert every[0].startswith("Tong A, Huguet G")
    assert len(every) == 6
    assert few == every[:1]


def test_methods_tell_of_landmarks_blocks_and_other_settings():
    model = hm.DiffusionEMD(norm="increments", method="exact", max_scale=5, density="function")
    study = study_with({"condition": list("aabbaabb")}, blocks=list("ppqqrrss"), landmarks=60, model=model)
    distances, tests = methods(study)
    assert "The cells were approximated by 60 k-means centers" in distances
    assert "Every center was connected" in distances
    assert "a dense eigendecomposition" in distances
    assert "changes of the two densities" in distances
    assert "averaging over neighbors" in distances
    assert "The random seed was 7." in distances
    assert "99 permutations" in tests
    assert "samples of the same 'blocks' were permuted together" in tests
    assert "adjusted" not in tests


def test_methods_of_a_given_graph_and_of_a_grid():
    labels = np.repeat([0, 1, 2], 6)
    given = hm.Graph.from_affinity(np.ones((18, 18)))
    for graph, words in (
        (given, "affinities were given by the user"),
        (hm.Graph.from_grid((3, 6)), "a grid of 3 x 6 nodes"),
    ):
        study = study_comparison(hm.compare(graph, labels, model=hm.DiffusionEMD(max_scale=3)))
        assert words in methods(study)[0]


def test_a_row_says_what_the_tests_found(plain_study):
    found = row(plain_study.findings[0])
    finding = plain_study.findings[0]
    assert found["verdict"]["mark"] == "yes"
    assert found["test"] == "PERMANOVA"
    assert found["effect"] == f"R2 = {100 * finding.answer.effect:.2g}%"
    assert found["kind"] == "2 groups"
    number = row(plain_study.findings[1])
    assert number["test"] == "distance correlation"
    assert number["missing"] == 3
    assert number["nearest"] == ""


def test_blocks_are_explained():
    study = study_with({"condition": list("aabbaabb"), "time": list("xyxyxyxy")}, blocks=list("ppqqrrss"))
    assert "Whole blocks were permuted" in row(study.findings[0])["words"]
    assert "only within blocks" in row(study.findings[1])["words"]


def test_small_numbers_are_a_caution(plain_study):
    few = cautions(study_with({"condition": list("aaaabbbb")}))
    assert any("2 of 2 groups have fewer than 5 samples" in sentence for sentence in few)
    assert any("only 69 permutations exist, so the smallest possible p-value is 0.029" in one for one in few)
    assert any(sentence.startswith("With 8 samples, only") for sentence in few)
    assert not any("fewer than 5" in sentence for sentence in cautions(plain_study))


def test_a_broken_graph_is_a_caution():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(60, 2)), rng.normal(size=(60, 2)) + 1000])
    graph = hm.Graph.from_points(points, n_neighbors=5)
    with pytest.warns(GraphWarning, match="found 2 components"):
        comparison = hm.compare(graph, np.tile([0, 1, 2], 40))
    study = study_comparison(comparison)
    assert any("The diagnosis of the graph has" in sentence for sentence in cautions(study))
