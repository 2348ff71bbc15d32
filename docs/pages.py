"""Find the blocks of code on a page and run them, for the tests of the pages and for ``make_pictures.py``.

Needs markdown-it-py, which the extra ``demo`` installs with rich.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
GALLERY = DOCS / "gallery"
# Directives whose content is text of the page, not code.
MARKUP = {"eval-rst", "include", "literalinclude", "math", "raw", "toctree", "image", "figure", "glue", "glue:figure"}
# The only cell of a gallery page that is not for readers: it inserts the picture at the top of the page.
PASTE = 'from myst_nb import glue\n\nglue("picture", figure, display=False)\n'


@dataclass(frozen=True)
class Block:
    """A fenced block: its first line on the page, its language, its text and its options."""

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
    """Return the pages that people read: README, CONTRIBUTING and the documentation, without build products."""
    docs = (path for path in sorted((root / "docs").rglob("*.md")) if not {"_build", "jupyter_execute"} & {*path.parts})
    return [root / "README.md", root / "CONTRIBUTING.md", *docs]


def examples() -> list[Path]:
    """Return the pages of the gallery; each stores its picture in the variable ``figure``."""
    return [path for path in sorted(GALLERY.glob("*.md")) if path.name != "index.md"]


def blocks(path: Path) -> list[Block]:
    """Return all blocks of code on a page in order, without markup."""
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
    elif name not in MARKUP:  # notes and containers may contain blocks
        yield from _blocks(content, line + 1)


def _options(content: str) -> tuple[dict[str, str], str]:
    lines = content.split("\n")
    options = {}
    while lines and (match := re.match(r":([\w-]+):\s*(.*)$", lines[0])):
        options[match[1]] = match[2]
        lines.pop(0)
    return options, "\n".join(lines).lstrip("\n")


def run_cells(path: Path, namespace: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the Python blocks of a page in one namespace, as a notebook would; return the namespace."""
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    for block in blocks(path):
        if block.language == "python" and not block.is_output and block.text != PASTE:
            # Blank lines first, so that a traceback names the line of the page.
            code = "\n" * block.line + block.text
            exec(compile(code, str(path), "exec"), namespace)
    return namespace


def fingerprint(path: Path) -> str:
    """Return a checksum of the Python code of a page without comments; a picture of the page stores it."""
    code = "\n".join(block.text for block in blocks(path) if block.language == "python" and not block.is_output)
    lines = (re.sub(r"(^|\s\s)#\s.*$", "", line).rstrip() for line in code.split("\n"))
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()


def inscribe(picture: Path, **facts: str) -> None:
    """Write into a PNG what it shows, so that a test notices when the page has changed since."""
    from PIL import Image, PngImagePlugin

    text = PngImagePlugin.PngInfo()
    text.add_text("heatmover", json.dumps(facts))
    with Image.open(picture) as image:
        image.load()
    image.save(picture, optimize=True, pnginfo=text)


def facts_of(picture: Path) -> dict[str, str]:
    """Return the facts that `inscribe` wrote into a PNG."""
    from PIL import Image

    with Image.open(picture) as image:
        return json.loads(image.info.get("heatmover", "{}"))
