"""MNIST: its images as measures on a sphere, as in the paper; `spherical_mnist` takes images of any kind and size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import Float64, Int64
from heatmover._base.validation import as_array, check_finite, check_integer, check_real, check_threads
from heatmover._base.words import counted
from heatmover.datasets.dataset import check_indices
from heatmover.datasets.shapes import great_circle
from heatmover.errors import InvalidInputError
from heatmover.measures import Measures
from heatmover.transport.exact import exact_distances

__all__ = ["SphericalImages", "load_mnist", "spherical_mnist"]

Bytes: TypeAlias = npt.NDArray[np.uint8]


NODES_PER_PIXEL = 4
# The paper's sphere has 25,088 = 32 * 28 * 28 nodes. An image fills 2 / pi of a hemisphere if it is square, so that
# there are ten nodes to each pixel: enough that no two pixels of a nearly square image share one of their four.
SPHERE_NODES_PER_PIXEL = 32


def load_mnist(path: str | os.PathLike[str]) -> tuple[Bytes, Int64]:
    """Read images (n_images, height, width) and labels (n_images,) from a NumPy archive that has both."""
    with np.load(path, allow_pickle=False) as archive:
        if not {"images", "labels"} <= set(archive.files):
            raise InvalidInputError("an archive with images and labels", f"one with {archive.files}")
        images, labels = archive["images"], archive["labels"]
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise InvalidInputError("images (n_images, height, width) and one label for each", f"{images.shape}")
    return images.astype(np.uint8), labels.astype(np.int64)


@final
@dataclass(frozen=True, eq=False, repr=False)
class SphericalImages:
    """Images spread over the nodes of a sphere, one measure each, and the true distances between the nodes.

    `spherical_mnist` makes one. Its arrays are read-only.

    Attributes
    ----------
    points
        float64 (n_nodes, 3): unit vectors, from the north pole to the south pole.
    masses
        CSR float64 (n_images, n_nodes): one measure per image; every row sums to one.
    image_shape
        Height and width of the images.

    Examples
    --------
    >>> import numpy as np
    >>> from mnist import spherical_mnist
    >>> data = spherical_mnist(np.eye(3)[:, :, None])  # three images of 3 x 1 pixels, each with one bright pixel
    >>> data
    SphericalImages(3 images of 3 x 1 pixels on 96 nodes)
    >>> data.exact_emd([0, 2]).round(2)
    array([[0.  , 1.81],
           [1.81, 0.  ]])
    """

    points: Float64
    masses: sp.csr_array
    image_shape: tuple[int, int]

    def __post_init__(self) -> None:
        for array in (self.points, self.masses.data, self.masses.indices, self.masses.indptr):
            array.flags.writeable = False

    def measures(self, rows: npt.ArrayLike | None = None) -> Measures:
        """Return the measures of all images, or of those given by index; an image's name is its index."""
        chosen = self._images(rows)
        # Indexing copies, and 70,000 digits take half a gigabyte.
        masses = self.masses if rows is None else _frozen(sp.csr_array(self.masses[chosen]))
        return Measures(masses, tuple(map(str, chosen.tolist())))

    def geodesic(self, rows: npt.ArrayLike, columns: npt.ArrayLike) -> Float64:
        """Return the great-circle distances between some nodes and others.

        Parameters
        ----------
        rows, columns
            Indices of nodes, (n_rows,) and (n_columns,).

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            Angles, 0 to pi.
        """
        a, b = (
            self.points[check_indices(name, indices, len(self.points))]
            for name, indices in (("rows", rows), ("columns", columns))
        )
        return great_circle(a, b)

    def exact_emd(self, rows: npt.ArrayLike | None = None, *, n_jobs: int | None = None) -> Float64:
        """Return the exact Earth Mover's Distances for great-circle distances; needs the extra ``exact``.

        Every pair of images is solved anew: 100 digits of MNIST, 4,950 pairs with some 600 nodes each, take
        minutes.

        Parameters
        ----------
        rows
            Which images, by index, (n_rows,); None for all.
        n_jobs
            Threads to use; every available core for None or -1. The result has the same bits for any number.

        Returns
        -------
        ndarray of shape (n_rows, n_rows)
            Symmetric, with zeros on the diagonal, in the order of ``rows``.
        """
        return exact_distances(self.measures(rows).masses, self.geodesic, n_threads=check_threads(n_jobs))

    def _images(self, rows: npt.ArrayLike | None) -> Int64:
        n_images = int(self.masses.shape[0])
        if rows is None:
            return np.arange(n_images)
        chosen = check_indices("rows", rows, n_images)
        if chosen.size == 0:
            raise InvalidInputError("at least one image", "none", "leave rows out for all images")
        return chosen

    def __repr__(self) -> str:
        height, width = self.image_shape
        n_images, n_nodes = self.masses.shape
        return (
            f"SphericalImages({counted(n_images, 'image')} of {height} x {width} pixels on {counted(n_nodes, 'node')})"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # a pickle forgets that its arrays were read-only


def spherical_mnist(images: npt.ArrayLike, *, n_nodes: int | None = None) -> SphericalImages:
    """Project images onto the northern hemisphere of a sphere: a measure for each, over nodes all around it.

    The nodes are a Fibonacci lattice, on which every node has the same share of the sphere. An image lies on the
    hemisphere by Lambert's equal-area projection, its center at the pole and its corners on the equator, so that
    all its pixels have equal shares too. Each pixel gives a quarter of its value to each of the four nodes nearest
    to its center: 28 x 28 pixels to 3,136 of 25,088 nodes, as many as in the paper, which does not say how its
    nodes lie.

    Parameters
    ----------
    images
        (n_images, height, width), non-negative, no image all zero. Values are divided by their sum.
    n_nodes
        Nodes on the whole sphere, at least 8 per pixel. None: 32 per pixel, hence the paper's 25,088 for MNIST.

    Returns
    -------
    SphericalImages
        Nodes, measures and true distances.

    Examples
    --------
    >>> import heatmover as hm
    >>> from sklearn.datasets import load_digits
    >>> data = hm.datasets.spherical_mnist(load_digits().images)
    >>> data
    SphericalImages(1,797 images of 8 x 8 pixels on 2,048 nodes)
    >>> graph = hm.Graph.from_points(data.points, n_neighbors=10)
    >>> hm.DiffusionEMD(graph, max_scale=6, n_scales=1).fit_transform(data.masses[:5]).shape
    (5, 2048)
    """
    array = _check_images(images)
    height, width = array.shape[1:]
    values = _check_values(sp.csr_array(array.reshape(len(array), -1)))
    if n_nodes is None:
        n_nodes = SPHERE_NODES_PER_PIXEL * height * width
    n_nodes = check_integer("n_nodes", n_nodes, minimum=2 * NODES_PER_PIXEL * height * width)
    points = _fibonacci_lattice(n_nodes)
    spread = _spread(_pixel_centers(height, width), points)
    return SphericalImages(points, _frozen(sp.csr_array(values @ spread)), (height, width))


def _check_images(images: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        array = as_array("images", images)
    except ValueError as error:
        raise InvalidInputError("images of one size", f"{type(images).__name__}: {error}") from error
    if array.ndim != 3 or array.size == 0:
        raise InvalidInputError(
            "images of shape (n_images, height, width)",
            f"an array of shape {array.shape}",
            "a single image is image[None], flat ones are flat.reshape(-1, height, width)",
        )
    check_real("images", array.dtype)
    return array


def _check_values(values: sp.csr_array) -> sp.csr_array:
    """Return the pixels (n_images, n_pixels) as float64 rows that sum to one, or raise."""
    values = values.astype(np.float64)
    check_finite("images", values)
    if values.nnz and values.data.min() < 0:
        raise InvalidInputError(
            "non-negative images", f"a smallest value of {values.data.min():g}", "shift or clip them first"
        )
    with np.errstate(over="ignore"):
        totals = np.asarray(values.sum(axis=1)).ravel()
    bad = np.flatnonzero(~((totals > 0) & np.isfinite(totals)))
    if bad.size:
        raise InvalidInputError(
            "every image to have a positive, finite sum",
            f"{bad.size} without (first: image {bad[0]}, sum {totals[bad[0]]:g})",
            "drop empty images, rescale huge ones",
        )
    values.data /= np.repeat(totals, np.diff(values.indptr))
    return values


def _fibonacci_lattice(n_nodes: int) -> Float64:
    """Return n_nodes unit vectors: heights in equal steps, each turned by the golden angle from the one before."""
    steps = np.arange(n_nodes)
    height = 1 - (2 * steps + 1) / n_nodes
    # Whole turns are dropped first: the sine of a huge angle is less exact.
    angle = 2 * np.pi * (steps * ((np.sqrt(5) - 1) / 2) % 1)
    radius = np.sqrt(1 - height**2)
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle), height])


