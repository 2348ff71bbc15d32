"""What has been diffused, kept for a while: models that differ only in what they weigh need not diffuse again.

The number of scales, alpha, the norm and the weights say what becomes of densities; they change none of them. A search
over these parameters therefore fits many models that diffuse the same measures on the same graph. Clones of one
estimator share what is kept here. A key names everything that a value depends on, by content: no key ever stands for
another value, so that nothing can be out of date, and a model has the same bits with and without.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeVar, final
from uuid import uuid4
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp

from heatmover._typing import Float64
from heatmover.diffusion.operator import Block, Diffuser
from heatmover.graphs import Graph
from heatmover.storage import Record

__all__ = ["DEFAULT_MEMORY", "RememberingDiffuser", "SharedDiffusion", "digest", "digest_of_record"]

Value = TypeVar("Value")

# The paper's swiss roll, 100 measures on 10,000 points at ten scales, takes 400 MB in float32.
DEFAULT_MEMORY = 512 * 2**20


@final
class SharedDiffusion:
    """Values by their keys, at most as many as the memory allows: those that were not used for longest go first.

    Threads may share it. A pickle of it, and so every other process, begins empty.

    Parameters
    ----------
    memory
        Bytes that all values may take together.

    Examples
    --------
    >>> shared = SharedDiffusion(1_000)
    >>> [shared.computed("ones", lambda: np.ones(10)).tolist()[:2] for _ in range(2)], shared.n_hits
    ([[1.0, 1.0], [1.0, 1.0]], 1)
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.n_hits = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._used = 0
        self._names: WeakKeyDictionary[Graph, str] = WeakKeyDictionary()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[SharedDiffusion], tuple[int]]:
        return SharedDiffusion, (self.memory,)

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedDiffusion:
        return self

    @property
    def used(self) -> int:
        """Bytes that the values take, about."""
        return self._used

    def name_of(self, graph: Graph) -> str:
        """Return a name for a graph, which never changes, that no other graph has in any process."""
        with self._lock:
            return self._names.setdefault(graph, uuid4().hex)

    def get(self, key: Hashable) -> Any | None:
        """Return the value of a key, or None if it is not there any more."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            self.n_hits += 1
            return self._entries[key][0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keep a value of ``size`` bytes, unless all the memory would not hold it."""
        if size > self.memory:
            return
        with self._lock:
            self._used += size - self._entries.pop(key, (None, 0))[1]
            self._entries[key] = value, size
            while self._used > self.memory:
                self._used -= self._entries.popitem(last=False)[1][1]

    def computed(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value of a key, which is computed if it is not there; two threads may both compute it."""
        known = self.get(key)
        if known is None:
            known = compute()
            self.put(key, known, _size(known))
        return known


@final
@dataclass(frozen=True, eq=False)
class RememberingDiffuser(Diffuser):
    """A diffuser that diffuses only what nobody has diffused before.

    That works because the density of a column depends on nothing but this column and its scale, in every bit.

    Attributes
    ----------
    inner
        Diffuses.
    shared
        Keeps the densities.
    key
        Names the inner diffuser.
    """

    inner: Diffuser
    shared: SharedDiffusion
    key: Hashable

    @property
    def operator(self) -> Any:  # type: ignore[override]
        """The diffusion operator."""
        return self.inner.operator

    def shared_by(self, n_threads: int) -> RememberingDiffuser | None:
        """Return this one around an inner diffuser that threads share, if it can be; see `Diffuser.shared_by`."""
        inner = self.inner.shared_by(n_threads)
        return None if inner is None else replace(self, inner=inner)

    def diffuse(self, masses: Block, scales: range) -> Iterator[Block]:
        """Yield the densities at the given scales; see `Diffuser.diffuse`."""
        columns = np.ascontiguousarray(masses.T)
        names = [digest([column]) for column in columns]
        known: list[dict[int, Block]] = [{} for _ in names]
        for name, densities in zip(names, known, strict=True):
            for scale in scales:
                density = self.shared.get((self.key, name, scale))
                if density is not None:
                    densities[scale] = density
        self._complete(columns, scales, names, known)
        for scale in scales:
            yield np.stack([densities.pop(scale) for densities in known], axis=1)

    def _complete(self, columns: Block, scales: range, names: list[bytes], known: list[dict[int, Block]]) -> None:
        """Diffuse the columns of which a density is missing, at the scales between the first and the last missing."""
        missing = [i for i, densities in enumerate(known) if len(densities) < len(scales)]
        if not missing:
            return
        absent = [scale for scale in scales if any(scale not in known[i] for i in missing)]
        between = range(absent[0], absent[-1] + 1)
        for scale, density in zip(between, self.inner.diffuse(columns[missing].T, between), strict=True):
            rows = np.ascontiguousarray(density.T)
            for row, i in zip(rows, missing, strict=True):
                known[i][scale] = own = row.copy()  # a view would keep all rows
                own.flags.writeable = False
                self.shared.put((self.key, names[i], scale), own, own.nbytes)

    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield density after density, nothing remembered; see `Diffuser.diffuse_progressively`."""
        return self.inner.diffuse_progressively(masses)

    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Return the transpose of `diffuse`, nothing remembered; see `Diffuser.collect`."""
        return self.inner.collect(blocks, scales)

    def error_bound(self, scales: range) -> Float64:
        """Return the bound of the inner diffuser."""
        return self.inner.error_bound(scales)

    def to_record(self) -> Record:
        """Return the inner diffuser as a record: what is remembered is never stored."""
        return self.inner.to_record()


def digest(arrays: Iterable[Any]) -> bytes:
    """Return a hash of arrays, dense or CSR, with their types and shapes."""
    total = hashlib.blake2b(digest_size=20)
    for array in arrays:
        parts = [array.data, array.indices, array.indptr] if sp.issparse(array) else [np.asarray(array)]
        total.update(repr((array.shape, [part.dtype.str for part in parts])).encode())
        for part in parts:
            total.update(np.ascontiguousarray(part).view(np.uint8).data)
    return total.digest()


def digest_of_record(record: Record) -> bytes:
    """Return a hash of a record: its values, its arrays and those of its parts."""
    total = hashlib.blake2b(json.dumps(record.values, sort_keys=True).encode(), digest_size=20)
    for name, array in sorted(record.arrays.items()):
        total.update(name.encode() + b"\0" + digest([array]))
    for name, part in sorted(record.parts.items()):
        total.update(name.encode() + b"\0" + digest_of_record(part))
    return total.digest()


def _size(value: Any) -> int:
    """Return how many bytes the arrays within a value take, each counted once."""
    seen: dict[int, Any] = {}
    waiting, total = [value], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, str | bytes | int | float | type | None):
            continue
        seen[id(one)] = one
        if isinstance(one, np.ndarray):
            total += one.nbytes
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one
        else:
            waiting += getattr(one, "__dict__", {}).values()
    return total
