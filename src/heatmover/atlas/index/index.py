"""Define `MeasureIndex`, which stores measures in memory or a folder and finds the nearest; for users, `atlas`."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.files import check_place
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.storage import Samples, Store, Table
from heatmover._base.types import Float64, FloatArray, Int64
from heatmover._base.validation import (
    check_at_most,
    check_finite,
    check_integer,
    check_matrix,
    check_memory,
    check_number,
    check_option,
    check_random_state,
    check_threads,
)
from heatmover._base.words import counted, distinct, find_all, quoted
from heatmover.atlas.index.search import RECALL, CandidateGraph, Rows, read_cache, recall, write_cache
from heatmover.embedding.estimator import DiffusionEMD, check_fitted
from heatmover.errors import InvalidInputError, argument
from heatmover.measures import Measures, check_measures, names_of
from heatmover.transport.exact import GroundCosts, check_costs, exact_pairs

INDEX_SCHEMA, INDEX_VERSION = "heatmover-index", 1
# The folder of an atlas can be opened as an index of its reference samples.
OTHERS = {"heatmover-atlas": 3}
METHODS = ("auto", "exact", "approximate")
# Smallest number of rows and of values for which "auto" builds a graph. With fewer rows or values, an exact search
# takes about 10 ms per query.
APPROXIMATE_ROWS, APPROXIMATE_VALUES = 10_000, 2**25
# The graph on disk is written again when the new rows exceed this share of the rows that it contains.
LACKING = 0.1
NO_MODEL = "open the index with model=, or pass rows of the embedding"


@final
@dataclass(frozen=True, eq=False)
class Nearest(ReadOnlyArrays):
    """The stored samples nearest to each query.

    Attributes
    ----------
    distances
        ``(n_queries, k)``: distances to the nearest samples, ascending in each row.
    rows
        ``(n_queries, k)``: row numbers of the nearest samples in the index. Among equal distances, the smaller row
        number comes first.
    names
        Names of the nearest samples of each query.
    exact
        Whether each query was compared with all samples. If not, some of the nearest samples may be missing, but all
        returned distances are exact.

    Examples
    --------
    >>> import heatmover as hm
    >>> near = hm.MeasureIndex.from_embedding([[0.0], [5.0], [6.0]]).nearest([[4.0]], k=2)
    >>> near.distances, near.rows, near.names, near.exact
    (array([[1., 2.]]), array([[1, 2]]), (('1', '2'),), True)
    """

    distances: Float64
    rows: Int64
    names: tuple[tuple[str, ...], ...]
    exact: bool

    def __len__(self) -> int:
        return len(self.rows)


@final
@dataclass(frozen=True, eq=False)
class Within:
    """All stored samples whose distance from each query is at most a given radius.

    Attributes
    ----------
    distances, rows, names
        For each query: distances of these samples, ascending; row numbers in the index; and names.

    Examples
    --------
    >>> import heatmover as hm
    >>> near = hm.MeasureIndex.from_embedding([[0.0], [5.0], [6.0]]).within([[4.0], [9.0]], radius=2)
    >>> near.distances, near.names
    ((array([1., 2.]), array([], dtype=float64)), (('1', '2'), ()))
    """

    distances: tuple[Float64, ...]
    rows: tuple[Int64, ...]
    names: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)


# A function that takes the number of a query and row numbers of the index, and returns the distances between them.
Distance: TypeAlias = Callable[[int, Int64], npt.ArrayLike]


def exact_emd(
    measures: Any, queries: Any, costs: GroundCosts | npt.ArrayLike, *, n_jobs: int | None = None
) -> Distance:
    """Return a function that computes exact Earth Mover's Distances from queries to index rows, for `rerank`.

    The function needs the extra ``exact``.

    Parameters
    ----------
    measures
        ``(n_rows, n_points)``: the measures in the index, in the order of its rows.
    queries
        ``(n_queries, n_points)``: the query measures, in the order in which they were passed to the search.
    costs
        Costs of moving mass between points: an array ``(n_points, n_points)``, or a function that takes two arrays of
        point numbers and returns the costs ``(n_sources, n_targets)`` between them.
    n_jobs
        Number of threads; None for all cores.

    Examples
    --------
    >>> import numpy as np
    >>> places = np.arange(4.0)
    >>> distance = exact_emd(np.eye(4), np.eye(4)[:1], abs(places[:, None] - places))
    >>> distance(0, np.array([3, 1]))
    array([3., 1.])
    """
    stored, searched = (sp.csr_array(check_measures(rows)) for rows in (measures, queries))
    if stored.shape[1] != searched.shape[1]:
        raise InvalidInputError(
            f"queries on the {counted(stored.shape[1], 'point')} of the stored measures",
            f"queries on {counted(searched.shape[1], 'point')}",
        )
    shape = stored.shape[1], stored.shape[1]
    ground = costs if callable(costs) else _between(check_costs("costs", costs, shape, "give the cost of every pair"))
    n_threads = check_threads(n_jobs)

    def distance(query: int, rows: Int64) -> Float64:
        if rows.size and rows.max() >= stored.shape[0]:
            raise InvalidInputError(
                "one measure for every row of the index",
                f"{counted(stored.shape[0], 'measure')}, none for row {rows.max():,}",
            )
        both = sp.csr_array(sp.vstack([searched[[query]], stored[rows]]))
        both.sort_indices()
        return exact_pairs(both, [(0, 1 + place) for place in range(rows.size)], ground, n_threads=n_threads)

    return distance


def _between(matrix: Float64) -> GroundCosts:
    return lambda sources, targets: np.ascontiguousarray(matrix[np.ix_(sources, targets)])


def _column(values: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Return numbers as float64, with NaN for missing values, and other values as objects."""
    present = [value for value in values if value is not None]
    # Integers that float64 cannot represent exactly stay objects, because conversion would change them.
    numbers = all(type(value) is float or (type(value) is int and float(value) == value) for value in present)
    return np.array(values, dtype=np.float64 if present and numbers else object)


