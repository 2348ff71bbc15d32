"""anndata's own readers of elements beside heatmover's: time, memory, and what each makes of damaged files.

Every contender reads the same file in a process of its own: the rows of a sparse matrix a block after the other, a
matrix stored by columns, and the columns of obs. Damaged files are those of soak_damage.py; anndata is asked for the
same values, checked by nothing, and what it gives is compared with a plain reading of the same bytes.

    python benchmarks/readers.py                   # time and memory, 400,000 cells
    python benchmarks/readers.py --damages 600     # what becomes of damaged files
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import soak_damage
from soak_damage import Case, Soak, Verdict, Worker

CELLS, GENES, PER_CELL = 400_000, 3_000, 100
BLOCK = 16_384
FORMATS = ["h5ad", "h5ad-csr", "h5ad-csc", "zarr2", "zarr2-csr", "zarr3", "zarr3-csc"]


# --- time and memory ---


def write(folder: Path, n_cells: int) -> None:
    """Write the same cells by rows and by columns, as h5ad and as zarr."""
    import anndata
    import pandas as pd

    rng = np.random.default_rng(0)
    indices = np.sort(rng.integers(0, GENES // PER_CELL, (n_cells, PER_CELL)) + np.arange(0, GENES, GENES // PER_CELL))
    pointers = np.arange(0, n_cells * PER_CELL + 1, PER_CELL)
    values = rng.random(n_cells * PER_CELL, dtype=np.float32)
    matrix = sp.csr_matrix((values, indices.ravel().astype(np.int32), pointers), shape=(n_cells, GENES))
    names = [f"cell{i}" for i in range(n_cells)]
    obs = pd.DataFrame({"sample": pd.Categorical(rng.choice([f"p{i}" for i in range(100)], n_cells))}, index=names)
    obs["note"] = [f"barcode-{i}" for i in range(n_cells)]  # text that differs from cell to cell
    for form, stored in (("rows", matrix), ("columns", matrix.tocsc())):
        adata = anndata.AnnData(stored, obs=obs)
        adata.write_h5ad(folder / f"{form}.h5ad", convert_strings_to_categoricals=False)
        adata.write_zarr(folder / f"{form}.zarr", convert_strings_to_categoricals=False)


def opened(path: Path) -> Any:
    import h5py
    import zarr

    return h5py.File(path, "r") if path.suffix == ".h5ad" else zarr.open_group(path, mode="r")


def rows(path: Path, reader: str) -> float:
    """Add up all values, block by block."""
    from anndata.io import sparse_dataset

    from heatmover.cohort.formats.stored import check_stored, read_rows

    root, total = opened(path), 0.0
    if reader == "anndata":
        matrix = sparse_dataset(root["X"])
        for start in range(0, matrix.shape[0], BLOCK):
            total += float(matrix[start : start + BLOCK].sum(dtype=np.float64))
        return total
    n_cells, _ = check_stored(root["X"], "X")
    for start in range(0, n_cells, BLOCK):
        for block in read_rows(root["X"], "X", start, min(start + BLOCK, n_cells)):
            total += float(block.sum(dtype=np.float64))
    return total


def columns(path: Path, reader: str) -> float:
    """Read a matrix stored by columns and turn it."""
    from anndata.io import read_elem

    from heatmover.cohort.formats.stored import read_columns

    root = opened(path)
    turned = read_elem(root["X"]).tocsr() if reader == "anndata" else read_columns(root["X"], "X")
    return float(turned.sum(dtype=np.float64))


def obs(path: Path, reader: str, name: str) -> int:
    """Count the distinct values of a column."""
    import pandas as pd
    from anndata.io import read_elem

    from heatmover.cohort.formats.anndata import AnnDataReader

    if reader == "anndata":
        return len(pd.unique(pd.Series(read_elem(opened(path)["obs"][name]))))
    kind = "h5ad" if path.suffix == ".h5ad" else "zarr"
    seen: set[Any] = set()
    for labels, _, _ in AnnDataReader(str(path), kind, None, name, "X", (), ()).label_blocks():
        seen.update(pd.unique(pd.Series(labels)))
    return len(seen)


TASKS = {
    "sparse rows, in blocks": ("rows", rows),
    "sparse columns, as a whole": ("columns", columns),
    "obs, a category": ("rows", lambda path, reader: obs(path, reader, "sample")),
    "obs, text of every cell": ("rows", lambda path, reader: obs(path, reader, "note")),
}


def peak() -> float:
    """Return the most memory that this process has held, in MB; that of `resource` would include its parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def one(task: str, path: Path, reader: str) -> None:
    """Run one task and print seconds, megabytes beyond the libraries, and the result."""
    import anndata  # noqa: F401 - loaded before the memory is looked at
    import pandas  # noqa: F401

    import heatmover.cohort.formats.anndata  # noqa: F401

    opened(path)
    before = peak()
    begun = time.perf_counter()
    result = TASKS[task][1](path, reader)
    seconds = time.perf_counter() - begun
    print(json.dumps([seconds, peak() - before, result]))


