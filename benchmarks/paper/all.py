"""Every figure and table of the paper, one script after the other: what `make paper` runs."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# In the order of the results page.
EXHIBITS = (
    "schematic",
    "line",
    "swissroll_embed",
    "swissroll",
    "preset",
    "adjudication",
    "ablation",
    "table_mnist",
    "mnist_front",
    "mnist_flat",
    "covid",
    "table_multiscale",
    "theory",
    "theorem2",
    "dual_norm",
    "limits_of_theory",
    "corollary",
    "kernels",
    "alpha",
    "speed",
    "complexity",
    "printed_algorithm4",
)
NEEDS_DATA = {"table_mnist", "mnist_front", "mnist_flat"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: minutes, into benchmarks/output/paper")
    parser.add_argument("--data", type=Path, help="MNIST, an .npz with images and labels or a folder of idx files")
    parser.add_argument("--truth", type=Path, help="an .npy file that keeps the exact EMD of the digits")
    parser.add_argument("--only", nargs="+", choices=EXHIBITS, default=EXHIBITS, help="some exhibits only")
    args = parser.parse_args()
    failed, start = [], time.perf_counter()
    for name in args.only:
        command = [sys.executable, str(HERE / f"{name}.py"), *(["--quick"] if args.quick else [])]
        if name in NEEDS_DATA:
            command += ["--data", str(args.data)] if args.data else []
            command += ["--truth", str(args.truth)] if args.truth and name == "table_mnist" else []
        print(f"\n=== {name}", flush=True)
        begun = time.perf_counter()
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        print(f"=== {name}: {time.perf_counter() - begun:.0f} s", flush=True)
    print(f"\nall: {(time.perf_counter() - start) / 60:.1f} minutes")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
