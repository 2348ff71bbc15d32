"""Random corruptions of a saved atlas: none may load silently wrong, none may crash the process.

An atlas is saved and a sample added to it; then, again and again, something of it is damaged at random, it is loaded,
and the damage is undone. Damages flip a bit, change, drop, insert, repeat or swap bytes, cut a file, empty it, delete
it, swap two files, copy one over another, add one, or put a link in the place of one. Verdicts:

- rejected: `InvalidInputError`, one sentence;
- same: the damage changed nothing (equal bytes), and the atlas answers as before;
- silent: it loaded although something had changed;
- foreign: another error.

Only the first two are right. A crash ends the benchmark, which is then a failure too.

    python benchmarks/corruption.py --record          # 10,000 damages
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from provenance import add_record, write_table

import heatmover as hm
from heatmover.errors import InvalidInputError

# Damages a file and perhaps another, which it returns.
Damage = Callable[[Path, np.random.Generator], Path | None]


def flip(path: Path, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def change(path: Path, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    first, last = _part(len(content), rng)
    content[first:last] = rng.bytes(last - first)
    path.write_bytes(content)


def drop(path: Path, rng: np.random.Generator) -> None:
    content = path.read_bytes()
    first, last = _part(len(content), rng)
    path.write_bytes(content[:first] + content[last:])


def insert(path: Path, rng: np.random.Generator) -> None:
    content = path.read_bytes()
    place = int(rng.integers(len(content) + 1))
    path.write_bytes(content[:place] + rng.bytes(int(rng.integers(1, 9))) + content[place:])


def swap_bytes(path: Path, rng: np.random.Generator) -> None:
    content = path.read_bytes()
    first, last = _part(len(content), rng)
    middle = int(rng.integers(first, last + 1))
    path.write_bytes(content[:first] + content[middle:last] + content[first:middle] + content[last:])


def cut(path: Path, rng: np.random.Generator) -> None:
    os.truncate(path, int(rng.integers(path.stat().st_size)))


def empty(path: Path, rng: np.random.Generator) -> None:  # noqa: ARG001
    os.truncate(path, 0)


def delete(path: Path, rng: np.random.Generator) -> None:  # noqa: ARG001
    path.unlink()


def swap_files(path: Path, rng: np.random.Generator) -> Path:
    other = _other(path, rng)
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)
    return other


def copy_over(path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(_other(path, rng).read_bytes())


def add_file(path: Path, rng: np.random.Generator) -> Path:
    other = path.parent / f"extra{rng.integers(10)}"
    other.write_bytes(rng.bytes(10))
    return other


def link(path: Path, rng: np.random.Generator) -> None:
    other = _other(path, rng)
    path.unlink()
    path.symlink_to(other)


DAMAGES: dict[str, Damage] = {
    "bit flipped": flip,
    "bytes changed": change,
    "bytes dropped": drop,
    "bytes inserted": insert,
    "bytes swapped": swap_bytes,
    "file cut": cut,
    "file emptied": empty,
    "file deleted": delete,
    "files swapped": swap_files,
    "file copied over another": copy_over,
    "file added": add_file,
    "link in its place": link,
}


def _part(size: int, rng: np.random.Generator) -> tuple[int, int]:
    """A part of at most 64 bytes, at least one."""
    first = int(rng.integers(size))
    return first, min(size, first + int(rng.integers(1, 65)))


def _files(store: Path) -> list[Path]:
    # The lock holds nothing: whatever is in it, it means the same.
    return sorted(path for path in store.rglob("*") if path.is_file() and path.name != ".lock")


def _other(path: Path, rng: np.random.Generator) -> Path:
    store = next(parent for parent in path.parents if parent.suffix == ".atlas")
    files = [other for other in _files(store) if other != path]
    return files[rng.integers(len(files))]


def contents(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def verdict(store: Path, before: dict[str, bytes], answer: bytes, cells: np.ndarray) -> str:
    try:
        found = hm.load(store).map(cells, "new").embedding.tobytes()
    except InvalidInputError:
        return "rejected"
    except Exception as error:
        return f"foreign: {type(error).__name__}"
    unchanged = contents(store) == before and not any(path.is_symlink() for path in store.rglob("*"))
    return "same" if unchanged and found == answer else "silent"


def restore(store: Path, before: dict[str, bytes], touched: list[Path]) -> None:
    for path in touched:
        path.unlink(missing_ok=True)
        content = before.get(str(path.relative_to(store)))
        if content is not None:
            path.write_bytes(content)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=10_000, help="of damages (10,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the damages (0)")
    add_record(parser)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    data = hm.datasets.cohort(6, cells_per_sample=20)
    counts: dict[str, Counter[str]] = {name: Counter() for name in DAMAGES}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "it.atlas"
        variables = {"condition": ["case"] * 3 + ["control"] * 3}
        built = hm.build_atlas(data.points, data.labels, variables=variables, landmarks=60)
        built.save(store)
        built.add(built.map(data.points[:20], "added"), {"condition": ["case"]}, path=store)
        before, cells = contents(store), data.points[:15]
        answer = hm.load(store).map(cells, "new").embedding.tobytes()
        files = _files(store)
        weighted = np.array([path.stat().st_size for path in files], dtype=float) ** 0.5
        for number in range(args.number):
            name = list(DAMAGES)[number % len(DAMAGES)]
            # Large files more often, yet every small one of metadata too.
            path = files[rng.choice(len(files), p=weighted / weighted.sum())]
            other = DAMAGES[name](path, rng)
            counts[name][verdict(store, before, answer, cells)] += 1
            restore(store, before, [path] if other is None else [path, other])
        assert contents(store) == before
    kinds = sorted({kind for found in counts.values() for kind in found} | {"rejected", "same", "silent"})
    rows = [[name, sum(found.values()), *(found[kind] for kind in kinds)] for name, found in counts.items()]
    total = Counter(kind for found in counts.values() for kind in found.elements())
    rows.append(["all", args.number, *(total[kind] for kind in kinds)])
    note = (
        'Each trial damages a saved atlas at random and then loads the atlas. "Rejected" means that loading raised an '
        'error that states in one sentence what is wrong. "Same" means that the damage left every byte unchanged. '
        '"Silent" counts loads with wrong values. An error raised by another library would also be a failure.'
    )
    write_table("corruption", ["damage", "times", *kinds], rows, note, folder=args.record)
    return int(total["rejected"] + total["same"] != args.number)


if __name__ == "__main__":
    sys.exit(main())
