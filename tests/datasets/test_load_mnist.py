from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from heatmover.datasets import load_mnist
from heatmover.errors import InvalidInputError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (7, 4, 4), dtype=np.uint8)
IMAGES[0, 0, :2] = 0, 255
LABELS = RNG.integers(0, 10, 7)


def idx(array):
    """The format by its definition: zero, zero, type, number of axes; lengths as big-endian integers; values."""
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def files():
    return {
        "train-images-idx3-ubyte": idx(IMAGES[:5]),
        "train-labels-idx1-ubyte": idx(LABELS[:5]),
        "t10k-images-idx3-ubyte": idx(IMAGES[5:]),
        "t10k-labels-idx1-ubyte": idx(LABELS[5:]),
    }


def write(folder, contents):
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def assert_is_mnist(loaded):
    images, labels = loaded
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_archive(tmp_path, dtype):
    np.savez(tmp_path / "mnist.npz", images=IMAGES.astype(dtype), labels=LABELS, something_else=np.ones(3))
    assert_is_mnist(load_mnist(tmp_path / "mnist.npz"))
    assert_is_mnist(load_mnist(str(tmp_path / "mnist.npz")))


def test_folder(tmp_path):
    assert_is_mnist(load_mnist(write(tmp_path, files())))


def test_folder_of_compressed_files(tmp_path):
    packed = {f"{name}.gz": gzip.compress(content) for name, content in files().items()}
    assert_is_mnist(load_mnist(write(tmp_path, packed)))


def test_folder_with_the_other_spelling(tmp_path):
    assert_is_mnist(load_mnist(write(tmp_path, {name.replace("-idx", ".idx"): c for name, c in files().items()})))


@pytest.mark.parametrize("target", [LABELS, LABELS.astype(str), LABELS.astype(str).astype(object), LABELS * 1.0])
def test_openml_as_arrays(target):
    assert_is_mnist(load_mnist({"data": IMAGES.reshape(7, -1).astype(float), "target": target}))


def test_openml_as_frame():
    pandas = pytest.importorskip("pandas")
    sklearn = pytest.importorskip("sklearn.utils")
    data = pandas.DataFrame(IMAGES.reshape(7, -1).astype(np.int64), columns=[f"pixel{i}" for i in range(16)])
    target = pandas.Series(LABELS.astype(str), dtype="category")
    assert_is_mnist(load_mnist(sklearn.Bunch(data=data, target=target, DESCR="MNIST")))


def test_the_first_images_are_the_training_set(tmp_path):
    images, _ = load_mnist(write(tmp_path, files()))
    np.testing.assert_array_equal(images[5:], IMAGES[5:])


@pytest.mark.parametrize("name", list(files()))
def test_a_missing_file_is_named(tmp_path, name):
    write(tmp_path, files())
    (tmp_path / name).unlink()
    with pytest.raises(InvalidInputError, match=f"the file {name}, or {name}.gz, in the folder"):
        load_mnist(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"", "to begin with 00000803, found an empty file"),
        ("train-images-idx3-ubyte", idx(LABELS), "to begin with 00000803, found 00000801"),
        ("train-labels-idx1-ubyte", b"\x00\x00\x0d\x01" + bytes(8), "to begin with 00000801, found 00000d01"),
        ("t10k-images-idx3-ubyte", idx(IMAGES)[:10], "a header of 16 bytes .* found a file of 10 bytes"),
        (
            "t10k-images-idx3-ubyte",
            idx(IMAGES)[:-1],
            "128 bytes in .*, for the shape .*, found 127; fetch it again",
        ),
        ("t10k-labels-idx1-ubyte", idx(LABELS[5:]) + b"\x00", "10 bytes in .*, found 11"),
        ("t10k-labels-idx1-ubyte", idx(LABELS), "as many labels as images in 't10k', found 7 and 2"),
        ("t10k-images-idx3-ubyte", idx(IMAGES[5:, 1:]), r"images of one size in both parts, found \(4, 4\) in 'train'"),
    ],
)
def test_bad_idx_files(tmp_path, name, content, message):
    write(tmp_path, files() | {name: content})
    with pytest.raises(InvalidInputError, match=message):
        load_mnist(tmp_path)


