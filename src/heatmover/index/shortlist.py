"""Shortlists: likely neighbours from a graph of faiss over sums of columns, which a search then compares in full.

Sums of columns that rise and fall together keep most of an L1 distance (`heatmover.embedding.neighbors`): 64 of them
replace thousands of features. faiss links every row of sums to near ones (HNSW), and a search walks along these
links. How long it walks is measured when the graph is built: rows that are not in it yet are searched for, as new
samples will be, until 99 % of their true neighbours are found.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._files import replacing, sync
from heatmover._threads import in_threads
from heatmover._typing import Float64, FloatArray, Int64
from heatmover._validation import import_extra
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.neighbors import Groups, learn_groups, sum_of_groups
from heatmover.errors import InvalidInputError
from heatmover.index.rows import Rows, without
from heatmover.storage import Samples, sealed, unsealed, writing

__all__ = ["RECALL", "Shortlist", "read_cache", "recall", "write_cache"]

Float32 = npt.NDArray[np.float32]

# Links of a row of sums at the lowest level, and rows that are looked at to find them. 50,000 samples of 100 patients,
# 48 candidates of queries from other patients: 98.5 % of the ten nearest with 120 rows looked at, 99.8 % with 200.
N_LINKS, BUILD_EFFORT = 16, 200
# Sums of a row, and bytes of the rows that they are learnt from. 50,000 rows of 512 features on a curved surface: 99 %
# of the ten nearest with 32 candidates by 128 sums, and 94 % by 64.
N_SUMS, SAMPLE_BYTES = 128, 2**26
# Rows that measure the recall, of how many neighbours, and what is asked of it: more than is promised, because 200 rows
# tell it to half a per cent.
N_TRIED, N_NEIGHBORS = 200, 10
ASKED, RECALL = 0.99, 0.98
# Candidates per query that are tried in turn. Fewer can do for rows like those that are stored, but not for new ones of
# another kind, such as the queries from other patients above.
EFFORTS = (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
# Sums are clipped here: what is farther is not near, and infinite differences would be NaN.
FARTHEST = 1e30
# Rows that are added up at a time, so that what lies between stays in the cache.
SUMMED_ROWS = 128


@final
@dataclass(eq=False)
class Shortlist:
    """A graph over the rows of an index that lists likely neighbours; `build` makes one.

    Attributes
    ----------
    groups
        Of columns that are added up; None if there are so few that every column is a sum.
    center, unit
        What is taken from sums, ``(n_sums,)``, and a power of two that they are divided by to stay within float32.
    graph
        Of faiss.
    rows
        Which row each node of the graph is, ``(n_rows,)``.
    effort
        Candidates per query for up to ten neighbours.
    recall
        Share of the ten nearest that this found for rows that were not in the graph.
    """

    groups: Groups | None
    center: Float64
    unit: float
    graph: Any
    rows: Int64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    effort: int = EFFORTS[0]
    recall: float = 0.0

    @property
    def n_rows(self) -> int:
        """Rows that are in it."""
        return self.rows.size

    @classmethod
    def build(cls, rows: Rows, n_threads: int) -> Shortlist:
        """Learn sums from a sample, link all rows and measure how far to search; all draws have a fixed seed."""
        drawn = np.random.default_rng(0).permutation(rows.n_rows)
        width = rows.take(drawn[:1]).nbytes
        sample = rows.take(np.sort(drawn[: max(4 * N_TRIED, SAMPLE_BYTES // width)]))
        groups = learn_groups(sample, N_SUMS)
        largest = float(np.abs(sample).sum(axis=1, dtype=np.float64).max())
        unit = math.ldexp(1.0, min(math.frexp(largest)[1], 1000)) if largest > 0 else 1.0
        center = _added(sample, groups).mean(axis=0)
        made = cls(groups, center, unit, _faiss().IndexHNSWFlat(center.size, N_LINKS, _faiss().METRIC_L1))
        made.graph.hnsw.efConstruction = BUILD_EFFORT
        # In a random order: rows of one kind are often neighbours in a file, and links between kinds come from rows
        # that were linked when there were few.
        sums = np.vstack([made._sums(block, n_threads) for _, block in rows.blocks()])
        tried = drawn[: min(N_TRIED, max(1, rows.n_rows // 10))]
        made._add(drawn[tried.size :], sums[drawn[tried.size :]])
        made._calibrate(rows, tried, n_threads)
        made._add(tried, sums[tried])
        return made

    def extend(self, rows: Rows, n_threads: int) -> None:
        """Put rows in that are not in it yet."""
        for first, block in rows.blocks(self.n_rows):
            self._add(np.arange(first, first + len(block)), self._sums(block, n_threads))

    def _add(self, rows: Int64, sums: Float32) -> None:
        with _threads_of_faiss(1):  # several would link rows in an order that chance decides
            self.graph.add(sums)
        self.rows = np.concatenate([self.rows, rows])

    def _calibrate(self, rows: Rows, tried: Int64, n_threads: int) -> None:
        """Find the fewest candidates with which enough of the neighbours of rows outside the graph are found."""
        k = min(N_NEIGHBORS, self.n_rows)
        queries = rows.take(tried)
        every = rows.nearest(queries, min(k + tried.size, rows.n_rows), None, n_threads)[1]
        truth = np.array([near[~np.isin(near, tried)][:k] for near in every])
        for self.effort in EFFORTS:
            found = self.nearest(rows, queries, k, None, n_threads)[1]
            self.recall = recall(found, truth)
            if self.recall >= ASKED or self.effort >= rows.n_rows:
                break

    def nearest(
        self, rows: Rows, queries: FloatArray, k: int, own: Int64 | None, n_threads: int
    ) -> tuple[Float64, Int64]:
        """Return distances and rows of k near rows of every query, as `Rows.nearest` does for the nearest.

        Distances have the same bits as there. Where fewer than k are found, all rows are searched.
        """
        wanted = k if own is None else k + 1
        count = min(math.ceil(self.effort * max(1.0, wanted / N_NEIGHBORS)), self.n_rows)
        sums = self._sums(queries, n_threads)
        with _threads_of_faiss(n_threads):
            nodes = self.graph.search(sums, count, params=_faiss().SearchParametersHNSW(efSearch=count))[1]
        distances, indices = np.empty((len(queries), wanted)), np.empty((len(queries), wanted), dtype=np.int64)

        def compare(part: range) -> None:
            for query in part:
                near = np.sort(self.rows[nodes[query][nodes[query] >= 0]])
                if near.size < wanted:
                    distances[[query]], indices[[query]] = rows.nearest(queries[[query]], wanted, None, 1)
                    continue
                away = pairwise_distances(queries[[query]], rows.take(near), n_jobs=1)[0]
                order = np.argsort(away, kind="stable")[:wanted]
                distances[query], indices[query] = away[order], near[order]

        size = -(-len(queries) // n_threads)
        in_threads(
            compare,
            [range(start, min(start + size, len(queries))) for start in range(0, len(queries), size)],
            n_threads,
        )
        return (distances, indices) if own is None else without(distances, indices, own, k)

    def _sums(self, rows: FloatArray, n_threads: int) -> Float32:
        """Return the sums of rows, ``(n_rows, n_sums)``."""
        short = np.empty((len(rows), self.center.size), dtype=np.float32)

        def fill(start: int) -> None:
            part = slice(start, start + SUMMED_ROWS)
            values = (_added(rows[part], self.groups) - self.center) / self.unit
            short[part] = np.clip(values, -FARTHEST, FARTHEST)

        in_threads(fill, range(0, len(rows), SUMMED_ROWS), n_threads)
        return short

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays, from which `restored` makes it again."""
        groups = self.groups
        parts = {} if groups is None else {"columns": groups.columns, "signs": groups.signs, "starts": groups.starts}
        numbers = np.array([self.unit, self.effort, self.recall])
        graph = _faiss().serialize_index(self.graph)
        return {"graph": graph, "rows": self.rows, "center": self.center, "numbers": numbers, **parts}

    @classmethod
    def restored(cls, arrays: dict[str, npt.NDArray[Any]]) -> Shortlist:
        """Make it from arrays that were checked; `extend` makes it ready."""
        names = ("columns", "signs", "starts")
        groups = Groups(*(arrays[name] for name in names)) if "columns" in arrays else None
        unit, effort, found = arrays["numbers"].tolist()
        graph = _faiss().deserialize_index(arrays["graph"])
        return cls(groups, arrays["center"], unit, graph, arrays["rows"], int(effort), found)


