"""Run ``heatmover demo`` while the documentation is built, and publish its report as ``demo/report.html``.

The page ``demo.md`` shows the report. The report is not in git, so it is never older than the code. Tests that build a
few pages skip it with ``-D heatmover_demo=0``.
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
