from __future__ import annotations

import copy
import pickle
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from heatmover.errors import InvalidInputError, MissingExtraError

PAPER = Path(__file__).resolve().parents[2] / "benchmarks" / "paper"
if not PAPER.exists():
    pytest.skip("the benchmarks are not here", allow_module_level=True)
sys.path.append(str(PAPER))
from mnist import load_mnist, spherical_mnist  # noqa: E402


def one_bright_pixel(height, width):
    """As many images as pixels: each has a single bright one."""
    return np.eye(height * width).reshape(-1, height, width)


def mean_direction(data):
    means = data.masses @ data.points
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def linear_program(a, b, costs):
    """The EMD by its definition: the cheapest plan with the right margins."""
    n, m = costs.shape
    rows, columns = np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))
    equations = {"A_eq": np.vstack([rows, columns]), "b_eq": np.concatenate([a, b])}
    return scipy.optimize.linprog(costs.ravel(), **equations).fun


@pytest.fixture(scope="module")
def pixels():
    return spherical_mnist(one_bright_pixel(28, 28))


def test_mnist_has_the_papers_nodes(pixels):
    assert pixels.points.shape == (25_088, 3)
    assert pixels.masses.shape == (784, 25_088)
    assert np.unique(pixels.masses.indices).size == 4 * 28 * 28


def test_every_pixel_lies_on_four_northern_nodes_in_equal_parts(pixels):
    assert (np.diff(pixels.masses.indptr) == 4).all()
    assert (pixels.masses.data == 0.25).all()
    assert (pixels.points[pixels.masses.indices, 2] > 0).all()


def test_the_four_nodes_are_the_nearest_to_a_place_that_lamberts_projection_gives(pixels):
    # Longitude and latitude written out: the azimuth stays, the distance r from the center becomes 2 asin(r / 2).
    for row, column in [(0, 0), (0, 27), (13, 14), (20, 3), (27, 10)]:
        x, y = (column - 13.5) / 14, (13.5 - row) / 14
        azimuth, angle = np.arctan2(y, x), 2 * np.arcsin(np.hypot(x, y) / 2)
        place = [np.sin(angle) * np.cos(azimuth), np.sin(angle) * np.sin(azimuth), np.cos(angle)]
        nearest = np.argsort(np.linalg.norm(pixels.points - place, axis=1))[:4]
        found = pixels.masses[[28 * row + column]].indices
        np.testing.assert_array_equal(np.sort(found), np.sort(nearest))


def test_the_nodes_are_even(pixels):
    np.testing.assert_allclose(np.linalg.norm(pixels.points, axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(pixels.points.mean(axis=0), 0, atol=1e-4)
    # Every cap of the same size holds the same number of nodes, to a few.
    directions = np.random.default_rng(0).normal(size=(50, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    counts = (directions @ pixels.points.T > 0.9).sum(axis=1)
    np.testing.assert_allclose(counts, 0.05 * 25_088, rtol=0.02)


def test_images_are_not_mirrored():
    directions = mean_direction(spherical_mnist(one_bright_pixel(9, 9))).reshape(9, 9, 3)
    assert directions[4, 8, 0] > 0.5  # right
    assert directions[0, 4, 1] > 0.5  # top
    assert directions[4, 4, 2] > 0.99  # the center is at the pole


def test_corners_lie_near_the_equator_and_pixels_keep_their_aspect():
    directions = mean_direction(spherical_mnist(one_bright_pixel(20, 20), n_nodes=100_000)).reshape(20, 20, 3)
    assert 0 < directions[0, 0, 2] < 0.2
    across = np.linalg.norm(np.diff(directions, axis=1), axis=2)
    down = np.linalg.norm(np.diff(directions, axis=0), axis=2)
    # In the middle, where digits are, pixels are nearly square.
    np.testing.assert_allclose(across[5:15, 5:14], 0.1, rtol=0.15)
    np.testing.assert_allclose(down[5:14, 5:15], 0.1, rtol=0.15)


def test_masses_follow_the_image():
    image = np.random.default_rng(0).integers(0, 255, (1, 6, 6))
    by_pixel = spherical_mnist(one_bright_pixel(6, 6)).masses
    expected = image.reshape(1, -1) / image.sum() @ by_pixel.toarray()
    np.testing.assert_allclose(spherical_mnist(image).masses.toarray(), expected, atol=1e-15)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 1), (8, 8), (5, 12)])
def test_images_of_any_shape(shape):
    data = spherical_mnist(np.ones((2, *shape)))
    assert data.image_shape == shape
    assert len(data.points) == 32 * shape[0] * shape[1]
    np.testing.assert_allclose(data.masses.sum(axis=1), 1, rtol=1e-12)


def test_fewer_nodes_may_be_shared_by_pixels():
    data = spherical_mnist(one_bright_pixel(6, 6), n_nodes=8 * 36)
    assert (np.diff(data.masses.indptr) == 4).all()
    assert np.unique(data.masses.indices).size < 4 * 36
    with pytest.raises(InvalidInputError, match="n_nodes to be a whole number of at least 288, found 287"):
        spherical_mnist(one_bright_pixel(6, 6), n_nodes=287)


@settings(max_examples=50, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.uint8, np.int64, np.float32, np.float64]),
        hnp.array_shapes(min_dims=3, max_dims=3, max_side=5),
        elements=st.integers(0, 100),
    )
)
def test_rows_are_measures_and_scale_does_not_matter(images):
    images[:, 0, 0] += 1
    masses = spherical_mnist(images).masses
    assert masses.has_sorted_indices
    assert (masses.data > 0).all()
    np.testing.assert_allclose(masses.sum(axis=1), 1, rtol=1e-12)
    scaled = spherical_mnist(images.astype(float) * 0.3).masses
    np.testing.assert_allclose(scaled.toarray(), masses.toarray(), atol=1e-14)


