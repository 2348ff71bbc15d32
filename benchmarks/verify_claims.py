"""Every number and verdict that README.md and docs/ claim is what a benchmark wrote; this fails when they differ.

    python benchmarks/verify_claims.py           # one line per problem, exit code 1 if there are any
    python benchmarks/verify_claims.py --list    # numbers that nobody has declared, with the words around them
    python benchmarks/verify_claims.py --mend    # after a new run: puts the numbers right; read the sentences again

Every number in the prose and the tables of a page has to be declared in benchmarks/claims.toml, in one of four ways.

claims
    ``{text = "reaches P@10 # in # s", is = ["swissroll | ours | P@10", "swissroll | ours | seconds"]}``. The text
    occurs once on the page; each # stands for a number there, which is compared with its source. So a new run changes
    the page and its numbers file, and the registry stays. Numbers written out in the text are conditions of the
    measurement (sizes, settings) and have to stand there as they are.
tables
    ``{head = "stage | seconds | memory", source = "covid_stages"}``: a table on a page against one in a numbers file,
    cell by cell, by the names of rows and columns; ``rows`` and ``columns`` give the names that differ, "" for none.
given
    ``given.data = ["100 measures of 100 points"]``: what is no measurement, by kind (see KINDS). ``[everywhere]`` holds
    patterns for all pages, such as "Eq. #". A text that no longer occurs on its page is a problem: the list cannot rot.
verdicts
    ``{text = "orders distances better", is = "{race | ours | Spearman} > {race | theirs | Spearman}"}``: words that a
    table decides. The text occurs once on the page, and the comparison (with ``> >= < <=``, chains and ``and``) holds.
    A # in the text stands for a number whose value is declared elsewhere.
unrecorded
    ``{from = "first words", to = "last words", by = "python benchmarks/..."}``: measurements of which no numbers file
    exists yet, with the command that makes them. They are counted and shown as warnings, never as checked.

A source names a file of docs/results/numbers, a row by its first cells (* matches anything) and a column:
``speed | exact EMD | * | 100 | times``. Of several numbers in a cell the first counts; ``column #2`` takes the second.
With one bar only, ``swissroll | needs # times as long``, it is a number in the words under the table. Sources in braces
are parts of an expression with + - * / ( ) min max abs: ``{a | b | c} / {a | d | c}``; only in min and max may a row
be several ones. In front may stand > >= < <= if the page states a bound ("below #" is ``> max({...})``: the number is
greater), or ~ (within a tenth), which asks for "about" or the like in the text.

Rounding follows from the digits written: 0.95 stands for 0.945 to 0.955; of 180 or 22,000 the closing zeros
may be rounded, but at least two digits count; of a word ("thirty times") one digit counts.

Not looked at: code, formulas, and the pages that ``exempt`` names with a reason. Numbers in words are found only
before "times" and "orders of magnitude".
"""

from __future__ import annotations

import argparse
import ast
import math
import operator
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Why a number needs no source.
KINDS = {
    "data": "sizes of data and of problems",
    "parameter": "settings, defaults and limits of the code or of an experiment",
    "definition": "mathematics, units and formats",
    "paper": "figures of the paper",
    "name": "parts of a name, a version or a place in a text",
    "example": "what a reader may type or see",
}
DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?"
# A sign belongs to a number at the beginning of a word; a digit inside a word (L1, COVID-19, R^5) is no number.
NUMBER = re.compile(rf"(?:(?<![^\s(\[|/*])[-+])?(?<![\w.^@])(?<![A-Za-z]-)(?<!\d,){DIGITS}(?!\w)(?!\.\d)")
WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12,
    "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "hundred": 100, "thousand": 1000,
}  # fmt: skip
WORD = re.compile(rf"\b(?:{'|'.join(WORDS)})\b(?=\s+(?:times|orders\s+of\s+magnitude)\b)", re.IGNORECASE)
PROVENANCE = re.compile(
    r"\*`python [^`]+`, (?:commit [0-9a-f]{7,}(?P<changed> with changes)?|.+), \d{4}-\d\d-\d\d, .+\*"
)
ROUGHLY = ("about", "roughly", "some", "nearly", "up to", "hardly")


class ClaimError(Exception):
    """A source that cannot be read; the message says why."""


class WaitingError(ClaimError):
    """The numbers file of a source is not there yet, as the registry says; the message is its name."""


