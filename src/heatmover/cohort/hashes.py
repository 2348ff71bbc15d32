"""Hashes of cells: numbers that depend on a cell's own values and sample alone, to draw cells by."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._typing import Int32, Intp
from heatmover.cohort.cohort import Cohort
from heatmover.cohort.reader import Block, without_copies

__all__ = ["cell_hashes", "draw_cells"]


def cell_hashes(block: Block, codes: Int32, seed: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each cell, ``(n_rows,)``, as good as drawn at random from all numbers of 64 bits.

    Cells of one sample with equal values have the same; neither the place of a cell in the file matters nor whether
    its values are stored as float32 or sparse.

    Parameters
    ----------
    block
        Values ``(n_rows, n_columns)``, dense or CSR.
    codes
        ``(n_rows,)``: the sample of each.
    seed
        Another seed gives other hashes.

    Examples
    --------
    >>> block = np.array([[0.5, 0.0], [0.5, 0.0], [0.0, 0.5]], dtype=np.float32)
    >>> dense = cell_hashes(block, np.zeros(3, dtype=np.int32), 0)
    >>> bool(dense[0] == dense[1]), bool(dense[0] == dense[2])
    (True, False)
    >>> np.array_equal(dense, cell_hashes(sp.csr_array(block), np.zeros(3, dtype=np.int32), 0))
    True
    """
    from heatmover._compiled.rows import hash_dense, hash_sparse, salt_hashes

    generator = np.random.default_rng(seed)
    salt = generator.integers(2**64, dtype=np.uint64)
    columns = generator.integers(2**64, size=block.shape[1], dtype=np.uint64)
    hashes = np.empty(block.shape[0], dtype=np.uint64)
    if sp.issparse(block):
        matrix = without_copies(sp.csr_array(block))
        values = np.ascontiguousarray(matrix.data, dtype=np.float64)
        hash_sparse(values, values.view(np.uint64), matrix.indices, matrix.indptr, columns, hashes)
    else:
        values = np.ascontiguousarray(block, dtype=np.float64)
        hash_dense(values, values.view(np.uint64), columns, hashes)
    salt_hashes(hashes, np.ascontiguousarray(codes), salt)
    return hashes


def draw_cells(cohort: Cohort, most: int, seed: int) -> tuple[npt.NDArray[Any], Int32]:
    """Return at most so many cells, drawn from every sample in proportion and at least one of each.

    They are drawn by hashes of their values, in whatever order they come.
    """
    if cohort.n_cells <= most:
        return cohort.points(), cohort.codes
    hashes, codes = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int32)
    points: npt.NDArray[Any] = np.empty((0, cohort.n_dimensions))
    for block, block_codes in cohort.chunks():
        hashes = np.concatenate([hashes, cell_hashes(block, block_codes, seed)])
        points, codes = np.concatenate([points, block]), np.concatenate([codes, block_codes])
        # Enough for every sample to replace its first later on.
        kept = _first_and_next(hashes, codes, most + len(cohort.names))
        hashes, points, codes = hashes[kept], points[kept], codes[kept]
    chosen = _first_and_next(hashes, codes, most)
    return points[chosen], codes[chosen]


def _first_and_next(hashes: npt.NDArray[np.uint64], codes: Int32, most: int) -> Intp:
    """Return the place of the smallest hash of each sample, then those of the smallest of all."""
    order = np.argsort(hashes, kind="stable")
    is_first = np.zeros(order.size, dtype=bool)
    is_first[np.unique(codes[order], return_index=True)[1]] = True
    return np.concatenate([order[is_first], order[~is_first]])[:most]