def _added(rows: FloatArray, groups: Groups | None) -> Float64:
    return rows.astype(np.float64) if groups is None else sum_of_groups(rows, groups)


def recall(found: Int64, truth: Int64) -> float:
    """Return the share of the true neighbours ``(n_queries, k)`` that were found."""
    return float(np.mean([np.isin(right, got).mean() for got, right in zip(found, truth, strict=True)]))


def _faiss() -> Any:
    return import_extra("faiss", package="faiss-cpu", extra="search")


@contextmanager
def _threads_of_faiss(n_threads: int) -> Iterator[None]:
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n_threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


# The graph of an index beside its samples: a cache, checked before it is read, and made again if it is not whole.


FOLDER, POINTER = "search", "search.json"
FORMAT, VERSION = "heatmover search", 3
PLACE = re.compile(r"[0-9a-f]{32}")


def read_cache(samples: Samples) -> Shortlist | None:
    """Return the graph that lies beside the samples, without rows that came later; None if it is missing or unsound.

    Nothing is given to faiss before its SHA-256 has been compared: it trusts what it reads.
    """
    try:
        about = unsealed((samples.store.folder / POINTER).read_bytes())
        if about["format"] != FORMAT or about["version"] != VERSION or not PLACE.fullmatch(about["place"]):
            return None
        if about["n_rows"] > samples.n_rows or about["lineage"] != samples.lineage(about["n_rows"]):
            return None
        place = samples.store.folder / FOLDER / about["place"]
        arrays = {name: _read(place / f"{name}.npy", checksum) for name, checksum in about["sha256"].items()}
        return Shortlist.restored(arrays)
    # No cache, a damaged one, or one of another version: each is made again.
    except Exception:
        return None