# ---------------------------------------------------------------- pages


@dataclass(frozen=True)
class Found:
    """A number on a page: where it is, how it is written, and what it says."""

    start: int
    end: int
    written: str

    @property
    def value(self) -> float:
        return float(WORDS.get(self.written.lower(), 0)) or number(self.written)


@dataclass(frozen=True)
class Page:
    """The text of a page, and the same with everything blanked that is neither prose nor table."""

    name: str
    text: str
    prose: str

    @classmethod
    def read(cls, name: str, text: str) -> Page:
        return cls(name, text, blanked(text))

    def numbers(self) -> list[Found]:
        matches = [*NUMBER.finditer(self.prose), *WORD.finditer(self.prose)]
        return sorted((Found(m.start(), m.end(), m[0]) for m in matches), key=lambda found: found.start)

    def line(self, place: int) -> int:
        return self.text.count("\n", 0, place) + 1

    def around(self, found: Found, reach: int = 30) -> str:
        part = self.text[max(0, found.start - reach) : found.end + reach]
        return " ".join(part.split())


def blanked(text: str) -> str:
    """Replace code, formulas, addresses and comments by blanks, so that every place keeps its number."""
    blank: Callable[[re.Match[str]], str] = lambda match: re.sub(r"[^\n]", " ", match[0])  # noqa: E731
    for pattern in (
        r"\A---\n.*?\n---\n",  # how a notebook page is to be run
        r"^( *)(`{3,}|~{3,}|:{3,}).*?^\1\2[`~:]*$",
        r"<!--.*?-->",
        r"<[a-zA-Z/][^>\n]*>",
        r"`[^`\n]+`",
        r"\$\$.+?\$\$",
        r"(?<![\\$])\$(?=\S)[^$]+?(?<=\S)\$(?!\d)",
        r"(?<=\])\([^()\s]*\)",
        r"\bhttps?://\S+",
    ):
        text = re.sub(pattern, blank, text, flags=re.DOTALL | re.MULTILINE)
    return text


def number(written: str) -> float:
    return float(written.replace(",", ""))


def pattern(words: str) -> re.Pattern[str]:
    """Turn the words of the registry into a pattern: # is a number, and any white space is like any other."""
    hole = rf"((?:[-+])?{DIGITS}|(?:{'|'.join(WORDS)})\b)"
    parts = [hole.join(re.escape(part) for part in word.split("#")) for word in words.split()]
    before, after = (
        (r"(?<![\w.])" if words[:1].isalnum() else ""),
        (r"(?![\w]|[.,]\d)" if words[-1:] in "#0123456789" else ""),
    )
    return re.compile(before + r"\s+".join(parts) + after, re.IGNORECASE if words[:1] == "#" else 0)


# ---------------------------------------------------------------- numbers files


@dataclass(frozen=True)
class Table:
    """A table of Markdown: its heads, and its rows of cells without emphasis."""

    heads: list[str]
    rows: list[list[str]]
    start: int = 0

    def columns(self, name: str) -> list[int]:
        return [i for i, head in enumerate(self.heads) if like(head, name)]

    def matching(self, cells: Sequence[str]) -> Iterator[list[str]]:
        for row in self.rows:
            if len(row) >= len(cells) and all(like(*pair) for pair in zip(row, cells, strict=False)):
                yield row


def like(text: str, wanted: str) -> bool:
    """Compare, where * in what is wanted matches anything."""
    return re.fullmatch(".*".join(map(re.escape, wanted.split("*"))), text) is not None


def cells_of(line: str) -> list[str]:
    return [cell.strip().replace("**", "").strip("`") for cell in line.strip().strip("|").split("|")]


def tables_of(text: str) -> list[Table]:
    """Return all tables of a text, in order."""
    tables: list[Table] = []
    for match in re.finditer(r"^\|.*\|[ ]*\n\|[-:| ]+\|[ ]*\n(?:\|.*\|[ ]*(?:\n|\Z))*", text, flags=re.MULTILINE):
        head, _, *rows = match[0].splitlines()
        tables.append(Table(cells_of(head), [cells_of(row) for row in rows], match.start()))
    return tables


