"""The report of a real run beside the pages: ``heatmover demo`` runs while they are built.

It is not kept in git, so that it can never be older than the code. It lies under ``demo/report.html``; the page
``demo.md`` shows it. ``-D heatmover_demo=0`` leaves it out, for tests that build a few pages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def write_report(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html" or not app.config.heatmover_demo:
        return
    target = Path(app.outdir) / "demo" / "report.html"
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        command = [sys.executable, "-m", "heatmover", "demo", "--quiet", "--out", str(out)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        shutil.copyfile(out / "report.html", target)


def setup(app: Any) -> dict[str, bool]:
    app.add_config_value("heatmover_demo", True, "html", [bool])
    app.connect("build-finished", write_report)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
