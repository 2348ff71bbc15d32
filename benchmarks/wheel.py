"""From a wheel in an empty environment to the demo's report: two commands, and what each takes beyond the downloads.

    make dist                             # builds the wheel
    python benchmarks/wheel.py --record   # pip's options, if it needs some: PIP_FLAGS="..."

The first demo compiles; the second shows what is left of it once compiled.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType

from provenance import ROOT, add_record, write_table

SHOWN = ("numpy", "scipy", "scikit-learn", "numba")
VERSIONS = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"


def script() -> ModuleType:
    """Return what `make dist` runs, which has no package of its own."""
    spec = importlib.util.spec_from_file_location("dist", ROOT / ".ci" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_record(parser)
    args = parser.parse_args()
    dist = script()
    version = dist.project(ROOT)["version"]
    wheel = ROOT / "dist" / f"heatmover-{version}-py3-none-any.whl"
    package = {name: data for name, data in dist.of_wheel(wheel).items() if name.startswith("heatmover/")}
    if dist.differences(package, dist.of_package(ROOT)):
        dist.fail("a wheel of the present source in dist/", "another one", "run make dist first")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary).resolve()
        seconds, options, python = dist.use(wheel, version, shlex.split(os.environ.get("PIP_FLAGS", "")), place)
        used = subprocess.run(
            [python, "-c", VERSIONS, *SHOWN], capture_output=True, text=True, check=True, **options
        ).stdout.strip()
    del seconds["downloads"]
    both = [seconds[name] for name in ("pip install", "heatmover demo")]
    rows = {**seconds, "the two commands together": tuple(map(sum, zip(*both, strict=True)))}
    shown = [[name, f"{taken:.0f}", f"{worked:.0f}"] for name, (taken, worked) in rows.items()]
    note = (
        "Each step was measured once. Times do not include downloads. The packages installed into the empty "
        f"environment are {used}."
    )
    write_table("wheel", ["", "seconds", "CPU seconds"], shown, note, folder=args.record, packages=())


if __name__ == "__main__":
    main()
