"""The project speaks the field's language: words of its own, which readers had to read twice, do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What not to say, and what to say.
WORDS = {
    r"\bgo(es)? with\b": "is associated with",
    r"\b(told|tells?|telling) (\w+ ){0,3}apart\b": "distinguishable, significantly different",
    r"\bhalves? (that |of samples )?(do not )?finds?\b|\bfinds? (each other|its other half)\b": "split-half retrieval",
    r"\bluck\b": "by chance",
    r"\bnoise of few\b": "small-sample bias, sampling noise",
    r"\bin what state\b": "abundance / state",
    r"\bvariables? of (the )?samples?\b": "sample metadata, covariate",
    r"\bin pieces\b": "out of core",
    r"\b(centers?|landmarks?) (that )?stands? for\b": "approximated by landmarks",
    r"\brivals?\b": "alternatives, other methods",
    r"\bto the (last )?bit\b|\bsame bits\b": "bit-identical",
    r"\bbeside\b": "compared with, next to",
    r"\brefus(e|es|ed|al|als|ing)\b": "raise an error, reject",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bspread of groups\b": "dispersion",
    r"\b(hang(s|ing)?|hung) by a thread\b": "nearly disconnected",
    r"\btruths\b|\btruth values?\b": "booleans",
    r"\bshortlist": "candidate list",
    r"\bgroundwork\b": "preparation",
    r"\bsurely\b|\bno sign (of|that)\b|\bmay be chance\b": "significant, no evidence of",
    r"\bwhat infinitely many\b|\bless what\b": "confidence interval, adjusted for",
    r"\bbarycentre|\bneighbour|\bcolour|\bcentre[sd]?\b|\bbehaviour|\bgrey\b|\bfavour|\btowards\b|\bartefact": (
        "American spelling"
    ),
    r"\b(analy|normali|standardi|optimi|minimi|maximi|randomi|visuali|summari|recogni)s(e|ed|ing|ation)\b": (
        "American spelling, -ize"
    ),
    r"\d %(?![\w}])": "44%",
}
# The value of an option; names that the changelog says are gone.
EXCEPTIONS = ('"refuse"', "refuse|drop", "refuse raises", "Intervals.told apart", "`told apart`")
# What a line of a paragraph begins with: the mark of a comment, of a quotation or of an item.
MARGIN = re.compile(r"\s*\n[ \t]*(?:(?:#+|>|[*-]) )?\s*")


def texts() -> list[Path]:
    """Return what users and readers of the code read."""
    source = [path for ending in ("py", "html", "js", "css") for path in (ROOT / "src").rglob(f"*.{ending}")]
    pages = [
        path
        for ending in ("md", "py", "css", "html")
        for path in (ROOT / "docs").rglob(f"*.{ending}")
        if not {"_build", "generated", "jupyter_execute"} & {*path.parts}
    ]
    project = [
        path for folder in (".ci", ".github", "packaging") for path in (ROOT / folder).rglob("*.*") if path.is_file()
    ]
    others = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "constraints.txt", ROOT / "CITATION.cff"]
    project = [path for path in project if path.suffix in {".py", ".md", ".yml", ".yaml"}]
    return sorted([*source, *pages, *project, *ROOT.glob("*.md"), *others])


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph in one line, with the number of its first line; the exceptions are left out."""
    for paragraph in re.finditer(r"\S.*?(?=\n[ \t]*\n|\Z)", text, flags=re.DOTALL):
        # The words of a name in the code count too.
        joined = MARGIN.sub(" ", paragraph[0]).replace("_", " ")
        for exception in EXCEPTIONS:
            joined = joined.replace(exception, "")
        yield text.count("\n", 0, paragraph.start()) + 1, joined


@pytest.fixture(scope="module")
def read() -> list[tuple[str, int, str]]:
    """Return the paragraphs of all texts, each with its file and first line."""
    return [
        (path.relative_to(ROOT).as_posix(), line, paragraph)
        for path in texts()
        for line, paragraph in paragraphs(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("words", WORDS, ids=WORDS.values())
def test_words_of_our_own_are_gone(words, read):
    pattern = re.compile(words, flags=re.IGNORECASE)
    places = [
        f"{name}:{line}: ...{paragraph[max(0, match.start() - 30) : match.end() + 30]}..."
        for name, line, paragraph in read
        for match in pattern.finditer(paragraph)
    ]
    assert places == [], f"say: {WORDS[words]}"


def test_a_word_is_found_across_two_lines():
    text = "# one\n\n# The cells are in\n# pieces here.\n"
    assert [line for line, paragraph in paragraphs(text) if re.search(r"\bin pieces\b", paragraph)] == [3]