def _pixel_centers(height: int, width: int) -> Float64:
    """Return where the centers of pixels lie on the sphere, (n_pixels, 3), row by row, the first row on top."""
    # In Lambert's plane the equator is the circle of radius sqrt(2), and the corners lie on it.
    unit = np.sqrt(2) / np.hypot(height / 2, width / 2)
    y, x = np.meshgrid((height - 1) / 2 - np.arange(height), np.arange(width) - (width - 1) / 2, indexing="ij")
    plane = unit * np.column_stack([x.ravel(), y.ravel()])
    square = (plane**2).sum(axis=1)
    return np.column_stack([plane * np.sqrt(1 - square / 4)[:, None], 1 - square / 2])


def _spread(centers: Float64, points: Float64) -> sp.csr_array:
    """Return the matrix (n_pixels, n_nodes) that puts each pixel on its nearest northern nodes in equal parts."""
    # Here, because scipy.spatial takes a while to import.
    from scipy.spatial import KDTree

    northern = np.flatnonzero(points[:, 2] > 0)
    nodes = northern[KDTree(points[northern]).query(centers, k=NODES_PER_PIXEL)[1]]
    # SciPy keeps 64-bit indices where it is given them, and in the product they are half of the memory.
    starts = np.arange(0, nodes.size + 1, NODES_PER_PIXEL, dtype=np.int32)
    parts = np.full(nodes.size, 1 / NODES_PER_PIXEL)
    return sp.csr_array((parts, nodes.ravel().astype(np.int32), starts), shape=(len(centers), len(points)))


def _frozen(masses: sp.csr_array) -> sp.csr_array:
    masses.sort_indices()
    for array in (masses.data, masses.indices, masses.indptr):
        array.flags.writeable = False
    return masses
