"""`MeasureIndex`: the nearest of many stored measures, and their order by a dearer distance."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from heatmover._base.files import check_place
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.storage import Samples, Schema, Store, Table, parts_of
from heatmover._base.types import Float64, FloatArray, Int64
from heatmover._base.validation import (
    check_finite,
    check_integer,
    check_matrix,
    check_memory,
    check_number,
    check_option,
    check_random_state,
    check_threads,
)
from heatmover._base.words import counted, distinct, find, listed, quoted
from heatmover.atlas.index.search import RECALL, CandidateGraph, Rows, read_cache, recall, write_cache
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError, argument
from heatmover.measures import Measures, check_measures, names_of
from heatmover.transport.exact import GroundCosts, exact_pairs

__all__ = ["MeasureIndex", "Nearest", "Within", "exact_emd", "fingerprint"]

INDEX_SCHEMA, INDEX_VERSION = "heatmover-index", 1
# An atlas is an index too, of its reference samples.
OTHERS = {"heatmover-atlas": 3}
METHODS = ("auto", "exact", "approximate")
# From so many rows and values on, "auto" builds a graph. Below, the exact search takes some 10 ms per query or less.
APPROXIMATE_ROWS, APPROXIMATE_VALUES = 10_000, 2**25
# Rows that the cache on disk may lack, as a share: it is written again when it lacks more.
LACKING = 0.1
NO_MODEL = "open the index with model=, or pass rows of the embedding"


@final
@dataclass(frozen=True, eq=False)
class Nearest(ReadOnlyArrays):
    """The nearest stored samples of some queries.

    Attributes
    ----------
    distances
        ``(n_queries, k)``, ascending in each row.
    rows
        ``(n_queries, k)``: which rows of the index. Of equal distances the smaller row comes first.
    names
        Their names, per query.
    exact
        Whether all samples were considered. Else some of the nearest may be missing; the distances that are there are
        exact even then.

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
    """All stored samples within a radius of some queries.

    Attributes
    ----------
    distances, rows, names
        Per query: distances ``(n_found,)``, ascending, rows of the index, and names.

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


# The distances of a query, by its number, to some rows of the index.
Distance: TypeAlias = Callable[[int, Int64], npt.ArrayLike]


def exact_emd(
    measures: Any, queries: Any, costs: GroundCosts | npt.ArrayLike, *, n_jobs: int | None = None
) -> Distance:
    """Return the exact Earth Mover's Distance from queries to rows of an index, for `MeasureIndex.rerank`.

    Needs the extra ``exact``.

    Parameters
    ----------
    measures
        ``(n_rows, n_points)``: the measure of every row of the index, in its order.
    queries
        ``(n_queries, n_points)``: the measures that were searched for, in the order of the search.
    costs
        Of moving mass between points: an array ``(n_points, n_points)``, or a function that takes two arrays of points
        and returns the costs ``(n_sources, n_targets)`` between them.
    n_jobs
        Threads; every core for None.

    Examples
    --------
    >>> import numpy as np
    >>> places = np.arange(4.0)
    >>> distance = exact_emd(np.eye(4), np.eye(4)[:1], abs(places[:, None] - places))
    >>> distance(0, np.array([3, 1]))
    array([3., 1.])
    """
    stored, asked = (sp.csr_array(check_measures(rows)) for rows in (measures, queries))
    if stored.shape[1] != asked.shape[1]:
        raise InvalidInputError(
            f"queries on the {counted(stored.shape[1], 'point')} of the measures", f"rows of width {asked.shape[1]:,}"
        )
    ground = costs if callable(costs) else _looked_up(costs, stored.shape[1])
    n_threads = check_threads(n_jobs)

    def distance(query: int, rows: Int64) -> Float64:
        if rows.size and rows.max() >= stored.shape[0]:
            raise InvalidInputError(
                "the measure of every row of the index", f"{counted(stored.shape[0], 'measure')} and row {rows.max():,}"
            )
        both = sp.csr_array(sp.vstack([asked[[query]], stored[rows]]))
        both.sort_indices()
        return exact_pairs(both, [(0, 1 + place) for place in range(rows.size)], ground, n_threads=n_threads)

    return distance


def _looked_up(costs: npt.ArrayLike, n_points: int) -> GroundCosts:
    matrix = np.asarray(costs, dtype=np.float64)
    if matrix.shape != (n_points, n_points):
        raise InvalidInputError(f"costs ({n_points}, {n_points}) between all points", f"shape {matrix.shape}")
    if not np.isfinite(matrix).all() or matrix.min() < 0:
        raise InvalidInputError("finite, non-negative costs", "some that are not")
    return lambda sources, targets: np.ascontiguousarray(matrix[np.ix_(sources, targets)])


def _reranked(listed: Nearest, distance: Distance, k: int) -> Nearest:
    """Return the k nearest of a candidate list by another distance."""
    distances, rows, names = [], [], []
    for query, candidates in enumerate(listed.rows):
        values = _values(distance, query, candidates)
        order = np.lexsort((candidates, values))[:k]
        distances.append(values[order])
        rows.append(candidates[order])
        names.append(tuple(listed.names[query][place] for place in order))
    return Nearest(np.array(distances), np.array(rows), tuple(names), exact=False)


def _values(distance: Distance, query: int, candidates: Int64) -> Float64:
    values = np.asarray(distance(query, candidates), dtype=np.float64)
    if values.shape != candidates.shape:
        raise InvalidInputError(counted(candidates.size, "distance"), f"an array of shape {values.shape}")
    if np.isnan(values).any():
        raise InvalidInputError("distances without NaN", f"{int(np.isnan(values).sum())} of query {query}")
    return values


@final
class _Memory:
    """Names and variables of an index that is not on disk; the face of `Samples` that searches need."""

    def __init__(self, schema: Schema) -> None:
        self.schema, self.names = schema, list[str]()
        self._row_of: dict[str, int] = {}
        self._columns: list[Mapping[str, Any]] = []

    @property
    def n_rows(self) -> int:
        return len(self.names)

    def append(self, table: Table) -> None:
        check_finite("embedding", table.rows)
        taken = [name for name in table.names if name in self._row_of]
        if taken:
            raise InvalidInputError(
                "names that are not taken", f"{listed(taken)} in the index already", "give every sample a new name"
            )
        self._row_of.update(zip(table.names, range(self.n_rows, self.n_rows + len(table.names)), strict=True))
        self._columns.append(table.variables)
        self.names.extend(table.names)

    def row(self, name: str) -> int:
        return self._row_of[name if name in self._row_of else find(name, self.names, "the name of a stored sample")]

    def variables(self) -> dict[str, tuple[Any, ...]]:
        return {name: tuple(chain(*(part[name] for part in self._columns))) for name in self.schema.variables}


def _column(values: tuple[Any, ...]) -> npt.NDArray[Any]:
    """Return numbers as float64, with NaN where one is missing, and any other values as they are."""
    known = [value for value in values if value is not None]
    # A whole number that float64 cannot hold would come back as another one.
    numbers = all(type(value) is float or (type(value) is int and float(value) == value) for value in known)
    return np.array(values, dtype=np.float64 if known and numbers else object)


@final
class MeasureIndex:
    """Stored measures among which the nearest are found, under the L1 distance of their embedding.

    `from_embedding` or `from_measures` makes one, in memory or in a folder; `open` opens a folder. What is in a folder
    is safe: an addition is there completely or not at all, whenever its process ends, and one process writes at a time.

    Attributes
    ----------
    n_rows, n_features
        How many samples, and the width of their rows.
    names
        Of the samples, in order.
    model
        The fitted model that embeds queries, or None.
    path
        The folder, or None.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.ring(40, points_per_measure=25)
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10))
    >>> measures = data.measures()
    >>> index = hm.MeasureIndex.from_measures(model.fit(measures), measures)
    >>> index
    MeasureIndex(40 samples x ... features, in memory)

    The nearest of a stored sample, and of a measure:

    >>> index.nearest("3", k=2).names
    (('2', '20'),)
    >>> near = index.nearest(measures, k=1)
    >>> near.names[3], float(near.distances.max()), near.exact
    (('3',), 0.0, True)
    """

    def __init__(self, store: Samples | _Memory, rows: Rows | None, *, model: DiffusionEMD | None, memory: int) -> None:
        self._store, self._rows, self.model, self._memory = store, rows, model, memory
        self._graph: CandidateGraph | None = None
        # A graph must not grow while it is searched.
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
        """Make an index of the rows of an embedding.

        Parameters
        ----------
        embedding
            ``(n_samples, n_features)``; float32 and float64 are kept, everything else becomes float64.
        names
            One per sample, distinct. None: ``"0"``, ``"1"``, ...
        variables
            Metadata of the samples, numbers or text, as in `heatmover.build_atlas`; None and NaN are missing.
        model
            The fitted model that made the rows: queries may then be measures, and its fingerprint is kept.
        path
            A new folder to keep the index in. None: in memory.
        memory
            Up to so many bytes, or ``"4 GiB"``, rows of a folder are held in memory; more are read from the disk at
            every search.

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
        rows = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
        given = [str(row) for row in range(len(rows))] if names is None else names
        table = Table.checked(rows, given, variables)
        made_by = None if model is None else fingerprint(model)
        if model is not None:
            _check_width(rows.shape[1], model)
        schema = Schema(
            rows.shape[1], "float32" if rows.dtype == np.float32 else "float64", tuple(table.variables), made_by
        )
        if path is None:
            held = _Memory(schema)
            held.append(table)
            return cls(held, Rows(len(rows), np.array(rows, order="C"), None), model=model, memory=limit)
        parts, values = parts_of(table, schema), {"samples": schema.values()}
        store = Store.create(check_place(path, "an index"), INDEX_SCHEMA, INDEX_VERSION, parts, values=values)
        return cls(Samples(store), None, model=model, memory=limit)

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
        """Embed measures with a fitted model and make an index of them.

        Parameters
        ----------
        model
            Fitted.
        measures
            ``(n_samples, n_points)``, as `DiffusionEMD.transform` takes them.
        names
            None: the measures' own.
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
        cls,
        path: str | os.PathLike[str],
        *,
        model: DiffusionEMD | None = None,
        memory: int | float | str = "4 GiB",
    ) -> MeasureIndex:
        """Open the index in a folder.

        Parameters
        ----------
        path
            Of the folder.
        model
            The fitted model that made the rows, if queries are to be measures; another one is refused.
        memory
            As in `from_embedding`.

        Returns
        -------
        MeasureIndex
            Of the latest generation; `refresh` takes in what is added later.
        """
        limit = check_memory(memory)
        samples = Samples(Store.open(check_place(path, "an index"), {INDEX_SCHEMA: INDEX_VERSION, **OTHERS}))
        if model is not None:
            made_by = fingerprint(model)
            _check_width(samples.schema.n_features, model)
            if samples.schema.model not in (None, made_by):
                raise InvalidInputError(
                    "the model that made the rows of the index",
                    "another one (its graph, scales, regions, density or precision differ)",
                    "fit it as it was, or make a new index",
                )
        return cls(samples, None, model=model, memory=limit)

    @property
    def n_rows(self) -> int:
        """Number of samples."""
        return self._store.n_rows

    @property
    def n_features(self) -> int:
        """Width of the rows."""
        return self._store.schema.n_features

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the samples, in order."""
        return tuple(self._store.names)

    @property
    def path(self) -> Path | None:
        """The folder, or None."""
        return self._store.store.folder if isinstance(self._store, Samples) else None

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        place = "in memory" if self.path is None else f"in {str(self.path)!r}"
        return f"MeasureIndex({counted(self.n_rows, 'sample')} x {counted(self.n_features, 'feature')}, {place})"

    def row(self, name: str) -> int:
        """Return the row of a stored sample, or raise with the nearest name."""
        return self._store.row(name)

    def variables(self, rows: npt.ArrayLike | None = None) -> dict[str, Any]:
        """Return the variables of the samples, or of some rows of the index.

        Parameters
        ----------
        rows
            Rows of the index, of any shape such as `Nearest.rows`. None: all.

        Returns
        -------
        dict
            By name, arrays of the shape of ``rows``: float64 with NaN if all values are numbers, else objects and None.

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
        return {name: _column(values)[places] for name, values in self._store.variables().items()}

    def add(
        self,
        samples: Any,
        *,
        names: Sequence[object] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Add samples. Nothing is rebuilt, and nothing has changed if it fails.

        Parameters
        ----------
        samples
            Rows of the embedding ``(n_samples, n_features)``, or `Measures` for the index's model.
        names
            New ones, one per sample. None: those of the measures, else their rows' numbers.
        variables
            Those that the index has, as in `from_embedding`.

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
            table = Table.checked(rows, given, variables).fitted(self._store.schema)
            _check_numbers(self._store.variables(), table.variables)
            if isinstance(self._store, Samples):
                self._move(self._store.append(table))
            else:
                before = self._loaded().resident
                assert before is not None
                self._store.append(table)
                self._rows = Rows(self._store.n_rows, np.vstack([before, rows]), None)

    def refresh(self) -> None:
        """Take in what others have added to the folder since."""
        with self._lock:
            if isinstance(self._store, Samples):
                self._move(self._store.refresh())

    def _move(self, samples: Samples) -> None:
        """Go on to another generation, of whose rows only the new ones are read."""
        before = None if self._rows is None else self._rows.resident
        self._rows = None if before is None else _rows_of(samples, before, self._memory)
        self._store = samples

    def _loaded(self) -> Rows:
        """Return the rows; those of a folder are read, if they fit into memory, when they are first searched."""
        with self._lock:
            if self._rows is None:
                assert isinstance(self._store, Samples)
                self._rows = _rows_of(self._store, None, self._memory)
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
            A name or a list of names of stored samples, which are not their own neighbours; `Measures` for the index's
            model; or rows of the embedding ``(n_queries, n_features)``, rounded to the precision of the index.
        k
            How many.
        method
            ``"exact"``: all samples are considered. ``"approximate"``: those that a graph leads to, `recall` tells how
            many of the nearest are found; needs the extra ``search``. ``"auto"``: approximate from 10,000 samples and
            33 million values on, if the extra is installed and the graph was measured to find 98 % of the ten nearest.
            The first approximate search builds the graph, see `build`.
        n_jobs
            Threads; every core for None. The result has the same bits for any number.

        Returns
        -------
        Nearest
        """
        check_option("method", method, METHODS)
        n_threads = check_threads(n_jobs)
        queries, own = self._queries(query)
        k = self._check_k(k, own)
        with self._lock:
            rows, graph = self._loaded(), self._chosen(method, n_threads)
            if graph is None:
                distances, near = rows.nearest(queries, k, own, n_threads)
            else:
                distances, near = graph.nearest(rows, queries, k, own, n_threads)
        return Nearest(distances, near, self._names_of(near), exact=graph is None)

    def within(self, query: Any, radius: float, *, n_jobs: int | None = None) -> Within:
        """Find all stored samples that are at most ``radius`` away from every query; always exact.

        Parameters
        ----------
        query
            As in `nearest`.
        radius
            At least 0.
        n_jobs
            Threads; every core for None.

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
        """Order a candidate list by another distance, such as the exact Earth Mover's Distance, and keep its k nearest.

        Parameters
        ----------
        candidates
            A candidate list, such as ``index.nearest(query, 50)``.
        distance
            A function that takes the number of a query and rows of the index, and returns their distances;
            `heatmover.atlas.index.exact_emd` makes one.
        k
            At most as many as there are candidates.

        Returns
        -------
        Nearest
            With those distances; never called exact, because a sample that is not in the candidate list may be nearer.

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
        return _reranked(candidates, distance, k)

    def build(self, *, n_jobs: int | None = None) -> float:
        """Build the graph of the approximate search now, anew if there is one, and return its recall.

        It takes as long as some thousand exact searches. In a folder the graph is written beside the samples, from
        where the next `open` reads it. It is not needed for samples that are added later; but groups of columns and
        the length of the search were chosen for the samples that were there.

        Parameters
        ----------
        n_jobs
            Threads; every core for None. They do not change the graph.

        Returns
        -------
        float
            The share of the ten nearest that the search found, of 200 samples that are not in the graph.
        """
        with self._lock:
            self._check_size()
            self._graph = None
            made = CandidateGraph.build(self._loaded(), check_threads(n_jobs))
            self._graph = made
            if isinstance(self._store, Samples):
                write_cache(self._store, made)
            return made.recall

    def recall(
        self,
        k: int = 10,
        *,
        sample: int = 100,
        query: Any = None,
        n_jobs: int | None = None,
        random_state: int | np.random.Generator | None = 0,
    ) -> float:
        """Measure which share of the k nearest the approximate search finds.

        Parameters
        ----------
        k
            How many neighbours.
        sample
            How many stored samples, drawn at random, to search for.
        query
            What to search for instead, as in `nearest`: new samples are a little harder to find neighbours for than
            stored ones.
        n_jobs
            Threads; every core for None.
        random_state
            Of the draw.

        Returns
        -------
        float
            1 if none is missing.
        """
        if query is None:
            count = check_integer("sample", sample, minimum=1)
            drawn = check_random_state(random_state).permutation(self.n_rows)[: min(count, self.n_rows)]
            names = self._store.names
            query = [names[row] for row in np.sort(drawn).tolist()]
        truth = self.nearest(query, k, method="exact", n_jobs=n_jobs)
        return recall(self.nearest(query, k, method="approximate", n_jobs=n_jobs).rows, truth.rows)

    def check(self) -> None:
        """Compare every file of the folder with its checksum; an error names the first that differs."""
        if isinstance(self._store, Samples):
            self._store.store.verify()

    def _embedded(self, samples: Any) -> FloatArray:
        """Return rows of the embedding in the precision of the index, checked."""
        if isinstance(samples, Measures):
            if self.model is None:
                raise InvalidInputError("a model that embeds measures", "an index without one", NO_MODEL)
            samples = self.model.transform(samples)
        given = check_matrix("embedding", samples)
        if given.shape[1] != self.n_features:
            raise InvalidInputError(
                f"rows of {counted(self.n_features, 'feature')}, as the index has",
                f"rows of {given.shape[1]:,}",
                "embed them with the model of the index",
            )
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(given, dtype=self._store.schema.dtype)
        if rows.dtype != given.dtype:  # what was finite may not be in another precision
            check_finite("embedding", rows)
        return rows

    def _queries(self, query: Any) -> tuple[FloatArray, Int64 | None]:
        """Return the rows to search for and, for stored samples, which rows they are."""
        names = [query] if isinstance(query, str) else query
        if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
            distinct(names, "names to search for")
            own = np.array([self.row(name) for name in names], dtype=np.int64)
            return np.ascontiguousarray(self._loaded().take(own)), own
        return self._embedded(query), None

    def _check_k(self, k: object, own: Int64 | None) -> int:
        count = check_integer("k", k, minimum=1)
        available = self.n_rows - (own is not None)
        if count > available:
            raise InvalidInputError(
                f"k of at most {available:,}",
                f"k={count:,} with {counted(self.n_rows, 'stored sample')}",
                "a sample is not its own neighbour" if own is not None else "",
            )
        return count

    def _check_size(self) -> None:
        if self.n_rows < 2:
            raise InvalidInputError("at least two samples for a graph", "one", "use method='exact'")

    def _chosen(self, method: str, n_threads: int) -> CandidateGraph | None:
        """Return the graph, up to date, if it is to be used."""
        if method == "exact":
            return None
        if method == "auto" and not (self._is_large() and importlib.util.find_spec("faiss") is not None):
            return None
        self._check_size()
        made = self._ready(n_threads)
        return made if method == "approximate" or made.recall >= RECALL else None

    def _is_large(self) -> bool:
        return self.n_rows >= APPROXIMATE_ROWS and self.n_rows * self.n_features >= APPROXIMATE_VALUES

    def _ready(self, n_threads: int) -> CandidateGraph:
        """Return the graph with all rows in it: the one at hand, the one on disk, or a new one."""
        made, on_disk = self._graph, 0
        if made is None and isinstance(self._store, Samples):
            made = read_cache(self._store)
            on_disk = 0 if made is None else made.n_rows
        if made is None:
            self.build(n_jobs=n_threads)
            assert self._graph is not None
            return self._graph
        if made is not self._graph or made.n_rows < self.n_rows:
            self._graph = None  # an interrupted extension leaves nothing behind
            made.extend(self._loaded(), n_threads)
            self._graph = made
            if on_disk and made.n_rows > on_disk * (1 + LACKING) and isinstance(self._store, Samples):
                write_cache(self._store, made)
        return made

    def _names_of(self, rows: Int64) -> tuple[tuple[str, ...], ...]:
        names = self._store.names
        return tuple(tuple(map(names.__getitem__, each)) for each in rows.tolist())