def _read(path: Path, checksum: str) -> npt.NDArray[Any]:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise ValueError(f"{path.name} has another checksum")
    array: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def write_cache(samples: Samples, made: Shortlist) -> bool:
    """Write a graph beside the samples, and return whether that went; without room or permission, nothing changes."""
    with suppress(InvalidInputError, OSError), writing(samples.store.folder):
        top = samples.store.folder / FOLDER
        place = top / uuid.uuid4().hex
        try:
            place.mkdir(parents=True)
            checksums = {name: _write(place / f"{name}.npy", array) for name, array in made.arrays().items()}
            sync(place)
            about = {
                "format": FORMAT,
                "version": VERSION,
                "place": place.name,
                "n_rows": made.n_rows,
                "lineage": samples.lineage(made.n_rows),
                "sha256": checksums,
            }
            with replacing(samples.store.folder / POINTER, "wb") as file:
                file.write(sealed(about))
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        for other in top.iterdir():
            if other.name != place.name and PLACE.fullmatch(other.name):
                shutil.rmtree(other, ignore_errors=True)
        return True
    return False


def _write(path: Path, array: npt.NDArray[Any]) -> str:
    room = io.BytesIO()
    np.save(room, array, allow_pickle=False)
    data = room.getbuffer()
    with path.open("xb") as file:
        file.write(data)
    sync(path)
    return hashlib.sha256(data).hexdigest()
