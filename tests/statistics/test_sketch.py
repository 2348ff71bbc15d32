"""What probes see, against cells embedded one by one."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import heatmover as hm
from heatmover.statistics.correction import deal, sketch_samples
from heatmover.statistics.noise import check_cells


def test_cells_are_dealt_into_parts_and_halves():
    counts = sp.csr_array(np.array([[3, 0, 2, 1], [0, 1, 0, 0], [40, 0, 0, 10]], dtype=float))
    dealt = deal(counts, np.random.default_rng(0), 32)
    assert dealt.starts.tolist() == [0, 6, 7, 39]
    np.testing.assert_allclose(dealt.parts.sum(axis=1), 1)
    weights = [40 / 50, 10 / 50]
    np.testing.assert_allclose(dealt.parts[[38]].toarray()[0, [0, 3]].sum(), sum(weights))
    np.testing.assert_allclose(dealt.halves.sum(axis=1), 0, atol=1e-12)
    assert not dealt.halves[[1]].toarray().any()  # a single cell has no halves


@pytest.mark.parametrize("n_cells", [2, 3, 10, 11])
def test_halves_vary_as_the_mean_does(n_cells):
    counts = sp.csr_array(np.ones((1, n_cells)))
    halves = deal(counts, np.random.default_rng(1), 2).halves.toarray()[0]
    assert np.sum(halves**2) == pytest.approx(1 / n_cells)
    assert halves.sum() == pytest.approx(0)


def test_halves_have_the_variance_of_the_noise():
    rng = np.random.default_rng(2)
    sizes = np.repeat([20, 80], 15)
    points, labels = rng.normal(size=(sizes.sum(), 2)), np.repeat([f"s{i:02}" for i in range(30)], sizes)
    measures = hm.measures_from_labels(labels)
    model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=12)).fit(measures)
    counts = check_cells(measures, model.node_masses(measures), None)
    sketch = sketch_samples(model.prepared_, counts, deal(counts, rng, 2), rng, n_threads=2)
    assert sketch.sizes.tolist() == sizes.tolist()
    shown, noise = (sketch.halves.astype(float) ** 2).mean(axis=2), sketch.noise()[:-1]
    for few in (slice(0, 15), slice(15, 30)):
        np.testing.assert_allclose(shown[:, few].mean(axis=1), noise[:, few].mean(axis=1), rtol=0.35)
