"""Studies to report on, and the browser that looks at the pages."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from playwright.sync_api import sync_playwright

import heatmover as hm
from heatmover.report import write_report
from heatmover.study.cell_map import CellMap
from heatmover.study.study import study_comparison

HOSTILE_NAMES = (
    "<script>window.hacked = 1; alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '"\'`quotes\\ onmouseover=alert(1) x="',
    "x" * 5000,
    "Zoë 样本 🧬 \u202egnp.exe \u0001",
    "{{ 7 * 7 }} {% include 'page.html' %}",
    "<b>bold</b> &amp; &lt;i&gt; <!-- comment",
    "$\\alpha$ %{x} <extra></extra>",
    "line\u2028separator\u2029 tab\tnew\nline",
    "javascript:alert(1)",
    " ",
    "__proto__",
)
HOSTILE_VARIABLE = "<img src=x onerror=alert(2)>"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Page(HTMLParser):
    """The start tags of a page in order, its scripts, and its text outside them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self.texts = [], [], []
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open = tag if tag in {"script", "style"} else ""
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "script":
            self.scripts[-1] += data
        elif not self._open:
            self.texts.append(data)


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def page_data(path_or_text):
    text = path_or_text if isinstance(path_or_text, str) else path_or_text.read_text(encoding="utf-8")
    return json.loads(Page(text).scripts[0], parse_constant=refuse)


@pytest.fixture(scope="session")
def parsed():
    """Return how to take a page apart."""
    return Page


@pytest.fixture(scope="session")
def data_of():
    """Return how to read the data in a page."""
    return page_data


@pytest.fixture(scope="session")
def hostile_names():
    return HOSTILE_NAMES


def compared(n_samples=12, *, names=None, cells=30):
    data = hm.datasets.cohort(n_samples, cells_per_sample=cells, effect=4.0, random_state=0)
    own = list(data.measures().names)
    to = dict(zip(own, names or own, strict=True))
    labels = np.array([to[label] for label in data.labels], dtype=object)
    comparison = hm.compare(data.points, labels, n_neighbors=10)
    conditions = dict(zip(to.values(), data.annotations["condition"], strict=True))
    return comparison, [conditions[name] for name in comparison.names], data.coordinates[:, 0].astype(int)


def with_map(study, name, types):
    """A study with a map of its 360 cells."""
    places = np.random.default_rng(0).normal(size=(360, 2))
    groups = tuple(study.findings[0].groups)
    cells = CellMap(
        name, places, np.repeat(np.arange(12, dtype=np.int32), 30), np.tanh(places[:, 0]), study.findings[0].variable,
        groups, (np.arange(360) % len(types)).astype(np.int32), tuple(types),
    )  # fmt: skip
    return replace(study, cell_map=cells)


@pytest.fixture(scope="session")
def plain_study():
    """Twelve samples with groups, a number with gaps, and codes."""
    comparison, condition, branch = compared()
    age = [float(20 + 3 * i) if i % 5 else np.nan for i in range(12)]
    variables = {"condition": condition, "age": age, "sex": [i % 2 for i in range(12)]}
    study = study_comparison(comparison, variables, cells={"branch": [f"branch {i}" for i in branch]})
    return with_map(study, "X_umap", [f"type {i}" for i in range(15)])


@pytest.fixture(scope="session")
def hostile_study():
    comparison, condition, branch = compared(names=HOSTILE_NAMES)
    groups = [{"case": "<i>case</i>", "control": '"control" & co </script>'}[value] for value in condition]
    variables = {HOSTILE_VARIABLE: groups, "y" * 3000: [float(i) if i % 4 else None for i in range(12)]}
    kinds = [HOSTILE_NAMES[i] for i in branch]
    variables |= {"constructor": list("abcdabcdabcd")}
    return with_map(
        study_comparison(comparison, variables, cells={HOSTILE_VARIABLE: kinds}), HOSTILE_NAMES[0], HOSTILE_NAMES
    )


@pytest.fixture(scope="session")
def pages(plain_study, hostile_study, tmp_path_factory):
    """The reports as files, by name."""
    folder = tmp_path_factory.mktemp("reports")
    for name, study in {"plain": plain_study, "hostile": hostile_study}.items():
        write_report(study, folder / f"{name}.html", title=HOSTILE_NAMES[0] if name == "hostile" else None)
    return folder


def find_chromium():
    """Return the browser's path; without one skip the test, or fail it where HEATMOVER_REQUIRE_BROWSER or CI is set."""
    program = os.environ.get("HEATMOVER_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        message = "no Chromium found; install it (Debian: apt-get install chromium) or name it in HEATMOVER_CHROMIUM"
        if any(
            os.environ.get(name, "").lower() in {"1", "true", "yes"} for name in ("HEATMOVER_REQUIRE_BROWSER", "CI")
        ):
            pytest.fail(f"The browser tests must run here: {message}.")
        pytest.skip(message)
    return program


@pytest.fixture(scope="session")
def chromium_finder():
    return find_chromium


@pytest.fixture(scope="session")
def browser():
    program = find_chromium()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield launched
        launched.close()


class Reader:
    """An open page, and all that went wrong in it."""

    def __init__(self, context):
        self.context = context
        self.page = context.new_page()
        self.problems, self.requests = [], []
        self.page.on("console", lambda message: self.problems.append(f"console {message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._refuse)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _refuse(self, dialog):
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path):
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        return self.page


@pytest.fixture(scope="session")
def opened(browser):
    """Pages that are open already: one takes a second to open, and much of it is reading plotly."""
    readers = {}
    yield readers
    for one in readers.values():
        one.context.close()


@pytest.fixture
def reader(browser, opened):
    """Return a function that opens a page at a width; at the end it must have been quiet and have loaded nothing."""

    def open_page(path, *, width=1400, color_scheme="light", permissions=()):
        key = (path, width, color_scheme)
        if key not in opened:
            screen = {"viewport": {"width": width, "height": 900}, "reduced_motion": "reduce"}
            opened[key] = Reader(browser.new_context(offline=True, **screen, color_scheme=color_scheme))
            opened[key].open(path)
        opened[key].context.grant_permissions(list(permissions))
        return opened[key].page

    yield open_page
    assert [problem for one in opened.values() for problem in one.problems] == []
    urls = [url[:80] for one in opened.values() for url in one.requests]
    assert urls
    assert [url for url in urls if not url.startswith(("file:", "data:", "blob:"))] == []
