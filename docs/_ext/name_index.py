"""Fill the index of the reference with one line per public name: the name and the first sentence of its docstring.

The comment ``% names of graph`` in ``reference/index.md`` becomes the title of ``graph.md``, as a link, and the names
in its tables. Autosummary writes the lines.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

INDEX = "reference/index"
PLACE = re.compile(r"^% names of ([\w-]+)$", re.MULTILINE)
TABLE = re.compile(r"^\.\. autosummary::\n((?: {3}.*\n|\n)+)", re.MULTILINE)
SECTION = """### [{title}]({page}.md)

```{{eval-rst}}
.. currentmodule:: heatmover

.. autosummary::
   :nosignatures:

{names}
```
"""


def names_of(text: str) -> list[str]:
    """Return the names in the tables of a page of the reference, in order."""
    lines = [line.strip() for table in TABLE.findall(text) for line in table.splitlines()]
    return [line for line in lines if line and not line.startswith(":")]


def filled(text: str, folder: Path) -> str:
    """Return the text of the index with every comment replaced by the names of its page."""

    def section(match: re.Match[str]) -> str:
        page = (folder / f"{match[1]}.md").read_text(encoding="utf-8")
        title = page.partition("\n")[0].removeprefix("# ")
        return SECTION.format(title=title, page=match[1], names="\n".join(f"   {name}" for name in names_of(page)))

    return PLACE.sub(section, text)


def fill(app: Any, docname: str, source: list[str]) -> None:
    if docname == INDEX:
        source[0] = filled(source[0], Path(app.srcdir) / "reference")


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
