"""Every figure of record, made anew: the commands that write docs/results/numbers, one after the other.

    python benchmarks/record.py --list                     # what there is, and how long it takes
    python benchmarks/record.py --data FOLDER              # all of it, the cheapest first
    python benchmarks/record.py --data FOLDER --stale      # only what the present code would not show again
    python benchmarks/record.py --data FOLDER --older      # all that an earlier version of the code has made
    python benchmarks/record.py --only swissroll l1        # by the names of numbers files

Commit first: a table made from changed code says so. A table is stale if its script, or a part of the package that it
rests on, computes something else than at the table's commit; panel.py tells. FOLDER holds the data that are not part of
this package, mnist.npz and some cohorts; each script says what it reads, and without --data those that need them are
left out. Tables of times want a machine that does nothing else: --times and --no-times choose between them and the
others. Afterwards verify_claims.py says which sentences to mend.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import panel
from provenance import NUMBERS, ROOT

DATA = "{data}"


@dataclass(frozen=True)
class Entry:
    """A command: script and arguments, the numbers files it writes, roughly how long, and whether it tells times.

    ``rests`` are the parts of the package, as panel.py names them, whose results decide its figures.
    """

    command: str
    writes: tuple[str, ...]
    minutes: float
    times: bool = False
    rests: tuple[str, ...] = ("distances",)

    @property
    def script(self) -> Path:
        return ROOT / "benchmarks" / self.command.split()[0]

    @property
    def part(self) -> str | None:
        """The function of the script that does the work, where the command names one: ``search.py digits``."""
        _, *words = self.command.split()
        return words[0] if words and not words[0].startswith("-") else None

    @property
    def needs_data(self) -> bool:
        return DATA in self.command

    def order(self, data: Path | None) -> list[str]:
        """Return the command as a process takes it."""
        words = shlex.split(self.command)[1:]
        return [sys.executable, str(self.script), *(word.replace(DATA, str(data)) for word in words)]

    def older(self) -> bool:
        """Whether a file is missing, or the package or the script is not as it was when the file was made."""
        return any(not made_by_present_code(NUMBERS / f"{name}.md", self.script) for name in self.writes)

    def stale(self) -> bool:
        """Whether a file is missing, or the script or what it rests on computes something else than it did then."""
        return self.older() and any(self._changed(NUMBERS / f"{name}.md") for name in self.writes)

    def _changed(self, path: Path) -> bool:
        commit = commit_of(path)
        if commit is None or panel.script_changed(self.script, commit, self.part):
            return True
        return bool(panel.differs(commit, self.rests))


# Minutes are those of two cores. Sizes are the scripts' own unless the table says otherwise.
ENTRIES = (
    Entry("paper/table_multiscale.py", ("table_multiscale",), 0.1),
    Entry("paper/line.py", ("line",), 0.3),
    Entry("connectivities.py --record", ("connectivities",), 1),
    Entry("l1.py --record", ("l1",), 2, times=True),
    Entry(
        "genes.py kang simulated --data {data}/kang_genes16.npz --record",
        ("genes_kang", "genes_simulated"),
        3,
        rests=("statistics",),
    ),
    Entry("genes.py size --record", ("genes_size",), 2, times=True, rests=("statistics",)),
    Entry("grid_search.py --record", ("grid_search",), 5, times=True),
    Entry("atlas.py --data {data} --record", ("atlas",), 2, times=True),
    Entry("covered.py --data {data} --record", ("covered",), 5),
    Entry("corruption.py --record", ("corruption",), 6),
    Entry("kills.py --record", ("kills",), 7),
    Entry("limits.py --record", ("limits", "limits_machine"), 3, times=True, rests=("distances", "statistics")),
    Entry("search.py kills --record", ("search_kills",), 3),
    Entry("search.py damage --record", ("search_damage",), 3),
    Entry("search.py digits --data {data}/mnist.npz --record", ("search_digits",), 4, times=True),
    Entry("search.py rerank --data {data}/mnist.npz --record", ("search_rerank",), 40),
    Entry("search.py million --record", ("search_million", "search_stream"), 30, times=True),
    Entry("digits70k.py --data {data}/mnist.npz --record", ("digits70k",), 3, times=True),
    Entry("nearest_landmark.py --record", ("nearest_landmark",), 3, times=True),
    Entry("paper/kernels.py", ("kernels", "kernels_bands"), 2),
    Entry("paper/swissroll_embed.py", ("swissroll_embed",), 2, rests=("distances", "baselines")),
    Entry("compact.py --record", ("compact",), 3),
    Entry("paper/alpha.py", ("alpha", "alpha_line", "alpha_order"), 3),
    Entry("paper/theorem2.py", ("theorem2", "theorem2_waves", "theorem2_kinds", "theorem2_terms"), 3),
    Entry("paper/dual_norm.py", ("dual_norm",), 1),
    Entry("paper/limits_of_theory.py", ("heat_limits", "heat_limits_powers", "heat_limits_ranks"), 0.2),
    Entry("paper/corollary.py", ("corollary", "corollary_waves", "corollary_distances"), 3),
    Entry("paper/mnist_flat.py --data {data}/mnist.npz", ("mnist_flat",), 2, rests=("distances", "baselines")),
    Entry("paper/preset.py", ("preset", "preset_stability"), 9),
    Entry("paper/adjudication.py", ("adjudication",), 6, rests=("distances", "baselines")),
    Entry(
        "paper/complexity.py",
        (
            "complexity",
            "complexity_degrees",
            "complexity_decompositions",
            "complexity_algorithm4",
            "complexity_growth",
            "complexity_gamma",
            "complexity_gradients",
        ),
        4,
        times=True,
        rests=("distances", "gradients"),
    ),
    Entry("paper/printed_algorithm4.py", ("printed_algorithm4", "printed_algorithm4_scales"), 8),
    Entry(
        "cohorts.py --data {data}",
        ("cohorts_melanoma", "cohorts_kidney", "cohorts_kidney_large"),
        5,
        rests=("comparison", "statistics", "baselines"),
    ),
    Entry("coarse_scales.py --record", ("coarse_scales",), 5, times=True),
    Entry("race_swissroll.py --seeds 3 --record", ("race_swissroll",), 4, times=True),
    Entry("race_swissroll.py --broad --seeds 3 --record", ("race_swissroll_broad",), 8, times=True),
    Entry(
        "landmarks.py --data {data}/melanoma_sadefeldman48.npz {data}/kidney_igan_glomeruli634.npz --standardize"
        " --seeds 3 --record",
        ("landmarks",),
        5,
        rests=("comparison",),
    ),
    Entry(
        "cohort22m.py --cells 2e5 --landmarks 4000 --against-full --record",
        ("cohort22m_full",),
        3,
        rests=("distances", "pieces"),
    ),
    Entry(
        "cohort22m.py --sizes 1e6 1e7 2.2e7 --landmarks 4000 --record",
        ("cohort22m_sizes",),
        4,
        rests=("distances", "pieces"),
    ),
    Entry(
        "cohort22m.py --cells 1e7 --landmarks 4000 --workers 1 2 --record",
        ("cohort22m_workers",),
        3,
        times=True,
        rests=("distances", "pieces"),
    ),
    Entry(
        "cohort22m.py --cells 1e5 --samples 60 --landmarks 1000 --kill 10 --kill-workers 5 --record",
        ("cohort22m_kill", "cohort22m_kill_workers"),
        8,
        rests=("distances", "pieces"),
    ),
    Entry("flow.py --seeds 0 1 2 --record", ("flow",), 6, rests=("gradients",)),
    Entry("calibration.py --data {data} --record", ("calibration",), 10, rests=("distances", "calibration")),
    Entry("scale_rule.py --seeds 1 --record", ("scale_rule",), 10),
    Entry("noise.py --only kinds --cohorts 8 --data {data} --record", ("noise",), 10, rests=("noise", "statistics")),
    Entry(
        "noise.py --only tests --runs 1000 --data {data} --record",
        ("noise_tests",),
        30,
        rests=("noise_tests", "statistics"),
    ),
    Entry(
        "noise_cohorts.py --data {data} --record", ("noise_cohorts",), 3, rests=("comparison", "noise", "statistics")
    ),
    Entry("paper/covid.py", ("covid", "covid_stages"), 7, rests=("distances", "pieces", "statistics", "baselines")),
    Entry("dispersion.py --runs 200 --record", ("dispersion",), 8, rests=("statistics",)),
    Entry("welch.py --record", ("welch",), 10, rests=("statistics",)),
    Entry("designs.py --record", ("designs",), 8, rests=("statistics",)),
    Entry("designs.py --batches --record", ("designs_batches",), 3, rests=("comparison", "statistics")),
    Entry("designs.py --speed --record", ("designs_speed",), 0.5, times=True, rests=("statistics",)),
    Entry("wheel.py --record", ("wheel",), 3, times=True, rests=("comparison",)),
    Entry("startup.py --record", ("startup",), 1, times=True, rests=("comparison",)),
    Entry("busy.py --record", ("busy",), 2, times=True, rests=("comparison", "statistics")),
    Entry("study_speed.py --record", ("study_speed",), 2, times=True, rests=("comparison", "statistics")),
    Entry("paper/theory.py", ("theory", "theory_measures", "theory_random"), 8),
    Entry("shapes.py --record", ("shapes",), 8),
    Entry("power.py --cohorts 400 100 --record", ("power",), 10, rests=("comparison", "statistics")),
    Entry(
        "paper/mnist_front.py --data {data}/mnist.npz",
        ("mnist_front", "mnist_front_exact"),
        10,
        rests=("distances", "baselines"),
    ),
    Entry("paper/speed.py --preset", ("speed_preset",), 1, rests=("distances", "baselines")),
    Entry("paper/speed.py", ("speed",), 9, rests=("distances", "baselines")),
    Entry("paper/swissroll.py", ("swissroll",), 9, rests=("distances", "baselines")),
    Entry(
        "abundance.py --cohorts 34 --first-seed 60000 --record", ("abundance",), 25, rests=("comparison", "attribution")
    ),
    Entry(
        "contrasts.py --record",
        ("contrasts_null", "contrasts_power", "contrasts_split", "contrasts_half"),
        20,
        rests=("comparison", "attribution"),
    ),
    Entry("percell.py --cohorts 5 --record", ("percell",), 25, times=True, rests=("comparison", "attribution")),
    Entry(
        "percell.py --million 1e6 --record",
        ("percell_million",),
        1,
        times=True,
        rests=("comparison", "attribution", "statistics"),
    ),
    Entry("explain.py --cohorts 50 --record", ("explain",), 10, rests=("comparison", "attribution")),
    Entry("gradients.py --record", ("gradients",), 15, rests=("gradients",)),
    Entry("paper/ablation.py --draws 5", ("ablation", "ablation_preset"), 18),
    Entry(
        "paper/table_mnist.py --data {data}/mnist.npz",
        ("table_mnist", "table_mnist_preset"),
        20,
        rests=("distances", "baselines"),
    ),
    Entry("neighbors.py --points 100000 --record", ("neighbors",), 15, times=True),
)


def commit_of(path: Path) -> str | None:
    """Return the commit that made a table; None if it was made from changed code, or does not say."""
    last = path.read_text(encoding="utf-8").rstrip().splitlines()[-1] if path.exists() else ""
    commit = re.search(r", commit ([0-9a-f]{7,}),", last)
    return commit[1] if commit else None


def made_by_present_code(path: Path, script: Path) -> bool:
    commit = commit_of(path)
    if commit is None:
        return False
    order = ["git", "-C", str(ROOT), "diff", "--quiet", commit, "--", "src", str(script)]
    return subprocess.run(order, capture_output=True, check=False).returncode == 0


def chosen_of(args: argparse.Namespace) -> list[Entry]:
    """Return what the arguments ask for, the cheapest first."""
    found = [entry for entry in ENTRIES if not args.only or set(args.only) & set(entry.writes)]
    if args.stale or args.older:
        found = [entry for entry in found if (entry.stale() if args.stale else entry.older())]
    if args.times is not None:
        found = [entry for entry in found if entry.times == args.times]
    return sorted(found, key=lambda entry: entry.minutes)


def run(entries: Sequence[Entry], data: Path | None) -> list[str]:
    """Run all of them; return the commands that failed."""
    failed = []
    for number, entry in enumerate(entries, 1):
        print(f"\n=== {number} of {len(entries)}, some {entry.minutes:g} minutes: {entry.command}", flush=True)
        begun = time.perf_counter()
        if subprocess.run(entry.order(data), check=False).returncode:
            failed.append(entry.command)
        print(f"=== {(time.perf_counter() - begun) / 60:.1f} minutes", flush=True)
    if len(failed) < len(entries):
        panel.keep(panel.short("HEAD"), panel.newest())
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for entry in ENTRIES for name in entry.writes]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="numbers files to make")
    parser.add_argument("--stale", action="store_true", help="only those that would not come out again")
    parser.add_argument("--older", action="store_true", help="only those that the present code has not made")
    parser.add_argument("--times", action=argparse.BooleanOptionalAction, help="only tables with seconds, or none")
    parser.add_argument("--data", type=Path, help="folder of data that are not part of this package")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    args = parser.parse_args(arguments)
    chosen = chosen_of(args)
    if args.list:
        for entry in chosen:
            print(f"{entry.minutes:5g} min  {'times ' if entry.times else '      '} {entry.command}")
        return 0
    left_out = [entry.command for entry in chosen if entry.needs_data and args.data is None]
    failed = run([entry for entry in chosen if entry.command not in left_out], args.data)
    for words, commands in (("left out, for they need --data", left_out), ("failed", failed)):
        if commands:
            print(f"\n{words}:", *commands, sep="\n  ", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
