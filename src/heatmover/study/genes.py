"""Find the genes of a cohort, and average them over the cells of each type in each sample; for `study`, `tl`.

The module reads the files of a cohort, block by block, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from heatmover._base.files import readable
from heatmover._base.progress import Progress
from heatmover._base.types import IntArray, Intp
from heatmover._base.words import counted, distinct, find, quoted, verb
from heatmover.attribution.pseudobulk import FeatureSums, Pseudobulk
from heatmover.cohort import Cohort
from heatmover.cohort.cohort import ShiftedReader
from heatmover.cohort.formats.anndata import LAYERS, RAW
from heatmover.cohort.reader import LABEL_ROWS, Block, Reader
from heatmover.cohort.values import not_finite
from heatmover.errors import InvalidInputError, argument, the_argument

AUTO, NONE, COUNTS = "auto", "none", "counts"
# Counts are scaled to this sum in every cell, and then log(1 + value) is taken, as by scanpy and Seurat.
PER_CELL = 10_000
# Genes expressed in fewer cells of a type, or in a smaller share of them, have no mean that a t-test could use.
LEAST_CELLS, LEAST_SHARE = 10, 0.01
# Largest size in bytes of the means of all genes.
MOST_BYTES = 4_000_000_000


class Genes(NamedTuple):
    """Matrix of genes, or of other measurements, of the cells of a cohort.

    Attributes
    ----------
    reader
        Reader of the matrix.
    name
        Name of the matrix, in words.
    counted
        Whether a matrix of whole numbers contains counts, to be log-normalized.
    """

    reader: Reader
    name: str
    counted: bool = True

    @property
    def kind(self) -> Any:
        """Word for a column of the matrix."""
        return "gene" if self.counted else "feature"


class Rows(NamedTuple):
    """Cells to average.

    Attributes
    ----------
    samples
        ``(n_cells,)``: sample of each cell; -1 for cells to leave out.
    n_samples
        Number of samples.
    codes
        ``(n_cells,)``: type of each cell, as an index into ``types``.
    types
        Names of the types.
    """

    samples: IntArray
    n_samples: int
    codes: IntArray
    types: tuple[str, ...]


def genes_of(cohort: Cohort, choice: str) -> Genes | None:
    """Return the genes of a cohort; None if the features of the distances are the measurements themselves."""
    reader, projected = cohort.reader, cohort.projection.components is not None
    while reader.inner is not None:
        projected |= isinstance(reader, ShiftedReader) and reader.projection.components is not None
        reader = reader.inner
    with readable(cohort.source.path, cohort.reader.kind):
        return choose_genes(cohort.reader, choice, projected=projected)


def choose_genes(reader: Reader, choice: str, *, projected: bool, name: str = "genes") -> Genes | None:
    """Return a matrix of the file; None if there is none besides the representation, or if none is wanted.

    Parameters
    ----------
    reader
        Reader of the representation.
    choice
        Name of a layer, ``"raw"``, ``"X"``, ``"none"``, or ``"auto"``: the layer "counts", else raw, else X, unless X
        is the representation.
    projected
        Whether the representation consists of principal components of the values that the reader yields.
    name
        Name of the argument, for messages.
    """
    if choice == NONE:
        return None
    matrices = reader.matrices
    if choice != AUTO:
        known = [key.removeprefix(LAYERS) if key != RAW else "raw" for key in matrices]
        find(choice, [*known, NONE], f"{argument(name)} to be a layer, raw or X, if the file has it")
        key: str | None = matrices[known.index(choice)]
    else:
        same = getattr(reader.base, "representation", "X") == "X" and not projected
        wanted = (LAYERS + COUNTS, RAW, *(() if same else ("X",)))
        key = next((one for one in wanted if one in matrices and reader.of_matrix(one).features), None)
        if key is None and (matrices or not projected):
            return None
    if key is None:
        return Genes(reader.of_matrix(""), "the file", counted=False)
    own = reader.of_matrix(key)
    words = f"layer {quoted(key.removeprefix(LAYERS))}" if key.startswith(LAYERS) else "raw" if key == RAW else "X"
    distinct(
        own.features, f"names of the genes in {words}",
        f"call var_names_make_unique of the AnnData, or set {the_argument(name)} to {NONE!r}",
    )  # fmt: skip
    return Genes(own, words)


def average_genes(
    cohort: Cohort, kept: Intp, annotation: Any | None, choice: str, progress: Progress, memory: int = MOST_BYTES
) -> Pseudobulk | None:
    """Return the mean of every gene over the cells of each type in each kept sample; None without genes or types.

    Parameters
    ----------
    cohort, kept, annotation, progress
        As in `heatmover.study.comparers.Comparer.compare`.
    choice
        As in `choose_genes`.
    memory
        Largest size in bytes of the means.
    """
    genes = None if annotation is None else genes_of(cohort, choice)
    if annotation is None or genes is None:
        return None
    place = np.full(len(cohort.names), -1)
    place[kept] = np.arange(len(kept))
    rows = Rows(place[cohort.codes], len(kept), annotation.codes, annotation.types)
    with readable(cohort.source.path, cohort.reader.kind):
        return pseudobulk(genes, rows, progress, memory=min(memory, MOST_BYTES))


def pseudobulk(
    genes: Genes, cells: Rows, progress: Progress, *, features: Sequence[str] | None = None, memory: int = MOST_BYTES,
    name: str = "genes",
) -> Pseudobulk:  # fmt: skip
    """Return the mean of every gene over the cells of each type in each sample.

    Parameters
    ----------
    genes, cells
        The genes, and the cells to average.
    progress
        Receives the number of cells read.
    features
        Names of the genes to average, which must exist; None: all.
    memory
        Largest size in bytes of the means. If all genes would need more, the genes in the fewest cells are left out.
    name
        Name of the argument that chose the genes, for messages.
    """
    names, words, columns = genes.reader.features, [], np.arange(len(genes.reader.features))
    if features is not None:
        columns = np.array([names.index(str(each)) for each in features])
    n_means = len(cells.types) * cells.n_samples
    most = max(1, int(memory // (8 * n_means)))
    if columns.size > most:
        detected = np.zeros(len(names), dtype=np.int64)
        for block, inside in _blocks(genes, cells, progress, "count cells per gene"):
            own = block[inside]
            detected += np.bincount(own.indices[own.data != 0], minlength=len(names))
        least = int(np.sort(detected[columns])[-most - 1]) + 1
        fewer = columns[detected[columns] < least]
        columns = columns[detected[columns] >= least]
        words.append(
            f"{counted(fewer.size, genes.kind)} detected in fewer than {counted(least, 'cell')} "
            f"{verb(fewer.size, 'was', 'were')} left out, because the means of all would need "
            f"{8e-9 * n_means * (fewer.size + columns.size):.1f} GB (limit: {memory / 1e9:.1f} GB)."
        )
    for as_counts in (True, False) if genes.counted else (False,):
        sums = _sums(genes, cells, progress, columns, as_counts, name)
        if sums is not None:
            break
    assert sums is not None
    filtered = genes.counted and features is None
    if filtered:
        words.append(
            f"A gene was tested in a type if at least {LEAST_CELLS} cells and {LEAST_SHARE:.0%} of the cells of the "
            "type express it."
        )
    return sums.finish(
        cells.types, tuple(names[i] for i in columns), least_cells=LEAST_CELLS * filtered,
        least_share=LEAST_SHARE * filtered, kind=genes.kind, left_out=" ".join(words),
        scale=f"log-normalized counts of {genes.name}" if as_counts else f"values of {genes.name}, as stored",
    )  # fmt: skip


def _sums(
    genes: Genes, cells: Rows, progress: Progress, columns: Intp, as_counts: bool, name: str
) -> FeatureSums | None:
    """Return sums of log-normalized counts, or of values as they are; None for counts that are not whole numbers."""
    sums = FeatureSums(len(cells.types), cells.n_samples, columns.size)
    every = np.array_equal(columns, np.arange(len(genes.reader.features)))
    negative, done = "", 0
    for block, inside in _blocks(genes, cells, progress, "average genes"):
        rows, done = done + np.flatnonzero(inside), done + inside.size
        values = block if inside.all() else block[inside]
        bad = not_finite(values)[1]
        if bad.size:
            raise InvalidInputError(
                f"{genes.name} without NaN or infinity", f"such a value in {genes.reader.place(int(rows[bad[0]]))}",
                f"set {the_argument(name)} to another matrix, or to {NONE!r}",
            )  # fmt: skip
        if as_counts:
            if (values.data != np.rint(values.data)).any():
                return None
            if not negative and (values.data < 0).any():
                first = int(np.searchsorted(values.indptr, np.argmax(values.data < 0), side="right")) - 1
                negative = f"{values.data.min():g} in {genes.reader.place(int(rows[first]))}"
            if negative:
                continue
            values = log_normalized(values)
        # In single precision, so that the sums do not depend on the order of cells (see `FeatureSums`).
        values = values.astype(np.float32)
        groups = cells.codes[rows].astype(np.int64) * cells.n_samples + cells.samples[rows]
        where = sp.csr_array((np.ones(rows.size), (groups, np.arange(rows.size))), shape=(sums.counts.size, rows.size))
        sums.add(where, values if every else values[:, columns])
    if negative:
        raise InvalidInputError(
            f"counts of at least 0 in {genes.name}, a matrix of whole numbers", negative,
            f"set {the_argument(name)} to the matrix with the counts, or to {NONE!r}",
        )  # fmt: skip
    return sums


def _blocks(genes: Genes, cells: Rows, progress: Progress, stage: str) -> Iterator[tuple[Block, Any]]:
    """Yield blocks of cells as CSR, and which of their cells to average; raise if cells are missing."""
    progress.stage(stage, cells.samples.size)
    done = 0
    for block in genes.reader.blocks(0, cells.samples.size, LABEL_ROWS):
        end = done + block.shape[0]
        yield sp.csr_array(block, dtype=np.float64), cells.samples[done:end] >= 0
        done = end
        progress.advance(block.shape[0])
    if done != cells.samples.size:
        expected = f"{counted(cells.samples.size, 'cell')} in {genes.name}"
        raise InvalidInputError(expected, f"{done:,}", "the file has changed since it was read")


def log_normalized(counts: sp.csr_array) -> sp.csr_array:
    """Return the logarithm of 1 plus the counts per 10,000 of each cell, ``(n_cells, n_genes)``.

    Examples
    --------
    >>> log_normalized(sp.csr_array([[1.0, 0, 9_999], [0, 0, 0]])).toarray().round(2)
    array([[0.69, 0.  , 9.21],
           [0.  , 0.  , 0.  ]])
    """
    totals = np.asarray(counts.sum(axis=1)).ravel()
    factors = np.divide(PER_CELL, totals, out=np.zeros_like(totals), where=totals > 0)
    data = np.log1p(counts.data * np.repeat(factors, np.diff(counts.indptr)))
    return sp.csr_array((data, counts.indices, counts.indptr), shape=counts.shape)