def test_geodesic_is_the_angle(pixels):
    a, b = [0, 100, 25_087], [5, 20_000]
    expected = np.arccos(pixels.points[a] @ pixels.points[b].T)
    np.testing.assert_allclose(pixels.geodesic(a, b), expected, atol=1e-7)
    # Not clipped at a right angle: from pole to pole it is a straight line.
    assert pixels.geodesic([0], [25_087])[0, 0] > 3.1
    with pytest.raises(InvalidInputError, match=r"from 0 to 25087 in columns"):
        pixels.geodesic([0], [25_088])


def test_emd_agrees_with_a_linear_program():
    images = np.random.default_rng(0).integers(0, 9, (4, 3, 2))
    data = spherical_mnist(images)
    distances = data.exact_emd()
    for i, j in combinations(range(4), 2):
        a, b = data.masses[[i]], data.masses[[j]]
        expected = linear_program(a.data, b.data, data.geodesic(a.indices, b.indices))
        assert distances[i, j] == distances[j, i] == pytest.approx(expected, abs=1e-9)


def test_emd_of_some_images_in_their_order():
    data = spherical_mnist(np.random.default_rng(0).random((5, 3, 3)))
    everything = data.exact_emd(n_jobs=1)
    # A pair may come the other way round, which with some versions of POT rounds otherwise.
    some = everything[np.ix_([4, 0, 2], [4, 0, 2])]
    np.testing.assert_allclose(data.exact_emd([4, 0, 2], n_jobs=2), some, rtol=1e-14)
    with pytest.raises(InvalidInputError, match=r"from 0 to 4 in rows, found indices from 5 to 5"):
        data.exact_emd([5])
    with pytest.raises(InvalidInputError, match="at least one image, found none"):
        data.exact_emd([])


def test_measures_are_named_by_the_index_of_the_image():
    data = spherical_mnist(np.random.default_rng(0).random((4, 2, 2)))
    assert data.measures().names == ("0", "1", "2", "3")
    some = data.measures([3, 1])
    assert some.names == ("3", "1")
    np.testing.assert_array_equal(some.toarray(), data.masses.toarray()[[3, 1]])


def test_without_pot_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(MissingExtraError, match=r"heatmover\[exact\]"):
        spherical_mnist(np.ones((2, 2, 2))).exact_emd()


@pytest.mark.parametrize("again", [lambda data: data, copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_nothing_can_be_changed(again):
    data = again(spherical_mnist(np.ones((2, 2, 2))))
    masses = data.masses
    some = data.measures([0]).masses
    for array in (data.points, masses.data, masses.indices, masses.indptr, some.data):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]
    with pytest.raises(AttributeError):
        data.points = data.points + 1
    assert repr(data) == "SphericalImages(2 images of 2 x 2 pixels on 128 nodes)"


def test_the_callers_images_stay_as_they_are():
    images = np.arange(12.0).reshape(1, 3, 4)
    spherical_mnist(images)
    np.testing.assert_array_equal(images, np.arange(12.0).reshape(1, 3, 4))
    images[0, 0, 0] = 5


def changed(value):
    images = np.ones((3, 2, 2))
    images[1, 0, 1] = value
    return images


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.ones((28, 28)), r"\(n_images, height, width\), found an array of shape \(28, 28\)"),
        (np.ones((1, 28, 28, 1)), r"found an array of shape \(1, 28, 28, 1\)"),
        (np.ones((0, 28, 28)), r"found an array of shape \(0, 28, 28\)"),
        (np.ones((3, 0, 28)), r"found an array of shape \(3, 0, 28\)"),
        ([[[1, 2], [3]]], "images of one size"),
        (np.full((1, 2, 2), "1"), "images to be real numbers"),
        (np.full((1, 2, 2), 1j), "images to be real numbers"),
        (changed(np.nan), r"images without NaN or infinity, found 1 such value in 1 row \(first: row 1\)"),
        (changed(np.inf), "images without NaN or infinity"),
        (changed(-0.5), "non-negative images, found a smallest value of -0.5"),
        (changed(1) * np.array([1, 0, 0])[:, None, None], r"2 without \(first: image 1, sum 0\); drop empty"),
        (changed(1) * 1e308, r"3 without \(first: image 0, sum inf\)"),
    ],
)
def test_bad_images(images, message):
    with pytest.raises(InvalidInputError, match=message):
        spherical_mnist(images)


def test_an_archive_is_read(tmp_path):
    images, labels = np.arange(32).reshape(2, 4, 4), np.array([3, 7])
    np.savez(tmp_path / "mnist.npz", images=images, labels=labels)
    np.testing.assert_array_equal(load_mnist(tmp_path / "mnist.npz")[0], images)
    np.savez(tmp_path / "other.npz", images=images)
    with pytest.raises(InvalidInputError, match="an archive with images and labels"):
        load_mnist(tmp_path / "other.npz")
