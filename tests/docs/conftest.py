"""The code of the documentation, and a small site that is built with its real settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MATH_BLOCK = re.compile(r"^\$\$\n(.+?)\n\$\$", re.MULTILINE | re.DOTALL)
MATH = re.compile(r"(?<![\\$`])\$(?!\s)([^$`\n]+?)(?<!\s)\$(?!\d)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def docs_module():
    """Return a function that imports a module of docs/ or docs/_ext."""
    folders = [str(DOCS), str(DOCS / "_ext")]
    sys.path[:0] = folders
    yield import_module
    for folder in folders:
        sys.path.remove(folder)


def formulas():
    """Return every formula of the pages, those on lines of their own first."""
    blocks, inline = [], []
    for path in sorted(DOCS.rglob("*.md")):
        if not {"_build", "jupyter_execute"} & set(path.parts):
            text = CODE.sub("", path.read_text(encoding="utf-8"))
            blocks += MATH_BLOCK.findall(text)
            inline += MATH.findall(MATH_BLOCK.sub("", text))
    return list(dict.fromkeys(blocks)), list(dict.fromkeys(inline))


PAGE = """# Names

`hm.DiffusionEMD`, `Graph.from_points(points)`, `DiffusionEMD.max_scale_`, `np.ndarray`, `AnnData`, `no_such_name`.

| a | b |
|---|---|
| wide | {wide} |

```python
import heatmover as hm
graph = hm.Graph.from_points(points)
```

```{{eval-rst}}
.. currentmodule:: heatmover

.. autosummary::
   :toctree: reference/generated
   :nosignatures:

   DiffusionEMD
   Graph
   tl.samples
   transport.baselines.exact_emd
```
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build a site with the settings of the documentation: all of its formulas, and the pages of four names."""
    source = tmp_path_factory.mktemp("source")
    blocks, inline = formulas()
    lines = [f"$$\n{one}\n$$\n" for one in blocks] + [f"- ${one}$" for one in inline]
    (source / "formulas.md").write_text("# Formulas\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
    (source / "names.md").write_text(PAGE.format(wide="w" * 300), encoding="utf-8")
    (source / "index.md").write_text("# Start\n\n```{toctree}\nformulas\nnames\n```\n", encoding="utf-8")
    out = source.parent / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", DOCS, "-D", "heatmover_demo=0"]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [*command, "-b", "html", source, out],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    return out
