"""Hashes of cells: numbers that depend on a cell's own values and sample alone, to draw cells by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._typing import Int32
from heatmover.cohort.reader import Block, without_copies

__all__ = ["cell_hashes"]


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
