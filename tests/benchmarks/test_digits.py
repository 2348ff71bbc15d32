"""What the exhibits about MNIST rest on: images judged are never those tuned on, and neighbors are the nearest."""

import numpy as np
import pytest

from heatmover.errors import InvalidInputError


@pytest.fixture
def digits(script):
    return script("digits")


def test_no_image_is_tuned_on_and_judged(digits):
    parts = digits.parts(70_000, seed=0)
    assert (len(parts.tuning), len(parts.judged)) == (10_000, 60_000)
    np.testing.assert_array_equal(np.sort(np.concatenate([parts.tuning, parts.judged])), np.arange(70_000))
    np.testing.assert_array_equal(digits.parts(70_000, seed=0).tuning, parts.tuning)
    assert not np.array_equal(digits.parts(70_000, seed=1).tuning, parts.tuning)


def test_few_images_are_refused(digits):
    with pytest.raises(InvalidInputError, match="at least 1,000 images, found 999"):
        digits.parts(999, seed=0)


def test_splits_are_even_and_differ(digits):
    splits = [digits.halves(101, 0, split) for split in range(3)]
    for train, test in splits:
        assert abs(len(train) - len(test)) == 1
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(101))
    assert not np.array_equal(splits[0][0], splits[1][0])


def test_pixels_sum_to_one_or_to_one_on_average(digits):
    images = np.random.default_rng(0).integers(0, 255, size=(7, 4, 5), dtype=np.uint8)
    np.testing.assert_allclose(digits.pixels(images, sum_one=True).sum(axis=1), 1, rtol=1e-6)
    raw = digits.pixels(images, sum_one=False)
    np.testing.assert_allclose(raw.sum(axis=1).mean(), 1, rtol=1e-6)
    np.testing.assert_allclose(raw / raw[0, 0], images.reshape(7, -1) / images[0, 0, 0], rtol=1e-5)


def test_nearest_in_euclidean_distance(digits):
    rng = np.random.default_rng(0)
    rows, others = rng.random((1203, 6)), rng.random((40, 6))
    distances = np.linalg.norm(rows[:, None] - others, axis=2)
    np.testing.assert_allclose(digits.euclidean(rows, others), distances, atol=1e-7)
    np.testing.assert_array_equal(digits.nearest_euclidean(rows, others), distances.argmin(axis=1))


def test_reranking_takes_the_nearest_of_those_found_and_no_other(digits):
    rng = np.random.default_rng(0)
    rows, others = rng.random((1203, 6)), rng.random((40, 6))
    found = np.array([rng.choice(40, 5, replace=False) for _ in rows])
    distances = np.linalg.norm(rows[:, None] - others, axis=2)
    expected = [candidates[np.argmin(row[candidates])] for row, candidates in zip(distances, found, strict=True)]
    np.testing.assert_array_equal(digits.reranked(rows, others, found), expected)
    assert (np.array(expected) != distances.argmin(axis=1)).any()


def test_features_left_out_are_negligible(digits):
    embedding = np.array([[0.0, 5.0, 1.0, 0.0], [1.0, 5.0, 1.0004, 0.002]])
    assert digits.reached(embedding, typical=1.0).tolist() == [True, False, False, True]


def test_exact_distances_between_pixels(digits):
    costs = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
    masses = np.array([[1, 0, 0, 0], [0, 0, 0, 1], [0.5, 0.5, 0, 0]])
    expected = [[0, 3, 0.5], [3, 0, 2.5], [0.5, 2.5, 0]]
    pytest.importorskip("ot")
    np.testing.assert_allclose(digits.exact_between_pixels(masses, costs), expected, atol=1e-12)


def test_middles_of_pixels_on_the_sphere(digits):
    sphere, costs = digits.sphere_of_pixels(6, 6)
    assert sphere.masses.shape == (36, len(sphere.points))
    np.testing.assert_allclose(costs, costs.T, atol=1e-12)
    # The corners of the image lie on the equator, so that pixels in opposite corners are nearly half a turn apart.
    assert costs.argmax() // 36 in {0, 5, 30, 35}
    assert 0.75 * np.pi < costs.max() < np.pi
