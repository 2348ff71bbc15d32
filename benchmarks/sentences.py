"""Print random sentences of the documentation, messages and docstrings, for someone who judges how they read.

    python benchmarks/sentences.py --seed 7 --number 200

A reader who does not know the code marks every sentence that has to be read twice. The number of marked sentences and
the seed belong into the message of the commit that rewrites them.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Shorter pieces are headings, names or entries of lists.
FEWEST_WORDS = 5
SECTIONS = r"\n\s*(?:Parameters|Returns|Raises|Yields|Notes|Attributes)\n\s*-+"


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a paragraph."""
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\d])", " ".join(text.split())):
        if len(sentence.split()) >= FEWEST_WORDS:
            yield sentence


def of_page(path: Path) -> Iterator[str]:
    """Yield the sentences of a page, without code, tables and headings."""
    text = re.sub(
        r"\A---.*?\n---\n|```(?!\{glossary).*?```|<[^>]+>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*] )", text):
        if not paragraph.lstrip().startswith(("|", "#", ":::", "```", "(")):
            yield from sentences(paragraph)


def of_module(path: Path) -> Iterator[str]:
    """Yield the sentences of docstrings, and messages of at least six words."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = re.split(r"\n\s*Examples\n", ast.get_docstring(node) or "")[0]
            for paragraph in re.split(r"\n\s*\n|\n(?=\S+\n    )", re.sub(SECTIONS, "\n\n", text)):
                yield from sentences(paragraph)
        elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            text = ast.unparse(node) if isinstance(node, ast.JoinedStr) else node.value
            if len(text.split()) > FEWEST_WORDS and "\n" not in text:
                yield text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=200)
    arguments = parser.parse_args()
    pages = [*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if "numbers" not in page.parts)]
    found = {(page, sentence) for page in pages if "generated" not in page.parts for sentence in of_page(page)}
    found |= {(path, sentence) for path in (ROOT / "src").rglob("*.py") for sentence in of_module(path)}
    drawn = random.Random(arguments.seed).sample(sorted(found), arguments.number)
    for number, (path, sentence) in enumerate(drawn, start=1):
        print(f"{number}. [{path.relative_to(ROOT).as_posix()}] {sentence}")


if __name__ == "__main__":
    main()