def race(n_cells: int, repeats: int) -> None:
    print(
        f"{n_cells:,} cells, {GENES:,} genes, {PER_CELL} values per cell; best of {repeats}, seconds and MB of memory"
    )
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(Path(name), n_cells)
        for task, (form, _) in TASKS.items():
            for suffix in ("h5ad", "zarr"):
                cells = []
                for reader in ("heatmover", "anndata"):
                    call = [sys.executable, __file__, "--one", task, f"{name}/{form}.{suffix}", reader]
                    found = [
                        json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
                        for _ in range(repeats)
                    ]
                    cells.append((min(run[0] for run in found), min(run[1] for run in found), found[0][2]))
                ours, theirs = cells
                assert np.isclose(ours[2], theirs[2]), (ours, theirs)
                print(
                    f"{task:28} {suffix:5} heatmover {ours[0]:6.2f} s {ours[1]:7.0f} MB"
                    f"   anndata {theirs[0]:6.2f} s {theirs[1]:7.0f} MB"
                )


# --- damaged files ---


def read_anndata(path: Path, format: str) -> dict[str, Any]:
    """Read with anndata's readers of elements; the values are used, as a reader's values are."""
    import pandas as pd
    from anndata.io import read_elem, sparse_dataset

    root = opened(path)

    def matrix(element: Any) -> np.ndarray:
        if not hasattr(element, "keys"):
            return np.asarray(read_elem(element), dtype=float)
        found = sparse_dataset(element)
        stored = found[0 : found.shape[0]] if found.format == "csr" else found.to_memory()
        return np.asarray(stored.tocsr().toarray(), dtype=float)

    table = read_elem(root["obs"])
    data = {name: [None if pd.isna(value) else value for value in table[name]] for name in table.columns}
    values = {name: soak_damage.plain(column) for name, column in data.items()}
    found = {
        "labels": [str(label) for label in values["sample"]],
        "features": [str(name) for name in read_elem(root["var"]).index],
        "points": matrix(root["X"]),
        **soak_damage.plain_variables(values),
        "told": "",
    }
    if len(found["labels"]) != len(found["points"]) or len(found["features"]) != found["points"].shape[1]:
        raise ValueError("the sizes of obs, var and X contradict each other")  # as AnnData itself says
    if format in ("h5ad-csr", "zarr3-csc"):
        found["other"] = matrix(root["obsm/X_other"])
        if len(found["other"]) != len(found["labels"]):
            raise ValueError("the sizes of obs and obsm contradict each other")
    return found


def work(connection: Any) -> None:
    """Answer requests by anndata's readers where soak_damage.py would use heatmover's."""
    soak_damage.read = read_anndata
    soak_damage.work(connection)


class AnnDataWorker(Worker):
    """A process that reads by anndata alone."""

    def _begin(self) -> None:
        self._here, there = self._context.Pipe()
        self._process = self._context.Process(target=work, args=(there,), daemon=True)
        self._process.start()
        there.close()


WORDS = {"foreign": "refused", "as it says": "right", "same": "right", "told": "right, with a warning"}


def damages(count: int) -> None:
    """Give the same damaged files to both and count what becomes of them."""
    chosen = list(soak_damage.cases(count // 2, count - count // 2, FORMATS, seed=3))
    for name, worker in (("heatmover", Worker), ("anndata", AnnDataWorker)):
        with tempfile.TemporaryDirectory() as folder:
            run = Soak(Path(folder))
            run.reader = worker()
            try:
                verdicts = [run.judge(case) for case in chosen]
            finally:
                run.end()
        counts = Counter(WORDS.get(each.word, each.word) for each in verdicts)
        print(f"{name:10} " + ", ".join(f"{word} {number}" for word, number in sorted(counts.items())))
        show(verdicts)


def show(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        if verdict.word in ("crash", "hang", "silent"):
            print(f"    {verdict.case} {verdict.word}: {verdict.detail.splitlines()[0][:150]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=CELLS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--damages", type=int, default=0)
    parser.add_argument("--case", help="one damaged file, read by anndata")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one[0], Path(options.one[1]), options.one[2])
    elif options.case:
        format, kind, number = options.case.split(":")
        with soak_damage.soak() as run:
            run.reader.end()
            run.reader = AnnDataWorker()
            print(run.judge(Case(format, kind, int(number))))
    elif options.damages:
        damages(options.damages)
    else:
        race(options.cells, options.repeats)


if __name__ == "__main__":
    main()
