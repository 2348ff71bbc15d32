"""The blocks of code on a page: what is run, what is shown, and what a page of the gallery draws.

Used by the tests, which run every block, and by ``make_pictures.py``. Needs markdown-it-py, which rich brings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
GALLERY = DOCS / "gallery"
# Directives whose content is not Markdown: what they hold is text of the page, not code.
MARKUP = {"eval-rst", "include", "literalinclude", "math", "raw", "toctree", "image", "figure", "glue", "glue:figure"}
# The one cell of a page in the gallery that is not for readers: it hands the picture to the top of the page.
PASTE = 'from myst_nb import glue\n\nglue("picture", figure, display=False)\n'


@dataclass(frozen=True)
class Block:
    """A fenced block: its first line on the page, its language, its text, and what its options say."""

    line: int
    language: str
    text: str
    is_cell: bool = False
    marks: frozenset[str] = frozenset()
    caption: str = ""

    @property
    def is_output(self) -> bool:
        return self.language == "text" or "output" in self.marks


def pages(root: Path = ROOT) -> list[Path]:
    """The pages that people read: README, CONTRIBUTING and the documentation, without what is built from it."""
    docs = (path for path in sorted((root / "docs").rglob("*.md")) if not {"_build", "jupyter_execute"} & {*path.parts})
    return [root / "README.md", root / "CONTRIBUTING.md", *docs]


def examples() -> list[Path]:
    """The pages of the gallery; each leaves its picture as ``figure``."""
    return [path for path in sorted(GALLERY.glob("*.md")) if path.name != "index.md"]


def blocks(path: Path) -> list[Block]:
    """All blocks of code on a page, in order; markup is none."""
    return list(_blocks(path.read_text(encoding="utf-8"), first=1))


def _blocks(text: str, first: int) -> Iterator[Block]:
    from markdown_it import MarkdownIt

    for token in MarkdownIt("commonmark").parse(text):
        line = first + (token.map[0] if token.map else 0)
        if token.type == "code_block":
            yield Block(line, "", token.content)
        elif token.type == "fence":
            yield from _fenced(token.info.strip(), token.content, line)


def _fenced(info: str, content: str, line: int) -> Iterator[Block]:
    directive = re.match(r"\{([\w:-]+)\}\s*(.*)", info)
    if directive is None:
        yield Block(line, info, content)
        return
    name, argument = directive.groups()
    options, body = _options(content)
    marks = frozenset(re.findall(r"[\w-]+", f"{options.get('tags', '')} {options.get('class', '')}"))
    if name == "code-cell":
        yield Block(line, "python", body, is_cell=True, marks=marks)
    elif name in ("code-block", "code"):
        yield Block(line, argument, body, marks=marks, caption=options.get("caption", ""))
    elif name not in MARKUP:  # a note, a container: what is in it counts
        yield from _blocks(content, line + 1)


def _options(content: str) -> tuple[dict[str, str], str]:
    lines = content.split("\n")
    options = {}
    while lines and (match := re.match(r":([\w-]+):\s*(.*)$", lines[0])):
        options[match[1]] = match[2]
        lines.pop(0)
    return options, "\n".join(lines).lstrip("\n")


def run_cells(path: Path, namespace: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the Python of a page in one namespace, as its kernel would; return the namespace."""
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    for block in blocks(path):
        if block.language == "python" and not block.is_output and block.text != PASTE:
            # Lines of the page, so that a traceback names them.
            code = "\n" * block.line + block.text
            exec(compile(code, str(path), "exec"), namespace)
    return namespace