@dataclass(frozen=True)
class Numbers:
    """The folder of numbers files, and the files that the registry still waits for."""

    folder: Path
    waiting: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        path = self.folder / f"{name}.md"
        if path.exists():
            return path.read_text(encoding="utf-8")
        if name in self.waiting:
            raise WaitingError(name)
        raise ClaimError(f"expected the numbers file {name}.md, found none")

    def look_up(self, reference: str) -> list[float]:
        """Return the numbers that a reference names, at least one."""
        name, *rest = (part.strip() for part in reference.split("|"))
        text = self.text(name)
        if not rest:
            raise ClaimError(f"expected a row and a column in {reference!r}")
        if len(rest) == 1:
            return [self._in_words(name, text, rest[0])]
        *cells, column = rest
        column, _, place = column.partition(" #")
        found = []
        for table in tables_of(text):
            for row in table.matching(cells):
                for index in table.columns(column):
                    numbers = NUMBER.findall(row[index]) if index < len(row) else []
                    if len(numbers) >= int(place or 1):
                        found.append(number(numbers[int(place or 1) - 1]))
        if not found:
            raise ClaimError(f"found no number at {reference!r}")
        return found

    def _in_words(self, name: str, text: str, words: str) -> float:
        matches = list(pattern(words).finditer(text))
        if words.count("#") != 1 or len(matches) != 1:
            raise ClaimError(f"expected {words!r} with one # once in {name}.md, found {len(matches)}")
        return number(matches[0][1])


# ---------------------------------------------------------------- expressions

OPERATIONS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs}
COMPARISONS: dict[type[ast.AST], Callable[[float, float], bool]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}


def evaluate(expression: str, numbers: Numbers) -> float:
    """Compute an expression of references; nothing else is in its language."""
    if "{" not in expression:
        return only(numbers.look_up(expression), expression)
    tree, references = parsed(expression, numbers)
    return _value(tree, references, expression)


def parsed(expression: str, numbers: Numbers) -> tuple[ast.expr, list[list[float]]]:
    """Return the syntax of an expression, in which r0, r1, ... stand for references, and their numbers."""
    references: list[list[float]] = []

    def take(match: re.Match[str]) -> str:
        references.append(numbers.look_up(match[1]))
        return f"r{len(references) - 1}"

    source = re.sub(r"\{([^{}]+)\}", take, expression)
    try:
        return ast.parse(source.strip(), mode="eval").body, references
    except SyntaxError as error:
        raise ClaimError(f"cannot read the expression {expression!r}") from error


def failing(condition: str, numbers: Numbers) -> list[str]:
    """Return the comparisons of a condition that do not hold, with both values; every one must name a number."""
    tree, references = parsed(condition, numbers)
    found = []
    for part in tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]:
        if not isinstance(part, ast.Compare) or not all(type(op) in COMPARISONS for op in part.ops):
            raise ClaimError(f"expected comparisons with > >= < <=, joined by and, in {condition!r}")
        sides = [part.left, *part.comparators]
        if not any(isinstance(node, ast.Name) for side in sides for node in ast.walk(side)):
            raise ClaimError(f"expected a number of a table in each comparison of {condition!r}")
        values = [_value(side, references, condition) for side in sides]
        for one, op, other in zip(values, part.ops, values[1:], strict=False):
            if not COMPARISONS[type(op)](one, other):
                found.append(f"{one:.6g} and {other:.6g}")
    return found


def _value(node: ast.expr, references: list[list[float]], words: str) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name) if re.fullmatch(r"r\d+", name):
            return only(references[int(name[1:])], words)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](_value(left, references, words), _value(right, references, words))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, references, words)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            values = [value for part in arguments for value in _values(part, references, words)]
            return FUNCTIONS[name](values) if name != "abs" else abs(only(values, words))
    raise ClaimError(f"expected + - * / ( ) min max abs in {words!r}")


def _values(node: ast.expr, references: list[list[float]], words: str) -> list[float]:
    if isinstance(node, ast.Name) and re.fullmatch(r"r\d+", node.id):
        return references[int(node.id[1:])]
    return [_value(node, references, words)]


def only(values: list[float], words: str) -> float:
    if len(values) != 1:
        raise ClaimError(f"expected one row for {words!r}, found {len(values)}; put several into min() or max()")
    return values[0]


# ---------------------------------------------------------------- comparison