def _check_numbers(stored: Mapping[str, Sequence[Any]], added: Mapping[str, Sequence[Any]]) -> None:
    """Raise if what is added to a variable of numbers is none: its column would no longer be one of numbers."""
    for name, values in stored.items():
        strangers = [value for value in added[name] if not isinstance(value, float | int | None)]
        if strangers and _column(tuple(values)).dtype == np.float64:
            raise InvalidInputError(
                f"numbers for the variable {quoted(name)}, as the index has them",
                quoted(str(strangers[0])),
                "give numbers, and None where a value is missing",
            )


def _check_width(n_features: int, model: DiffusionEMD) -> None:
    width = model.prepared_.layout.n_features
    if width != n_features:
        raise InvalidInputError(
            f"rows of {counted(width, 'feature')}, as the model makes them",
            f"rows of {n_features:,}",
            "use the model that embedded them",
        )


def _rows_of(samples: Samples, before: FloatArray | None, memory: int) -> Rows:
    """Return the rows of a store, in memory if they fit; ``before`` are the first of them, if those are there."""
    schema = samples.schema
    if samples.n_rows * schema.n_features * np.dtype(schema.dtype).itemsize > memory:
        return Rows(samples.n_rows, None, samples)
    known = 0 if before is None else len(before)
    resident = np.empty((samples.n_rows, schema.n_features), dtype=schema.dtype)
    resident[:known] = resident[:0] if before is None else before
    for first, block in Rows(samples.n_rows, None, samples).blocks(known):
        resident[first : first + len(block)] = block
    return Rows(samples.n_rows, resident, samples)


# Whether rows come from one model: a fingerprint of what defines an embedding.


def fingerprint(model: DiffusionEMD) -> str:
    """Return a text that two fitted models share if their embeddings have the same columns, and else do not.

    It covers the graph, the scales with their weights, the regions of a compact embedding, the density and the
    precision; not how the heat is computed, nor with how many threads.

    Examples
    --------
    >>> import heatmover as hm
    >>> grid = hm.Graph.from_grid((30,))
    >>> one, same, other = (hm.DiffusionEMD(grid, max_scale=k).fit() for k in (4, 4, 5))
    >>> fingerprint(one) == fingerprint(same), fingerprint(one) == fingerprint(other)
    (True, False)
    """
    if not isinstance(model, DiffusionEMD):
        raise InvalidInputError("a fitted DiffusionEMD as model", type(model).__name__)
    check_is_fitted(model)
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
    """Return an array as bytes that do not depend on the width of its integers."""
    values = np.asarray(array)
    plain = values.astype("<i8" if values.dtype.kind in "iu" else "<f8")
    return str(plain.shape).encode() + plain.tobytes()
