"""Check the built pages: ``python docs/check_site.py docs/_build/html``; the last step of ``make docs``.

Without a browser, over all pages: every link within the site and every anchor exists; nothing is loaded from elsewhere;
no formula was left as TeX; every public name has its page, and a guide that links to it. In headless Chromium without
a network, where there is one (HEATMOVER_CHROMIUM or ``chromium``): no request fails, no page scrolls sideways on a
phone, no TeX is to be seen. ``--pages 12`` opens that many pages instead of all.

Prints one line per problem; the exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

PHONE = 390
# Commands of LaTeX, or a pair of dollars around something that only mathematics has.
TEX = re.compile(
    r"\\(?:frac|sum|mathbb|mathcal|alpha|mu|ell|lVert|operatorname|begin|left|quad)\b|\$[^$\n]{0,80}[\\^_][^$\n]{0,80}\$"
)
# Where TeX may stand: code.
CODE = {"code", "pre", "script", "style", "annotation", "title"}
# Attributes that load something, by element.
LOADING = {
    "img": ("src",),
    "script": ("src",),
    "iframe": ("src",),
    "source": ("src",),
    "video": ("src",),
    "object": ("data",),
    "link": ("href",),
}
# Links of the head that are addresses, not things to load.
QUIET = {"canonical", "next", "prev", "index", "search", "genindex", "author", "copyright"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Page(HTMLParser):
    """What the check needs of a page: its anchors, its links, what it loads, and its text outside code."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: set[str] = set()
        self.links: list[str] = []
        # Without those of the navigation, which leads everywhere.
        self.links_in_text: list[str] = []
        self.loaded: list[str] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
            if "article" in self._open:
                self.links_in_text.append(given["href"] or "")
        if not (tag == "link" and set((given.get("rel") or "").split()) & QUIET):
            self.loaded += [value for key in LOADING.get(tag, ()) if (value := given.get(key))]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while tag in self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not CODE.intersection(self._open):
            self.text.append(data)


def read_site(folder: Path) -> dict[Path, Page]:
    """Return the pages of a site by their paths; reports of runs are tested elsewhere."""
    found = {path.resolve(): path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts}
    return {
        path: Page(path.read_text(encoding="utf-8"))
        for path in found
        if path.relative_to(folder.resolve()).parts[0] != "demo"
    }


def hidden_pages(site: dict[Path, Page], folder: Path) -> Iterator[str]:
    """Yield pages of ours that have the name of one that Sphinx makes, and so are lost."""
    for name in ("search", "genindex", "py-modindex"):
        if (Path(__file__).parent / f"{name}.md").exists() and folder.resolve() / f"{name}.html" in site:
            yield f"{name}.md: Sphinx has a page of that name; choose another"


def broken_links(site: dict[Path, Page], folder: Path) -> Iterator[str]:
    """Yield links to pages, files and anchors that do not exist."""
    # As text: the navigation of some hundred pages holds a hundred thousand links.
    root = folder.resolve()
    files = {str(path) for path in root.rglob("*") if path.is_file()}
    anchors = {str(path): page.anchors for path, page in site.items()}
    for path, page in site.items():
        for link in dict.fromkeys([*page.links, *page.loaded]):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = os.path.normpath(f"{path.parent}/{unquote(parts.path)}") if parts.path else str(path)
            if parts.path.endswith("/"):
                target += "/index.html"
            if target not in files:
                yield f"{path.relative_to(root)}: {link} leads nowhere"
            elif parts.fragment and target in anchors and unquote(parts.fragment) not in anchors[target]:
                yield f"{path.relative_to(root)}: {link} names an anchor that does not exist"


def loaded_from_elsewhere(site: dict[Path, Page], folder: Path) -> Iterator[str]:
    """Yield what a page would fetch from the network."""
    for path, page in site.items():
        for link in page.loaded:
            if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc:
                yield f"{path.relative_to(folder.resolve())}: loads {link}"