BOUNDS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def unit(written: str) -> float:
    """Return what one step in the last digit that counts is worth."""
    if written.lower() in WORDS:
        return 10.0 ** math.floor(math.log10(WORDS[written.lower()]))
    mantissa, _, exponent = written.replace(",", "").lstrip("-+").partition("e")
    power = int(exponent or 0)
    if "." in mantissa or exponent:
        return 10.0 ** (power - len(mantissa.partition(".")[2]))
    zeros = len(mantissa) - len(mantissa.rstrip("0"))
    return 10.0 ** max(0, min(zeros, len(mantissa) - 2))


def agrees(found: Found, value: float, bound: str = "") -> bool:
    """Whether a number as written on a page says what its source does."""
    if bound == "~":
        return abs(found.value - value) <= 0.1 * abs(value)
    if bound:
        return bool(BOUNDS[bound](found.value, value))
    return abs(found.value - value) <= unit(found.written) / 2 * (1 + 1e-9)


def rewritten(written: str, value: float) -> str:
    """Return a value with as many digits as the number that it replaces."""
    mantissa, _, exponent = written.replace(",", "").lstrip("-+").partition("e")
    places = len(mantissa.partition(".")[2])
    if exponent:
        digits, _, power = f"{value:.{places}e}".partition("e")
        return f"{digits}e{int(power)}"
    if places:
        return f"{value:{'+' if written[0] == '+' else ''},.{places}f}"
    step = unit(written)
    return f"{round(value / step) * step:{'+' if written[0] == '+' else ''},.0f}"


def split_bound(source: str) -> tuple[str, str]:
    match = re.match(r"\s*(>=|<=|>|<|~)?\s*(.*)", source, flags=re.DOTALL)
    assert match is not None
    return match[1] or "", match[2]


# ---------------------------------------------------------------- the check


@dataclass
class Verdict:
    """What was found: problems, and what is known to be unfinished."""

    problems: list[str] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    decided: int = 0
    undeclared: list[str] = field(default_factory=list)
    unrecorded: dict[str, int] = field(default_factory=dict)
    # By page: places of wrong numbers, and what should stand there.
    right: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)


