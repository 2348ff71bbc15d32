"""A large study from file to report, stage by stage: 982 samples, 1.25 million cells, eight variables.

The cells are simulated as in cohort22m.py and stored as .h5ad; a sheet of the samples has two variables of groups and
six numbers, three of which the cells depend on. What is timed is what `heatmover compare` does, in one process, from
before the first import to the last file; the seconds of a stage end where the next begins.

    python benchmarks/study_speed.py                 # a minute
    python benchmarks/study_speed.py --small         # a first look
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from provenance import add_record, write_table

N_SAMPLES, N_CELLS, N_MARKERS = 982, 1_250_000, 14
SIGNALS = (3, 4, 6)  # types whose shares are numbers of the sheet; the outcome depends on the first two

# In a process of its own, for the time of the imports counts. Nothing of this benchmark is imported before.
RUN = """
import time; begun = time.perf_counter(), time.process_time()
import sys
from pathlib import Path
folder = Path(sys.argv[1])

class Meter:
    def __init__(self):
        self.name, self.at = "import", begun
    def stage(self, name, total):
        now = time.perf_counter(), time.process_time()
        status = Path("/proc/self/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9
        Path("/proc/self/clear_refs").write_text("5")
        print(self.name, now[0] - self.at[0], now[1] - self.at[1], peak, sep="\\t", flush=True)
        self.name, self.at = name, now
    def advance(self, steps=1):
        pass

from heatmover.study import study_cohort
from heatmover.cohort import read_cohort
from heatmover.report import result_folder, write_results
meter = Meter()
meter.stage("open the file", 1)
cohort = read_cohort(folder / "cells.h5ad", sample_key="sample", representation="X",
                     sample_sheet=folder / "samples.csv", progress=meter)
with result_folder(folder / "results") as results:
    write_results(study_cohort(cohort, progress=meter), results, command={}, progress=meter)
meter.stage("all", 1)
print("all", time.perf_counter() - begun[0], time.process_time() - begun[1], 0, sep="\\t")
"""


def generate(folder: Path, n_cells: int, n_samples: int) -> None:
    """Write cells.h5ad and samples.csv."""
    import anndata
    import pandas as pd
    from cohort22m import CONCENTRATION, N_TYPES, cells_of_sample, sizes_of_samples

    rng = np.random.default_rng(0)
    sizes = sizes_of_samples(n_cells, n_samples, rng)
    compositions = rng.dirichlet(np.full(N_TYPES, CONCENTRATION / N_TYPES), size=n_samples)
    basis = np.linalg.qr(rng.standard_normal((N_MARKERS, N_MARKERS))).Q[:3]
    drawn = [
        cells_of_sample(composition, size, basis, 0.05, np.random.default_rng([0, sample]))
        for sample, (composition, size) in enumerate(zip(compositions, sizes, strict=True))
    ]
    names = [f"patient-{i:04d}" for i in range(n_samples)]
    labels = pd.Categorical.from_codes(np.repeat(np.arange(n_samples), sizes), names)
    obs = pd.DataFrame({"sample": labels}, index=np.arange(n_cells).astype(str))
    anndata.AnnData(np.concatenate([points for points, _ in drawn]), obs=obs).write_h5ad(folder / "cells.h5ad")
    shares = np.array([share for _, share in drawn])
    first, second = ((shares[:, i] - shares[:, i].mean()) / shares[:, i].std() for i in SIGNALS[:2])
    died = rng.random(n_samples) < 1 / (1 + np.exp(0.5 - 1.5 * first + second))
    sheet = {
        "sample": names,
        "outcome": np.where(died, "died", "survived"),
        "site": rng.choice(list("abc"), n_samples),
        "age": rng.normal(60, 10, n_samples).round(1),
        "protein": rng.lognormal(size=n_samples),
        "weight": rng.normal(70, 10, n_samples),
    } | {f"share of type {i}": shares[:, i] for i in SIGNALS}
    pd.DataFrame(sheet).to_csv(folder / "samples.csv", index=False)


def stages_of_a_run(folder: Path) -> list[list[str]]:
    """Return name, seconds, CPU seconds and peak memory of every stage, and of all together."""
    order = [sys.executable, "-c", RUN, str(folder)]
    done = subprocess.run(order, check=True, stdout=subprocess.PIPE, text=True)
    found = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 3]
    rows = [[name, float(clock), float(work), float(peak)] for name, clock, work, peak in found]
    rows[-1][3] = max(row[3] for row in rows)
    return [[name, f"{clock:.1f}", f"{work:.1f}", f"{peak:.2f}"] for name, clock, work, peak in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of the cells and samples")
    parser.add_argument("--runs", type=int, default=3, help="of which the fastest is shown (3)")
    add_record(parser)
    args = parser.parse_args()
    part = 10 if args.small else 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder, N_CELLS // part, N_SAMPLES // part)
        runs = []
        for number in range(args.runs):
            runs.append(stages_of_a_run(folder))
            print(f"run {number + 1}: {runs[-1][-1][1]} s", flush=True)
            (folder / "results").rename(folder / f"results-{number}")
    fastest = min(runs, key=lambda rows: float(rows[-1][1]))
    note = (
        f"{N_SAMPLES // part} samples, {N_CELLS // part:,} cells and {N_MARKERS} markers in an .h5ad file; two "
        f"categorical and six numeric variables; 999 permutations. The table shows the fastest of {args.runs} runs, "
        "each in a separate process."
    )
    heads = ["stage", "wall seconds", "CPU seconds", "peak memory in GB"]
    write_table("study_speed", heads, fastest, note, folder=args.record)


if __name__ == "__main__":
    main()
