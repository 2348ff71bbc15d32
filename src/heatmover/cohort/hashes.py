"""Hashes of cells: numbers that depend on a cell's own values and sample alone, to draw cells by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._typing import Int32, Intp
from heatmover.cohort.cohort import Cohort
from heatmover.cohort.reader import Block, without_copies

__all__ = ["cell_hashes", "draw_cells", "draw_from"]


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


def draw_cells(cohort: Cohort, most: int, seed: int, kept: Intp | None = None) -> tuple[npt.NDArray[Any], Int32]:
    """Return at most so many cells of the samples kept, drawn in proportion and at least one of each sample.

    They are drawn by hashes of their values, in whatever order they come.
    """
    inside = np.ones(len(cohort.names), dtype=bool)
    if kept is not None:
        inside = np.isin(np.arange(len(cohort.names)), kept)
    if inside.all() and cohort.n_cells <= most:
        return cohort.points(), cohort.codes
    blocks = cohort.chunks()
    return draw_from(((block[inside[codes]], codes[inside[codes]]) for block, codes in blocks), len(inside), most, seed)


def draw_from(
    blocks: Iterable[tuple[npt.NDArray[Any], Int32]], n_samples: int, most: int, seed: int
) -> tuple[npt.NDArray[Any], Int32]:
    """Return what `draw_cells` does, of cells and their samples in blocks."""
    hashes, codes = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int32)
    points: npt.NDArray[Any] | None = None
    for block, block_codes in blocks:
        hashes = np.concatenate([hashes, cell_hashes(block, block_codes, seed)])
        points = block if points is None else np.concatenate([points, block])
        codes = np.concatenate([codes, block_codes])
        # Enough for every sample to replace its first later on.
        rows = _first_and_next(hashes, codes, most + n_samples)
        hashes, points, codes = hashes[rows], points[rows], codes[rows]
    assert points is not None
    chosen = _first_and_next(hashes, codes, most)
    return points[chosen], codes[chosen]


def _first_and_next(hashes: npt.NDArray[np.uint64], codes: Int32, most: int) -> Intp:
    """Return the place of the smallest hash of each sample, then those of the smallest of all."""
    order = np.argsort(hashes, kind="stable")
    is_first = np.zeros(order.size, dtype=bool)
    is_first[np.unique(codes[order], return_index=True)[1]] = True
    return np.concatenate([order[is_first], order[~is_first]])[:most]
