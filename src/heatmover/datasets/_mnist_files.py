"""MNIST from the places where people have it: a NumPy archive, the original idx files, scikit-learn's download."""

from __future__ import annotations

import gzip
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from heatmover._typing import Int64, IntArray
from heatmover.errors import InvalidInputError

__all__ = ["load_mnist"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

# The order of scikit-learn's download: the 60,000 of the training set come first.
PARTS = ("train", "t10k")
# Unpacked by some tools, the files have a dot where the original names have a hyphen.
SPELLINGS = ("{part}-{kind}-idx{n_axes}-ubyte", "{part}-{kind}.idx{n_axes}-ubyte")
UNSIGNED_BYTE = 0x08


def load_mnist(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Bytes, Int64]:
    """Read MNIST, or images in the same form, from where it was stored; nothing is downloaded or unpickled.

    Parameters
    ----------
    source
        One of

        - an ``.npz`` archive with the arrays ``images``, (n_images, height, width), and ``labels``, (n_images,);
        - a folder with the four original files, ``train-images-idx3-ubyte`` and so on, as they are or with
          ``.gz``; the test set follows the training set;
        - what ``sklearn.datasets.fetch_openml("mnist_784")`` returned: a mapping with ``data``,
          (n_images, n_pixels), of square images, and ``target``, their labels as numbers or strings.

    Returns
    -------
    images : ndarray of shape (n_images, height, width)
        uint8.
    labels : ndarray of shape (n_images,)
        int64.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from heatmover.datasets import load_mnist
    >>> images, labels = load_mnist(load_digits())
    >>> images.shape, labels[:5].tolist()
    ((1797, 8, 8), [0, 1, 2, 3, 4])
    """
    if isinstance(source, Mapping):
        images, labels = _from_bunch(source)
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir():
            images, labels = _from_folder(path)
        elif path.is_file():
            images, labels = _from_archive(path)
        else:
            raise InvalidInputError("an .npz file or a folder of idx files", f"nothing at {str(path)!r}")
    else:
        raise InvalidInputError("a path or what fetch_openml returned", f"{type(source).__name__}")
    return _check_pair(images, labels)


def _from_bunch(bunch: Mapping[str, Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    absent = {"data", "target"} - set(bunch)
    if absent:
        raise InvalidInputError("a mapping with data and target", f"no {' and no '.join(sorted(absent))}")
    rows = np.asarray(bunch["data"])
    side = math.isqrt(rows.shape[1]) if rows.ndim == 2 else 0
    if side == 0 or side**2 != rows.shape[1]:
        raise InvalidInputError(
            "data of square images, (n_images, n_pixels)",
            f"shape {rows.shape}",
            "pass images of another shape straight to spherical_mnist",
        )
    return rows.reshape(len(rows), side, side), np.asarray(bunch["target"])


def _from_archive(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise InvalidInputError("an .npz archive", f"{path.name!r}, which is none or is cut short")
    try:
        with np.load(path, allow_pickle=False) as archive:
            absent = {"images", "labels"} - set(archive)
            if absent:
                raise InvalidInputError(
                    f"the arrays images and labels in {path.name!r}", f"only {', '.join(archive) or 'nothing'}"
                )
            return archive["images"], archive["labels"]
    except InvalidInputError:
        raise
    # NumPy refuses pickled objects with a ValueError.
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInputError(f"plain arrays in {path.name!r}", f"what cannot be read: {error}") from error


def _from_folder(folder: Path) -> tuple[Bytes, Bytes]:
    images = [_read_idx(_find(folder, part, "images", 3), 3) for part in PARTS]
    labels = [_read_idx(_find(folder, part, "labels", 1), 1) for part in PARTS]
    for part, pictures, names in zip(PARTS, images, labels, strict=True):
        if len(pictures) != len(names):
            raise InvalidInputError(f"as many labels as images in {part!r}", f"{len(names)} and {len(pictures)}")
    if images[0].shape[1:] != images[1].shape[1:]:
        raise InvalidInputError(
            "images of one size in both parts", f"{images[0].shape[1:]} in 'train', {images[1].shape[1:]} in 't10k'"
        )
    return np.concatenate(images), np.concatenate(labels)


def _find(folder: Path, part: str, kind: str, n_axes: int) -> Path:
    for spelling in SPELLINGS:
        name = spelling.format(part=part, kind=kind, n_axes=n_axes)
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    wanted = SPELLINGS[0].format(part=part, kind=kind, n_axes=n_axes)
    raise InvalidInputError(f"the file {wanted}, or {wanted}.gz, in the folder", f"neither in {folder.name!r}")


def _read_idx(path: Path, n_axes: int) -> Bytes:
    """Read an array of bytes: two zero bytes, the type, the number of axes, their lengths (big-endian), the values."""
    content = _content(path)
    magic = bytes([0, 0, UNSIGNED_BYTE, n_axes])
    start = len(magic) + 4 * n_axes
    if content[:4] != magic:
        raise InvalidInputError(f"{path.name!r} to begin with {magic.hex()}", content[:4].hex() or "an empty file")
    if len(content) < start:
        raise InvalidInputError(f"a header of {start} bytes in {path.name!r}", f"a file of {len(content)} bytes")
    shape = tuple(np.frombuffer(content, dtype=">u4", count=n_axes, offset=len(magic)).tolist())
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise InvalidInputError(
            f"{expected} bytes in {path.name!r}, for the shape {shape} it states",
            f"{len(content)}",
            "fetch it again",
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(
            f"a whole gzip file in {path.name!r}", f"what cannot be unpacked: {error}", "fetch it again"
        ) from error


def _check_pair(images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> tuple[Bytes, Int64]:
    pixels = _whole_numbers("images", images)
    if pixels.ndim != 3 or pixels.size == 0:
        raise InvalidInputError("images of shape (n_images, height, width)", f"shape {pixels.shape}")
    if pixels.min() < 0 or pixels.max() > 255:
        raise InvalidInputError("pixels in 0..255", f"values in {pixels.min()}..{pixels.max()}")
    names = _whole_numbers("labels", labels)
    if names.shape != pixels.shape[:1]:
        raise InvalidInputError(f"one label per image, ({len(pixels)},)", f"labels of shape {names.shape}")
    return pixels.astype(np.uint8, copy=False), names.astype(np.int64)


def _whole_numbers(name: str, values: npt.NDArray[Any]) -> IntArray:
    """Return values as integers, read from strings if need be, or raise."""
    if values.dtype.kind in "iu":
        return values
    try:
        # fetch_openml gives labels as strings; in a DataFrame their type is object.
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{name} to be whole numbers", str(error)) from error
    # NaN and infinity are no whole numbers either, and no int64.
    whole = (np.abs(numbers) < 2**53) & (numbers == np.rint(numbers))
    if not whole.all():
        raise InvalidInputError(
            f"{name} to be whole numbers",
            f"{int((~whole).sum())} that are not (first: {numbers[~whole][0]:g})",
            "pass other images straight to spherical_mnist",
        )
    return numbers.astype(np.int64)