@final
class MeasureIndex:
    """Stored measures, and search for their nearest neighbors by the L1 distance of the embedding.

    `from_embedding` or `from_measures` creates an index, in memory or in a folder; `open` opens a folder. Samples are
    added to a folder completely or not at all, even if the process is killed. Only one process can write at a time.

    Attributes
    ----------
    n_rows, n_features
        Number of samples, and number of features of the embedding.
    names
        Names of the samples, in the order of the rows.
    model
        Fitted model that embeds queries, or None.
    path
        Folder of the index, or None for an index in memory.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.ring(40, points_per_measure=25)
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10))
    >>> measures = data.measures()
    >>> index = hm.MeasureIndex.from_measures(model.fit(measures), measures)
    >>> index
    MeasureIndex(40 samples x ... features, in memory)

    Search for the neighbors of a stored sample, and of new measures:

    >>> index.nearest("3", k=2).names
    (('2', '20'),)
    >>> near = index.nearest(measures, k=1)
    >>> near.names[3], float(near.distances.max()), near.exact
    (('3',), 0.0, True)
    """

    def __init__(self, store: Samples | Table, *, model: DiffusionEMD | None, memory: int) -> None:
        self._store, self.model, self._memory = store, model, memory
        self._schema = store.schema() if isinstance(store, Table) else store.schema
        self._rows: Rows | None = None
        self._graph: CandidateGraph | None = None
        # Searches and extensions of the graph exclude each other.
        self._lock = threading.RLock()

    @classmethod
    def from_embedding(
        cls,
        embedding: npt.ArrayLike,
        *,
        names: Sequence[object] | None = None,
        variables: Mapping[str, Any] | None = None,
        model: DiffusionEMD | None = None,
        path: str | os.PathLike[str] | None = None,
        memory: int | float | str = "4 GiB",
    ) -> MeasureIndex:
        """Create an index of the rows of an embedding.

        Parameters
        ----------
        embedding
            ``(n_samples, n_features)``: float32 and float64 are stored unchanged, and all other types as float64.
        names
            Distinct names of the samples. None: ``"0"``, ``"1"``, ...
        variables
            Metadata of the samples, numbers or text, as in `heatmover.build_atlas`; None and NaN are missing values.
        model
            Fitted model that computed the rows; required for queries that are measures. The index stores a fingerprint
            of the model.
        path
            New folder in which the index is stored. None: in memory.
        memory
            Memory limit, in bytes or as text such as ``"4 GiB"``. The rows of a folder are kept in memory if they fit;
            otherwise every search reads them from disk.

        Returns
        -------
        MeasureIndex

        Examples
        --------
        >>> import heatmover as hm
        >>> index = hm.MeasureIndex.from_embedding([[0.0, 0.0], [1.0, 2.0], [1.0, 0.0]], names=["a", "b", "c"])
        >>> index.nearest([[1.0, 1.5]], k=2).names
        (('b', 'c'),)
        """
        limit = check_memory(memory)
        rows = check_matrix("embedding", embedding, finite=False)
        given = [str(row) for row in range(len(rows))] if names is None else names
        table = Table.checked(rows, given, variables)
        made_by = None if model is None else fingerprint(model)
        if model is not None:
            _check_width(rows.shape[1], model)
        if path is None:
            return cls(replace(table, rows=np.array(rows, order="C")), model=model, memory=limit)
        place, schema = check_place(path, "an index"), table.schema(made_by)
        store = Store.create(place, INDEX_SCHEMA, INDEX_VERSION, table.parts(schema), values=schema.values())
        return cls(Samples(store), model=model, memory=limit)

    @classmethod
    def from_measures(
        cls,
        model: DiffusionEMD,
        measures: Any,
        *,
        names: Sequence[object] | None = None,
        variables: Mapping[str, Any] | None = None,
        path: str | os.PathLike[str] | None = None,
        memory: int | float | str = "4 GiB",
    ) -> MeasureIndex:
        """Embed measures with a fitted model and create an index of them.

        Parameters
        ----------
        model
            Fitted model.
        measures
            ``(n_samples, n_points)``, as in `DiffusionEMD.transform`.
        names
            Names of the samples. None: the names of the measures.
        variables, path, memory
            As in `from_embedding`.

        Returns
        -------
        MeasureIndex
        """
        rows = model.transform(measures)
        given = names_of(measures, len(rows)) if names is None else names
        return cls.from_embedding(rows, names=given, variables=variables, model=model, path=path, memory=memory)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, model: DiffusionEMD | None = None, memory: int | float | str = "4 GiB"
    ) -> MeasureIndex:
        """Open the index in a folder.

        Parameters
        ----------
        path
            Path of the folder.
        model
            Fitted model that computed the rows, required for queries that are measures. A different model raises an
            error.
        memory
            As in `from_embedding`.

        Returns
        -------
        MeasureIndex
            Index of all samples that are in the folder now; `refresh` reads samples that are added later.
        """
        limit = check_memory(memory)
        samples = Samples(Store.open(check_place(path, "an index"), {INDEX_SCHEMA: INDEX_VERSION, **OTHERS}))
        if model is not None:
            made_by = fingerprint(model)
            _check_width(samples.schema.n_features, model)
            if samples.schema.model not in (None, made_by):
                raise InvalidInputError(
                    "the model that embedded the rows of the index",
                    "another model (with a different graph, scales, regions, density or precision)",
                    "fit the model with the original settings, or make a new index",
                )
        return cls(samples, model=model, memory=limit)

    @property
    def n_rows(self) -> int:
        """Number of samples."""
        return self._store.n_rows

    @property
    def n_features(self) -> int:
        """Number of features of the embedding."""
        return self._schema.n_features

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the samples, in the order of the rows."""
        return self._store.names

    @property
    def path(self) -> Path | None:
        """Folder of the index, or None for an index in memory."""
        return self._store.store.folder if isinstance(self._store, Samples) else None

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        place = "in memory" if self.path is None else f"in {str(self.path)!r}"
        return f"MeasureIndex({counted(self.n_rows, 'sample')} x {counted(self.n_features, 'feature')}, {place})"

    def row(self, name: str) -> int:
        """Return the row number of a stored sample; for an unknown name, the error suggests a similar name."""
        return find_all([name], self._store.names, "the name of a stored sample")[name]

    def variables(self, rows: npt.ArrayLike | None = None) -> dict[str, Any]:
        """Return the metadata of all samples, or of the samples in ``rows``.

        Parameters
        ----------
        rows
            Row numbers, in an array of any shape, such as `Nearest.rows`. None: all rows.

        Returns
        -------
        dict
            Values of each variable, in an array of the shape of ``rows``. Numbers are float64, with NaN for missing
            values; other values are objects, with None for missing values.

        Examples
        --------
        >>> import heatmover as hm
        >>> index = hm.MeasureIndex.from_embedding([[0.0], [5.0], [6.0]], variables={"age": [30, 41, None]})
        >>> index.variables(index.nearest([[4.0]], k=2).rows)["age"]
        array([[41., nan]])
        """
        places = np.arange(self.n_rows) if rows is None else np.asarray(rows, dtype=np.int64)
        if places.size and not (places.min() >= 0 and places.max() < self.n_rows):
            raise InvalidInputError(f"rows from 0 to {self.n_rows - 1:,}", f"{places.min():,} to {places.max():,}")
        return {name: _column(values)[places] for name, values in self._store.variables.items()}

    def add(
        self, samples: Any, *, names: Sequence[object] | None = None, variables: Mapping[str, Any] | None = None
    ) -> None:
        """Add samples, without rebuilding the index; if an error occurs, nothing changes.

        Parameters
        ----------
        samples
            Rows of the embedding ``(n_samples, n_features)``, or `Measures`, which the model of the index embeds.
        names
            Distinct new names, one per sample. None: the names of the measures, or the new row numbers.
        variables
            Metadata of the new samples, as in `from_embedding`, with a value for every variable of the index.

        Examples
        --------
        >>> import heatmover as hm
        >>> index = hm.MeasureIndex.from_embedding([[0.0], [5.0]])
        >>> index.add([[4.0]], names=["new"])
        >>> index.nearest([[3.0]], k=1).names
        (('new',),)
        """
        with self._lock:
            rows = self._embedded(samples)
            given: Sequence[object] | None = names
            if given is None:
                first = self.n_rows
                given = samples.names if isinstance(samples, Measures) else range(first, first + len(rows))
            table = Table.checked(rows, given, variables)
            _check_numbers(self._store.variables, table.variables)
            self._store = self._store.append(table)
            self._rows = None

    def refresh(self) -> None:
        """Read samples that other processes have added to the folder."""
        with self._lock:
            if isinstance(self._store, Samples):
                self._store, self._rows = self._store.refresh(), None

    def _loaded(self) -> Rows:
        """Return the rows; at the first search, rows in a folder are read into memory if they fit."""
        with self._lock:
            if self._rows is None:
                store, size = self._store, self.n_rows * self.n_features * np.dtype(self._schema.dtype).itemsize
                fit = isinstance(store, Samples) and size <= self._memory
                self._rows = Rows(store.rows if isinstance(store, Table) else store.rows() if fit else store)
            return self._rows

    def nearest(
        self,
        query: Any,
        k: int = 10,
        *,
        method: Literal["auto", "exact", "approximate"] = "auto",
        n_jobs: int | None = None,
    ) -> Nearest:
        """Find the k nearest stored samples of every query.

        Parameters
        ----------
        query
            A name or a list of names of stored samples (a sample is not its own neighbor); or `Measures`, which the
            model of the index embeds; or rows of the embedding ``(n_queries, n_features)``, which are rounded to the
            precision of the index.
        k
            Number of neighbors.
        method
            ``"exact"``: compare with all samples. ``"approximate"``: search a graph, which finds most of the nearest
            samples (`recall` measures the share); needs the extra ``search``. ``"auto"``: approximate for at least
            10,000 samples and 33 million values, if the extra is installed and the graph finds at least 98% of the ten
            nearest samples during calibration. The first approximate search builds the graph (see `build`).
        n_jobs
            Number of threads; None for all cores. Results are bit-identical for any number of threads.

        Returns
        -------
        Nearest
        """
        check_option("method", method, METHODS)
        n_threads = check_threads(n_jobs)
        queries, own = self._queries(query)
        stored = f"there are {counted(self.n_rows, 'stored sample')}"
        alone = "" if own is None else ", and a sample is not its own neighbor"
        k = check_at_most("k", k, self.n_rows - (own is not None), stored + alone)
        with self._lock:
            rows, graph = self._loaded(), self._chosen(method, n_threads)
            if graph is None:
                distances, near = rows.nearest(queries, k, own, n_threads)
            else:
                distances, near = graph.nearest(rows, queries, k, own, n_threads)
        return Nearest(distances, near, self._names_of(near), exact=graph is None)

    def within(self, query: Any, radius: float, *, n_jobs: int | None = None) -> Within:
        """Find all stored samples at most ``radius`` away from each query; the search is always exact.

        Parameters
        ----------
        query
            As in `nearest`.
        radius
            Largest distance, at least 0.
        n_jobs
            Number of threads; None for all cores.

        Returns
        -------
        Within

        Examples
        --------
        >>> import heatmover as hm
        >>> index = hm.MeasureIndex.from_embedding([[0.0], [5.0], [6.0]], names=["a", "b", "c"])
        >>> index.within([[4.0], [9.0]], radius=2).names
        (('b', 'c'), ())
        """
        limit = 0.0 if radius == 0 else check_number("radius", radius, above=0)
        queries, own = self._queries(query)
        hits = self._loaded().within(queries, limit, check_threads(n_jobs))
        if own is not None:
            kept = [rows != row for (_, rows), row in zip(hits, own, strict=True)]
            hits = [(distances[keep], rows[keep]) for (distances, rows), keep in zip(hits, kept, strict=True)]
        names = tuple(self._names_of(rows[None])[0] for _, rows in hits)
        return Within(tuple(distances for distances, _ in hits), tuple(rows for _, rows in hits), names)

    def rerank(self, candidates: Nearest, distance: Distance, k: int = 10) -> Nearest:
        """Sort candidates by a different distance, such as the exact Earth Mover's Distance, and keep the k nearest.

        Parameters
        ----------
        candidates
            Candidates of each query, such as ``index.nearest(query, 50)``.
        distance
            Function that takes the number of a query and row numbers of the index, and returns the distances between
            them. `heatmover.atlas.index.exact_emd` returns such a function.
        k
            Number of neighbors to keep, at most the number of candidates.

        Returns
        -------
        Nearest
            Nearest candidates with the new distances. ``exact`` is False, because a sample that is not a candidate may
            be nearer.

        Examples
        --------
        >>> import heatmover as hm
        >>> index = hm.MeasureIndex.from_embedding([[0.0, 3.0], [2.0, 2.0], [9.0, 9.0]], names=["a", "b", "c"])
        >>> candidates = index.nearest([[0.0, 0.0]], k=2)
        >>> index.rerank(candidates, lambda query, rows: [3.0, 2.8], k=2).names
        (('b', 'a'),)
        """
        k = check_integer("k", k, minimum=1)
        if k > candidates.rows.shape[1]:
            raise InvalidInputError(
                f"{argument('k')} of at most the length of the candidate list, {candidates.rows.shape[1]}",
                f"k={k}",
                "search for more candidates first",
            )
        distances, rows, names = [], [], []
        for query, near in enumerate(candidates.rows):
            values = np.asarray(distance(query, near), dtype=np.float64)
            if values.shape != near.shape:
                raise InvalidInputError(counted(near.size, "distance"), f"an array of shape {values.shape}")
            if np.isnan(values).any():
                raise InvalidInputError("distances without NaN", f"{int(np.isnan(values).sum())} of query {query}")
            order = np.lexsort((near, values))[:k]
            distances.append(values[order])
            rows.append(near[order])
            names.append(tuple(candidates.names[query][place] for place in order))
        return Nearest(np.array(distances), np.array(rows), tuple(names), exact=False)

    def build(self, *, n_jobs: int | None = None) -> float:
        """Build or rebuild the graph for approximate search, and return the recall of the search.

        Building takes as long as about a thousand exact searches. If the index has a folder, the graph is stored next
        to the samples, and later sessions read the stored graph. Samples that are added later do not require a new
        graph. The column groups and the number of candidates, however, remain as chosen for the earlier samples.

        Parameters
        ----------
        n_jobs
            Number of threads; None for all cores. The graph does not depend on this number.

        Returns
        -------
        float
            Share of the ten nearest samples that the search found, measured on 200 samples that were not yet in the
            graph.
        """
        with self._lock:
            return self._built(check_threads(n_jobs)).recall

    def recall(
        self,
        k: int = 10,
        *,
        sample: int = 100,
        query: Any = None,
        n_jobs: int | None = None,
        random_state: int | np.random.Generator | None = 0,
    ) -> float:
        """Measure the share of the k nearest samples that the approximate search finds.

        Parameters
        ----------
        k
            Number of neighbors.
        sample
            Number of stored samples to draw at random as queries.
        query
            Queries to use instead of stored samples, as in `nearest`. The recall for new samples is slightly lower than
            the recall for stored samples.
        n_jobs
            Number of threads; None for all cores.
        random_state
            Seed of the random choice of queries.

        Returns
        -------
        float
            Share of the true neighbors found, between 0 and 1.
        """
        if query is None:
            count = check_integer("sample", sample, minimum=1)
            drawn = check_random_state(random_state).permutation(self.n_rows)[: min(count, self.n_rows)]
            names = self._store.names
            query = [names[row] for row in np.sort(drawn).tolist()]
        truth = self.nearest(query, k, method="exact", n_jobs=n_jobs)
        return recall(self.nearest(query, k, method="approximate", n_jobs=n_jobs).rows, truth.rows)

    def check(self) -> None:
        """Compare every file of the folder with its checksum; raise an error that names the first file that differs."""
        if isinstance(self._store, Samples):
            self._store.store.verify()

    def _embedded(self, samples: Any) -> FloatArray:
        """Embed ``samples`` if necessary; return checked rows of the embedding in the precision of the index."""
        if isinstance(samples, Measures):
            if self.model is None:
                raise InvalidInputError("a model that embeds measures", "an index without a model", NO_MODEL)
            samples = self.model.transform(samples)
        given = check_matrix("embedding", samples)
        if given.shape[1] != self.n_features:
            raise InvalidInputError(
                f"rows of {counted(self.n_features, 'feature')}, as in the index",
                f"rows of {given.shape[1]:,}",
                "embed the samples with the model of the index",
            )
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(given, dtype=self._schema.dtype)
        if rows.dtype != given.dtype:  # large float64 values become infinite in float32
            check_finite("embedding", rows)
        return rows

    def _queries(self, query: Any) -> tuple[FloatArray, Int64 | None]:
        """Return the rows to search for, and their row numbers if they are stored samples."""
        names = [query] if isinstance(query, str) else query
        if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
            distinct(names, "names to search for")
            places = find_all(names, self._store.names, "the name of a stored sample")
            own = np.array([places[name] for name in names], dtype=np.int64)
            return np.ascontiguousarray(self._loaded().take(own)), own
        return self._embedded(query), None

    def _chosen(self, method: str, n_threads: int) -> CandidateGraph | None:
        """Return a graph over all rows (from memory, from disk or newly built), or None if the search is exact."""
        large = self.n_rows >= APPROXIMATE_ROWS and self.n_rows * self.n_features >= APPROXIMATE_VALUES
        if method == "exact" or (method == "auto" and not (large and importlib.util.find_spec("faiss") is not None)):
            return None
        made = self._graph
        if made is None and isinstance(self._store, Samples):
            made = read_cache(self._store)
        if made is None:
            made = self._built(n_threads)
        before = made.n_rows
        self._graph = None  # so that an interruption leaves no half-extended graph
        made.extend(self._loaded(), n_threads)
        self._graph = made
        if made.n_rows > before * (1 + LACKING) and isinstance(self._store, Samples):
            write_cache(self._store, made)
        return made if method == "approximate" or made.recall >= RECALL else None

    def _built(self, n_threads: int) -> CandidateGraph:
        """Build a graph, store it next to the samples if the index has a folder, and return it."""
        if self.n_rows < 2:
            raise InvalidInputError("at least two samples for a graph", "one", "use method='exact'")
        self._graph = None
        self._graph = made = CandidateGraph.build(self._loaded(), n_threads)
        if isinstance(self._store, Samples):
            write_cache(self._store, made)
        return made

    def _names_of(self, rows: Int64) -> tuple[tuple[str, ...], ...]:
        names = self._store.names
        return tuple(tuple(map(names.__getitem__, each)) for each in rows.tolist())


def _check_numbers(stored: Mapping[str, Sequence[Any]], added: Mapping[str, Sequence[Any]]) -> None:
    """Raise if values added to a numeric variable are not numbers, because the column would become text."""
    for name, values in stored.items():
        texts = [value for value in added.get(name, ()) if not isinstance(value, float | int | None)]
        if texts and _column(tuple(values)).dtype == np.float64:
            raise InvalidInputError(
                f"numbers for the variable {quoted(name)}, as in the index",
                quoted(str(texts[0])),
                "give numbers, and None where a value is missing",
            )


def _check_width(n_features: int, model: DiffusionEMD) -> None:
    width = model.prepared_.layout.n_features
    if width != n_features:
        raise InvalidInputError(
            f"rows of {counted(width, 'feature')}, as in embeddings of this model",
            f"rows of {n_features:,}",
            "use the model that embedded the rows",
        )


def fingerprint(model: DiffusionEMD) -> str:
    """Return a hash that is equal for two fitted models if and only if rows of their embeddings are comparable.

    The hash covers the graph, the scales with their weights, the regions of a compact embedding, the density and the
    precision. The hash does not cover the method of the diffusion or the number of threads.

    Examples
    --------
    >>> import heatmover as hm
    >>> grid = hm.Graph.from_grid((30,))
    >>> one, same, other = (hm.DiffusionEMD(grid, max_scale=k).fit() for k in (4, 4, 5))
    >>> fingerprint(one) == fingerprint(same), fingerprint(one) == fingerprint(other)
    (True, False)
    """
    check_fitted(model)
    prepared, affinity = model.prepared_, model.graph_.node_affinity
    layout = prepared.layout
    words = [list(layout.scales), layout.n_points, layout.n_features, str(prepared.precision), bool(prepared.adjoint)]
    total = hashlib.sha256(json.dumps(words).encode())
    arrays: list[Any] = [affinity.data, affinity.indices, affinity.indptr, model.graph_.place, layout.matrix]
    for regions in layout.regions or ():
        arrays += [regions.labels, regions.centers]
    for array in arrays:
        total.update(b"none" if array is None else _plain(array))
    return total.hexdigest()


def _plain(array: Any) -> bytes:
    """Return the bytes of an array, independent of the width of its integers."""
    values = np.asarray(array)
    plain = values.astype("<i8" if values.dtype.kind in "iu" else "<f8")
    return str(plain.shape).encode() + plain.tobytes()