class Checker:
    """Checks one page against its entries in the registry."""

    def __init__(self, page: Page, entries: dict[str, Any], numbers: Numbers, verdict: Verdict) -> None:
        self.page, self.entries, self.numbers, self.verdict = page, entries, numbers, verdict
        self.found = page.numbers()
        self.declared: set[int] = set()

    def problem(self, place: int, words: str) -> None:
        self.verdict.problems.append(f"{self.page.name}:{self.page.line(place)}: {words}")

    def complain(self, words: str) -> None:
        self.verdict.problems.append(f"{self.page.name}: {words}")

    def within(self, start: int, end: int) -> list[Found]:
        return [found for found in self.found if start <= found.start and found.end <= end]

    def declare(self, start: int, end: int) -> int:
        inside = self.within(start, end)
        self.declared.update(found.start for found in inside)
        return len(inside)

    def check(self, everywhere: Sequence[str]) -> None:
        for key in set(self.entries) - {"claims", "tables", "given", "unrecorded", "verdicts"}:
            self.complain(f"unknown entry {key!r} in the registry")
        for entry in self.entries.get("claims", []):
            self.claim(entry["text"], [entry["is"]] if isinstance(entry["is"], str) else entry["is"])
        for entry in self.entries.get("tables", []):
            self.table(entry)
        for entry in self.entries.get("verdicts", []):
            self.verdict_holds(entry["text"], entry["is"])
        for kind, texts in self.entries.get("given", {}).items():
            if kind not in KINDS:
                self.complain(f"expected one of {', '.join(KINDS)} for given, found {kind!r}")
            for text in texts:
                self.given(text)
        for words in everywhere:
            for match in pattern(words).finditer(self.page.text):
                self.declare(match.start(), match.end())
        for entry in self.entries.get("unrecorded", []):
            self.unrecorded(entry)
        for found in self.found:
            if found.start not in self.declared:
                self.verdict.undeclared.append(
                    f"{self.page.name}:{self.page.line(found.start)}: {self.page.around(found)}"
                )
                self.problem(found.start, f"{found.written} has no source: ... {self.page.around(found)} ...")

    def given(self, text: str) -> None:
        matches = list(pattern(text).finditer(self.page.text))
        if "#" in text:
            self.complain(f"only [everywhere] may leave the number of {text!r} open")
        if not sum(self.declare(match.start(), match.end()) for match in matches):
            self.complain(f"{text!r} is declared, but no number stands there")

    def unrecorded(self, entry: dict[str, str]) -> None:
        """Count the numbers between two texts that nothing else has declared."""
        between = re.compile(f"{pattern(entry['from']).pattern}.*?{pattern(entry['to']).pattern}", flags=re.DOTALL)
        matches = list(between.finditer(self.page.text))
        before = len(self.declared)
        if len(matches) == 1:
            self.declare(*matches[0].span())
        if len(self.declared) == before:
            self.complain(f"expected numbers without a source from {entry['from']!r} to {entry['to']!r}, found none")
        counts = self.verdict.unrecorded
        counts[entry["by"]] = counts.get(entry["by"], 0) + len(self.declared) - before

    def claim(self, text: str, sources: list[str]) -> None:
        matches = list(pattern(text).finditer(self.page.text))
        if len(matches) != 1 or text.count("#") != len(sources) or not sources:
            self.complain(
                f"expected {text!r} once, with as many # as sources, found it {len(matches)} times with "
                f"{text.count('#')} # and {len(sources)} sources"
            )
            return
        self.declare(matches[0].start(), matches[0].end())
        for place, source in enumerate(sources, 1):
            start, end = matches[0].span(place)
            inside = self.within(start, end)
            if len(inside) != 1:
                self.problem(start, f"{text!r}: # number {place} is not in prose")
            elif split_bound(source)[0] == "~" and not any(word in text for word in ROUGHLY):
                self.problem(start, f"{text!r}: ~ asks for one of {', '.join(ROUGHLY)} in the text")
            else:
                self.compare(inside[0], source)

    def verdict_holds(self, text: str, condition: str) -> None:
        """Check that the words of a verdict stand once on the page, and that the tables decide so."""
        matches = list(pattern(text).finditer(self.page.text))
        if len(matches) != 1:
            self.complain(f"expected the verdict {text!r} once, found it {len(matches)} times")
            return
        try:
            wrong = failing(condition, self.numbers)
        except WaitingError as error:
            self.verdict.waiting[str(error)] = self.verdict.waiting.get(str(error), 0) + 1
        except (ClaimError, ZeroDivisionError) as error:
            self.problem(matches[0].start(), str(error))
        else:
            self.verdict.decided += 1
            if wrong:
                self.problem(matches[0].start(), f"says {text!r}, but {condition} is false: {'; '.join(wrong)}")

    def compare(self, found: Found, source: str) -> None:
        bound, expression = split_bound(source)
        try:
            value = evaluate(expression, self.numbers)
        except WaitingError as error:
            self.verdict.waiting[str(error)] = self.verdict.waiting.get(str(error), 0) + 1
        except (ClaimError, ZeroDivisionError) as error:
            self.problem(found.start, str(error))
        else:
            self.verdict.compared += 1
            if not agrees(found, value, bound):
                self.problem(found.start, f"says {found.written}, but {source} is {value:.6g}")
                if not bound and found.written.lower() not in WORDS:
                    mended = (found.start, found.end, rewritten(found.written, value))
                    self.verdict.right.setdefault(self.page.name, []).append(mended)

    def table(self, entry: dict[str, Any]) -> None:
        heads = [part.strip() for part in entry["head"].split("|")]
        tables = [table for table in tables_of(self.page.text) if table.heads[: len(heads)] == heads]
        if len(tables) != 1:
            self.complain(f"expected one table {entry['head']!r}, found {len(tables)}")
            return
        rows, columns = entry.get("rows", {}), entry.get("columns", {})
        lines = self.page.text[tables[0].start :].split("\n")
        place = tables[0].start + len(lines[0]) + len(lines[1]) + 2
        for line, row in zip(lines[2:], tables[0].rows, strict=False):
            source_row = rows.get(row[0], row[0])
            for index, cell in self._cells(line, place):
                head = tables[0].heads[index]
                column = columns.get(head, head)
                if index and source_row and column:
                    for order, found in enumerate(self.within(*cell), 1):
                        self.declared.add(found.start)
                        self.compare(found, f"{entry['source']} | {source_row} | {column} #{order}")
            place += len(line) + 1

    @staticmethod
    def _cells(line: str, place: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the places of the cells of a line, its first bar left out."""
        at = place + line.index("|") + 1
        for index, cell in enumerate(line.strip().strip("|").split("|")):
            yield index, (at, at + len(cell))
            at += len(cell) + 1


def check_numbers(folder: Path, without: Sequence[str], waiting: dict[str, str], verdict: Verdict) -> list[str]:
    """Check the last line of every numbers file; return the names of those that may still lack it."""
    lacking = []
    for path in sorted(folder.glob("*.md")):
        last = path.read_text(encoding="utf-8").rstrip().splitlines()[-1:]
        match = PROVENANCE.fullmatch(last[0]) if last else None
        if match and path.stem in without:
            verdict.problems.append(f"{path.name}: has its provenance; take it off the list without_provenance")
        elif not match and path.stem in without:
            lacking.append(path.stem)
        elif not match:
            verdict.problems.append(f"{path.name}: the last line is no provenance")
        if path.stem in waiting:
            verdict.problems.append(f"{path.name}: is here; take it off the list waiting")
    verdict.problems += [
        f"{name}.md: on the list without_provenance, but not here"
        for name in without
        if not (folder / f"{name}.md").exists()
    ]
    return lacking


def pages(root: Path) -> Iterator[Path]:
    yield root / "README.md"
    for path in sorted((root / "docs").rglob("*.md")):
        place = path.relative_to(root).parts
        if place[:3] != ("docs", "results", "numbers") and not {"_build", "jupyter_execute"} & set(place):
            yield path


def verify(root: Path, registry: dict[str, Any]) -> tuple[Verdict, list[str]]:
    """Check all pages; return what was found and the numbers files that lack their provenance."""
    settings = {key: registry.get(key, {}) for key in ("everywhere", "numbers", "exempt")}
    waiting = settings["numbers"].get("waiting", {})
    numbers = Numbers(root / "docs/results/numbers", waiting)
    verdict = Verdict()
    entries = {name: value for name, value in registry.items() if name not in settings}
    for path in pages(root):
        name = path.relative_to(root).as_posix()
        if any(fnmatch(name, exempt) for exempt in settings["exempt"]):
            continue
        page = Page.read(name, path.read_text(encoding="utf-8"))
        everywhere = [text for texts in settings["everywhere"].values() for text in texts]
        Checker(page, entries.pop(name, {}), numbers, verdict).check(everywhere)
    verdict.problems += [f"{name}: in the registry, but no page that is checked" for name in entries]
    verdict.problems += [
        f"{name}: on the list waiting, but nothing waits for it" for name in set(waiting) - set(verdict.waiting)
    ]
    without = settings["numbers"].get("without_provenance", [])
    return verdict, check_numbers(numbers.folder, without, waiting, verdict)


def mend(root: Path, right: dict[str, list[tuple[int, int, str]]]) -> None:
    """Write the right numbers in place of the wrong ones, and say where."""
    for name, places in right.items():
        path = root / name
        text = path.read_text(encoding="utf-8")
        for start, end, number in sorted(set(places), reverse=True):
            print(f"{name}:{text.count(chr(10), 0, start) + 1}: {text[start:end]} becomes {number}")
            text = text[:start] + number + text[end:]
        path.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="only numbers without any entry")
    parser.add_argument("--mend", action="store_true", help="put wrong numbers right, where the source is a number")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    registry = tomllib.loads((chosen.root / "benchmarks/claims.toml").read_text(encoding="utf-8"))
    verdict, lacking = verify(chosen.root, registry)
    if chosen.mend:
        mend(chosen.root, verdict.right)
        verdict, lacking = verify(chosen.root, registry)
    if chosen.list:
        print(*verdict.undeclared, sep="\n")
        return 0
    for name, count in verdict.waiting.items():
        print(f"warning: {count} numbers wait for {name}.md: {registry['numbers']['waiting'][name]}", file=sys.stderr)
    for command, count in verdict.unrecorded.items():
        print(f"warning: {count} numbers without a numbers file: {command}", file=sys.stderr)
    for name in lacking:
        print(f"warning: {name}.md has no provenance yet", file=sys.stderr)
    print(*verdict.problems, sep="\n", end="\n" if verdict.problems else "")
    checked = f"{verdict.compared} numbers compared, {verdict.decided} verdicts decided"
    print(f"{checked}, {len(verdict.problems)} problems", file=sys.stderr)
    return int(bool(verdict.problems))


if __name__ == "__main__":
    sys.exit(main())
