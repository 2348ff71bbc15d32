"""Local means: as a plain computation has them; they show what noise hides, whatever the number of cells."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from heatmover.atlas import coverage
from heatmover.atlas import coverage as means
from heatmover.atlas.coverage import CellDraw, LocalMeans, hold_out, hold_out_means, local_means, sizes_of, thinned
from heatmover.errors import InvalidInputError


def plain_means(cells: np.ndarray) -> np.ndarray:
    """The mean of each cell and its five nearest, one after the other."""
    return np.array([cells[np.argsort(np.linalg.norm(cells - cell, axis=1))[:6]].mean(axis=0) for cell in cells])


def test_a_mean_is_that_of_a_cell_and_its_five_nearest():
    cells = np.random.default_rng(0).normal(size=(40, 3))
    found, near = local_means(cells)
    np.testing.assert_allclose(found, plain_means(cells))
    assert near.shape == (40, 6)
    assert all(i in row for i, row in enumerate(near))
    # Those of the same cells are one place, whatever the cell in the middle.
    assert len(np.unique(found, axis=0)) == len(np.unique(near, axis=0)) < 40


@pytest.mark.parametrize("value", [0.1, 1e300, 1 / 3])
def test_the_mean_of_copies_is_their_place_to_the_bit(value):
    cells = np.full((15, 2), value)
    np.testing.assert_array_equal(local_means(cells)[0], cells)


def test_sizes_fall_from_the_median_to_the_fewest():
    sizes = sizes_of(np.array([3, 40, 80, 200, 1000]))
    assert (sizes[0], sizes[-1]) == (14, 80)
    assert np.all(sizes[1:] / sizes[:-1] < 1.5)
    assert sizes_of(np.array([8, 9, 500])).size == 0
    assert sizes_of(np.array([12, 12])).tolist() == [12]
    assert sizes_of(np.array([10**6] * 3))[-1] == means.MOST_CELLS


def test_thinning_does_not_depend_on_the_order_of_cells():
    rng = np.random.default_rng(1)
    cells = rng.normal(size=(50, 2))
    np.testing.assert_array_equal(thinned(cells), thinned(cells[rng.permutation(50)]))
    # A fair draw: the first cells are no nearer to the start of the rows than others.
    draws = [thinned(np.c_[np.arange(100.0), np.full(100, seed)])[:20, 0].mean() for seed in range(50)]
    assert abs(np.mean(draws) - 49.5) < 4 * 29 / np.sqrt(20 * 50)


def reference(rng: np.random.Generator, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(sum(sizes), 3)), np.repeat(np.arange(len(sizes)), sizes)


def test_what_is_held_out_equals_a_plain_computation():
    cells, own = reference(np.random.default_rng(2), [30, 25, 30, 14, 5])
    found = hold_out_means(cells, own, 5, 1)
    assert found is not None
    assert found.sizes.tolist() == [12, 18, 25]
    assert found.n_means.tolist() == [25, 25, 25, 12, 0]
    made = {
        (j, n): plain_means(thinned(cells[own == j])[:n])
        for j in range(4)
        for n in (12, 18, 25)
        if n <= [30, 25, 30, 14][j]
    }
    kept = np.concatenate([made[j, n] for j, n in enumerate((25, 25, 25, 12))])
    of_kept = np.repeat(np.arange(4), (25, 25, 25, 12))
    np.testing.assert_allclose(found.cells, kept)
    distances = np.where(of_kept[:, None] == of_kept, np.inf, cdist(kept, kept)).min(axis=1)
    # Equal means are one node. A graph joins two of them if either is among the other's 30 nearest.
    nodes, node = np.unique(found.cells, axis=0, return_inverse=True)
    near = cdist(nodes, nodes).argsort(axis=1).argsort(axis=1) <= coverage.AROUND
    around = (near | near.T)[np.ix_(node, node)]
    np.testing.assert_allclose(found.widths, [distances[row].mean() for row in around])
    scores = {}
    for (j, n), points in made.items():
        apart = np.where(of_kept == j, np.inf, cdist(points, kept))
        usual = [distances[around[i] & (of_kept != j)].mean() for i in apart.argmin(axis=1)]
        scores[j, n] = apart.min(axis=1) / usual
    starts = [0, *found.ends]
    for size, start, end in zip((12, 18, 25), starts, found.ends, strict=False):
        known = np.concatenate([one for (_, n), one in scores.items() if n == size])
        np.testing.assert_allclose(found.scores[start:end], np.sort(known))
    for j, n in enumerate((25, 25, 25, 12)):
        others = np.concatenate([one for (i, m), one in scores.items() if m == n and i != j])
        p = np.array([(1 + np.count_nonzero(others >= score)) / (1 + others.size) for score in scores[j, n]])
        np.testing.assert_allclose(found.evidence[j], np.maximum(np.log(0.05 / p), 0).mean())
    assert found.evidence[4] == 0


def test_new_samples_are_ranked_among_reference_samples_of_their_size():
    rng = np.random.default_rng(3)
    cells, own = reference(rng, [30, 30, 30, 30])
    found = hold_out_means(cells, own, 4, 1)
    assert found is not None
    new = [rng.normal(size=(n, 3)) + 0.5 for n in (11, 20, 90)]
    counts, evidence = found.judge(new, 1)
    assert found.sizes.tolist() == [15, 21, 30]
    assert counts.tolist() == [0, 15, 30]
    assert evidence[0] == 0
    for i, (start, end) in ((1, (0, found.ends[0])), (2, (found.ends[1], found.ends[2]))):
        points = plain_means(thinned(new[i])[: counts[i]])
        apart = cdist(points, found.cells)
        scores = apart.min(axis=1) / found.widths[apart.argmin(axis=1)]
        p = [(1 + np.count_nonzero(found.scores[start:end] >= score)) / (1 + end - start) for score in scores]
        np.testing.assert_allclose(evidence[i], np.maximum(np.log(0.05 / np.array(p)), 0).mean())


def test_means_that_share_cells_vary_together():
    """The variance that is told is that of samples drawn again and again, which independent means would not have."""
    rng = np.random.default_rng(4)
    cells, own = reference(rng, [60] * 60)
    found = hold_out_means(cells, own, 60, 1)
    assert found is not None
    told, seen = found.spread / 60, found.evidence.var(ddof=1)
    independent = coverage.LEAST_SPREAD / 60
    assert seen > 1.5 * independent
    assert 0.6 < told / seen < 1.6


def crowded(rng: np.random.Generator, n_samples: int, n_cells: int, strangers: int = 0) -> np.ndarray:
    """Wide populations in 10 dimensions, and strangers in a narrow one among them: one by one they are not strange."""
    centers = np.zeros((3, 10))
    centers[1, 0], centers[2, 1] = 9, 3.5
    kind = rng.integers(0, 2, size=(n_samples, n_cells))
    kind[:, :strangers] = 2
    return centers[kind] + np.array([1, 1, 0.4])[kind][..., None] * rng.normal(size=(n_samples, n_cells, 10))


def verdict_of(support: coverage.Support, cells: np.ndarray) -> coverage.Coverage:
    n_samples, n_cells, n_dimensions = cells.shape
    points, codes = cells.reshape(-1, n_dimensions), np.repeat(np.arange(n_samples), n_cells)
    draw = support.draw(n_samples)
    assert draw is not None
    draw.add(points, codes)
    return support.verdict(support.judge(points), codes, n_samples, draw)


def support_of(cells: np.ndarray) -> coverage.Support:
    n_samples, n_cells, n_dimensions = cells.shape
    codes = np.repeat(np.arange(n_samples), n_cells)
    draw = CellDraw.for_support(np.bincount(codes), int(np.random.default_rng(0).integers(2**62)))
    draw.add(cells.reshape(-1, n_dimensions), codes)
    found = hold_out(*draw.cells(), n_samples)
    assert found is not None
    return found


def test_a_population_that_noise_hides_is_found():
    rng = np.random.default_rng(5)
    support = support_of(crowded(rng, 25, 80))
    like, unlike = verdict_of(support, crowded(rng, 40, 80)), verdict_of(support, crowded(rng, 40, 80, strangers=8))
    assert np.mean([not covered for covered in like.covered]) <= 0.05
    assert np.mean([not covered for covered in unlike.covered]) >= 0.9
    # Cell by cell they pass.
    n_cells, none = np.full(40, 80), np.zeros(40, dtype=np.int64)
    assert np.mean(support.chances(n_cells, unlike.evidence, none, none) <= coverage.LEVEL) <= 0.05


@pytest.mark.parametrize("n_cells", [4, 14, 40, 400])
def test_samples_of_any_size_are_let_pass(n_cells):
    """As strange as the reference's own, whether they have fewer cells than these or more."""
    rng = np.random.default_rng(6)
    support = support_of(crowded(rng, 25, 80))
    found = verdict_of(support, crowded(rng, 60, n_cells))
    assert found.covered.count(False) <= 6  # of 60; the level is 3
    assert (found.means_evidence.mean() > 0) == (n_cells >= 14)
    # 0.05 if all is by chance, in the mean over references.
    assert found.means_evidence.mean() < 0.08


def test_a_record_holds_all_of_it_and_what_does_not_fit_is_refused():
    cells, own = reference(np.random.default_rng(7), [20] * 5)
    found = hold_out_means(cells, own, 5, 1)
    assert found is not None
    record = found.to_record()
    again = LocalMeans.from_record(record, 5, 3)
    for name, array in record.arrays.items():
        np.testing.assert_array_equal(getattr(again, name), array)
    for name, array in (
        ("sizes", found.sizes[::-1].copy()),
        ("scores", found.scores[::-1].copy()),
        ("ends", found.ends + 1),
        ("n_means", np.full(5, 7)),
        ("n_means", np.zeros(5, dtype=np.int64)),
        ("evidence", np.full(5, -1.0)),
    ):
        damaged = found.to_record()
        damaged.arrays[name] = array  # type: ignore[index]
        with pytest.raises(InvalidInputError, match="stored local means"):
            LocalMeans.from_record(damaged, 5, 3)