def raw_tex(site: dict[Path, Page], folder: Path) -> Iterator[str]:
    """Yield pages on which TeX is to be read outside code."""
    for path, page in site.items():
        if match := TEX.search(" ".join(page.text)):
            yield f"{path.relative_to(folder.resolve())}: raw TeX, {match.group()!r}"


def names_without_page_or_guide(site: dict[Path, Page], folder: Path) -> Iterator[str]:
    """Yield public names that have no page of their own, or that no guide links to."""
    sys.path.insert(0, str(Path(__file__).parent / "_ext"))
    from mentions import NO_GUIDES
    from public_names import own_pages

    root = folder.resolve()
    guides = [path for path in site if not path.relative_to(root).as_posix().startswith(NO_GUIDES)]
    linked = {
        (path.parent / urlsplit(link).path).resolve().name
        for path in guides
        for link in site[path].links_in_text
        if "reference/generated/" in link
    }
    for name in own_pages():
        page = root / "reference" / "generated" / f"{name}.html"
        if page not in site or name not in site[page].anchors:
            yield f"{name}: no page of its own"
        elif page.name not in linked:
            yield f"{name}: no guide links to it"


def in_browser(pages: Iterable[Path], program: str) -> Iterator[str]:
    """Open pages without a network, as on a phone, and yield what is wrong with them."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": PHONE, "height": 844}, offline=True)
        tab = context.new_page()
        problems: list[str] = []
        tab.on("requestfailed", lambda request: problems.append(f"the request of {request.url} failed"))
        tab.on("pageerror", lambda error: problems.append(f"script error: {error}"))
        for path in pages:
            tab.goto(path.as_uri())
            tab.wait_for_load_state("load")
            width = tab.evaluate("document.documentElement.scrollWidth")
            if width > PHONE:
                widest = tab.evaluate(WIDEST, PHONE)
                problems.append(f"{width} pixels wide on a phone of {PHONE}: {widest}")
            if match := TEX.search(tab.evaluate(VISIBLE)):
                problems.append(f"shows TeX: {match.group()!r}")
            yield from (f"{path.name}: {problem}" for problem in problems)
            problems.clear()
        browser.close()


# The elements that make a page too wide: those that reach past it and are not inside a box that scrolls.
WIDEST = """(width) => [...document.querySelectorAll('article *')].filter((one) => {
  if (one.getBoundingClientRect().right <= width + 1) return false;
  for (let box = one; box; box = box.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(box).overflowX)) return false;
  return true;
}).slice(-1).map((one) => one.outerHTML.slice(0, 120)).join()"""
# What a reader sees, but for code and for formulas that were drawn.
VISIBLE = """() => {
  const copy = document.querySelector('article, [role=main]').cloneNode(true);
  copy.querySelectorAll('code, pre, script, style, math').forEach((one) => one.remove());
  return copy.textContent;
}"""


def find_chromium() -> str | None:
    return os.environ.get("HEATMOVER_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", type=int, help="open so many pages in the browser; all without it")
    arguments = parser.parse_args()
    site = read_site(arguments.folder)
    problems = [
        problem
        for check in (hidden_pages, broken_links, loaded_from_elsewhere, raw_tex, names_without_page_or_guide)
        for problem in check(site, arguments.folder)
    ]
    program = find_chromium()
    if program is not None and _has_playwright():
        step = 1 if arguments.pages is None else max(1, len(site) // arguments.pages)
        problems += in_browser(list(site)[::step], program)
    for problem in problems:
        print(problem)
    how = "in a browser too" if program else "not in a browser: no Chromium found"
    print(f"{len(site)} pages checked, {how}: {len(problems)} problem{'s' * (len(problems) != 1)}")
    return 1 if problems or not site else 0


def _has_playwright() -> bool:
    from importlib.util import find_spec

    return find_spec("playwright") is not None


if __name__ == "__main__":
    sys.exit(main())