@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: b"no" + c[2:], lambda c: c[:12] + b"\xff" * 9 + c[21:]])
def test_damaged_gzip_files(tmp_path, damage):
    contents = files()
    name = "train-images-idx3-ubyte"
    contents[f"{name}.gz"] = damage(gzip.compress(contents.pop(name)))
    with pytest.raises(InvalidInputError, match=f"a whole gzip file in '{name}.gz'"):
        load_mnist(write(tmp_path, contents))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": IMAGES}, "images and labels in 'mnist.npz', found only images"),
        ({"images": IMAGES, "labels": LABELS[1:]}, r"one label per image, \(7,\), found labels of shape \(6,\)"),
        ({"images": IMAGES.reshape(7, -1), "labels": LABELS}, r"images of shape .* found shape \(7, 16\)"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, r"images of shape .* found shape \(0, 4, 4\)"),
        ({"images": IMAGES / 255, "labels": LABELS}, "images to be whole numbers, found"),
        ({"images": IMAGES * np.float64("nan"), "labels": LABELS}, r"whole numbers, found 112 .*first: nan"),
        ({"images": IMAGES.astype(int) - 1, "labels": LABELS}, r"pixels in 0..255, found values in -1\.\.254"),
        ({"images": IMAGES.astype(int) + 1, "labels": LABELS}, r"pixels in 0..255"),
        ({"images": IMAGES, "labels": np.array(list("abcdefg"))}, "labels to be whole numbers"),
        ({"images": IMAGES, "labels": LABELS + 0.5}, "labels to be whole numbers, found 7"),
    ],
)
def test_bad_archives(tmp_path, arrays, message):
    np.savez(tmp_path / "mnist.npz", **arrays)
    with pytest.raises(InvalidInputError, match=message):
        load_mnist(tmp_path / "mnist.npz")


def test_pickled_objects_are_refused(tmp_path):
    np.savez(tmp_path / "mnist.npz", images=IMAGES, labels=np.array([{}] * 7, dtype=object))
    with pytest.raises(InvalidInputError, match=r"plain arrays in 'mnist\.npz'"):
        load_mnist(tmp_path / "mnist.npz")


@pytest.mark.parametrize("damage", [lambda c: c[: len(c) // 2], lambda c: b"", lambda c: b"pickle"])
def test_files_that_are_no_archive(tmp_path, damage):
    np.savez(tmp_path / "whole.npz", images=IMAGES, labels=LABELS)
    (tmp_path / "mnist.npz").write_bytes(damage((tmp_path / "whole.npz").read_bytes()))
    with pytest.raises(InvalidInputError, match=r"an \.npz archive, found 'mnist\.npz'"):
        load_mnist(tmp_path / "mnist.npz")


def test_an_archive_with_a_damaged_array(tmp_path):
    np.savez_compressed(tmp_path / "mnist.npz", images=IMAGES, labels=LABELS)
    content = bytearray((tmp_path / "mnist.npz").read_bytes())
    content[80:100] = b"\xff" * 20
    (tmp_path / "mnist.npz").write_bytes(bytes(content))
    with pytest.raises(InvalidInputError, match=r"plain arrays in 'mnist\.npz', found something that cannot be read"):
        load_mnist(tmp_path / "mnist.npz")


@pytest.mark.parametrize(
    ("bunch", "message"),
    [
        ({"data": IMAGES.reshape(7, -1)}, "a mapping with data and target, found no target"),
        ({}, "found no data and no target"),
        ({"data": IMAGES, "target": LABELS}, r"square images, .*, found shape \(7, 4, 4\)"),
        ({"data": np.ones((7, 15)), "target": LABELS}, r"square images, .*, found shape \(7, 15\)"),
        ({"data": np.ones((7, 0)), "target": LABELS}, r"square images, .*, found shape \(7, 0\)"),
        ({"data": np.ones((7, 16)), "target": [None] * 7}, "labels to be whole numbers"),
    ],
)
def test_bad_bunches(bunch, message):
    with pytest.raises(InvalidInputError, match=message):
        load_mnist(bunch)


def test_other_sources(tmp_path):
    with pytest.raises(InvalidInputError, match=r"found nothing at '.*nowhere'"):
        load_mnist(tmp_path / "nowhere")
    with pytest.raises(InvalidInputError, match="what fetch_openml returned, found ndarray"):
        load_mnist(IMAGES)
