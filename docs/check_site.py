"""Check the built pages: ``python docs/check_site.py docs/_build/html``; the last step of ``make docs``.

Without a browser, on all pages: every internal link and anchor exists; nothing is loaded from another site; no formula
is left as TeX; every public name has a page, a guide that links to it and a line in the index of the reference; "next"
visits the decisions last.

If Chromium is installed (HEATMOVER_CHROMIUM or ``chromium``), offline, at the widths of a phone and of a desktop, light
and dark: no request fails, no page scrolls sideways, nothing is clipped, all text has enough contrast, every picture
has a light background, no TeX is visible. ``--pages 12`` opens 12 pages instead of all.

Prints one line per problem; the exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

WIDTHS = {"phone": 390, "desk": 1300}
THEMES = ("light", "dark")
# Smallest contrast of text, on a scale from 1 to 21: WCAG, level AA.
CONTRAST = 4.5
# A page loads in a tenth of a second, but a busy machine may need long.
PATIENCE = 120_000  # ms
# LaTeX commands, or a pair of dollar signs around mathematical symbols.
TEX = re.compile(
    r"\\(?:frac|sum|mathbb|mathcal|alpha|mu|ell|lVert|operatorname|begin|left|quad)\b|\$[^$\n]{0,80}[\\^_][^$\n]{0,80}\$"
)
# Elements that may contain TeX.
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
# Links in the head that load nothing.
QUIET = {"canonical", "next", "prev", "index", "search", "genindex", "author", "copyright"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Page(HTMLParser):
    """A built page: its anchors, its links, the files that it loads, and its text outside code."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: set[str] = set()
        self.links: list[str] = []
        # Without the links of the navigation, which lead to every page.
        self.links_in_text: list[str] = []
        self.loaded: list[str] = []
        self.next = ""
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
        if tag == "link" and given.get("rel") == "next":
            self.next = given["href"] or ""
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
    """Return the pages of a site by path, without reports of runs, which other tests check."""
    found = {path.resolve(): path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts}
    return {
        path: Page(path.read_text(encoding="utf-8"))
        for path in found
        if path.relative_to(folder.resolve()).parts[0] != "demo"
    }


def hidden_pages(site: dict[Path, Page], folder: Path) -> Iterator[str]:
    """Yield source pages that Sphinx overwrites, because it generates a page of the same name."""
    for name in ("search", "genindex", "py-modindex"):
        if (Path(__file__).parent / f"{name}.md").exists() and folder.resolve() / f"{name}.html" in site:
            yield f"{name}.md: Sphinx has a page of that name; choose another"


def broken_links(site: dict[Path, Page], folder: Path) -> Iterator[str]:
    """Yield links to pages, files and anchors that do not exist."""
    # Compared as text: the navigation of some hundred pages has a hundred thousand links.
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
    """Yield files that a page would load from the network."""
    for path, page in site.items():
        for link in page.loaded:
            if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc:
                yield f"{path.relative_to(folder.resolve())}: loads {link}"


def raw_tex(site: dict[Path, Page], folder: Path) -> Iterator[str]:
    """Yield pages that show TeX outside code."""
    for path, page in site.items():
        if match := TEX.search(" ".join(page.text)):
            yield f"{path.relative_to(folder.resolve())}: raw TeX, {match.group()!r}"


def names_without_page_or_guide(site: dict[Path, Page], folder: Path) -> Iterator[str]:
    """Yield public names that have no page, no guide that links to them, or no line in the index."""
    sys.path.insert(0, str(Path(__file__).parent / "_ext"))
    from mentions import NO_GUIDES
    from public_names import own_pages

    root = folder.resolve()
    guides = [path for path in site if not path.relative_to(root).as_posix().startswith(NO_GUIDES)]
    linked = {
        PurePosixPath(urlsplit(link).path).name
        for path in guides
        for link in site[path].links_in_text
        if "reference/generated/" in link
    }
    index = site.get(root / "reference" / "index.html")
    listed = {PurePosixPath(urlsplit(link).path).name for link in index.links_in_text} if index else None
    for name in own_pages():
        page = root / "reference" / "generated" / f"{name}.html"
        if page not in site or name not in site[page].anchors:
            yield f"{name}: no page of its own"
        elif page.name not in linked:
            yield f"{name}: no guide links to it"
        if listed is not None and page.name not in listed:
            yield f"{name}: not in the index of the reference"


def decisions_on_the_way(site: dict[Path, Page], folder: Path) -> Iterator[str]:
    """Yield pages that a reader who clicks "next" reaches only through the decisions."""
    root = folder.resolve()
    path, passed = root / "index.html", False
    while (page := site.get(path)) is not None:
        name = path.relative_to(root).as_posix()
        if passed and not name.startswith("decisions/"):
            yield f"{name}: comes after the decisions"
        passed = passed or name.startswith("decisions/")
        if not page.next:
            return
        path = (path.parent / page.next).resolve()


def in_browser(pages: Iterable[Path], program: str) -> Iterator[str]:
    """Open pages offline, at the widths of a phone and of a desktop, light and dark, and yield the problems."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_context(offline=True).new_page()
        tab.set_default_timeout(PATIENCE)
        problems: list[str] = []
        # The browser cancels what a page still loads, such as its icon, when the next page is opened.
        tab.on(
            "requestfailed",
            lambda request: (
                request.failure == "net::ERR_ABORTED" or problems.append(f"the request of {request.url} failed")
            ),
        )
        tab.on("pageerror", lambda error: problems.append(f"script error: {error}"))
        # Each page is loaded once and then resized, because loading takes most of the time.
        for path in pages:
            tab.goto(path.as_uri())
            if match := TEX.search(tab.evaluate(VISIBLE)):
                problems.append(f"shows TeX: {match.group()!r}")
            for device, width in WIDTHS.items():
                tab.set_viewport_size({"width": width, "height": 900})
                problems += [f"on a {device}, {problem}" for problem in tab.evaluate(TOO_WIDE, width)]
            for theme in THEMES:
                tab.emulate_media(color_scheme=theme)
                problems += [f"{theme}, {problem}" for problem in tab.evaluate(HARD_TO_SEE, CONTRAST)]
            yield from (f"{path.name}: {problem}" for problem in problems)
            problems.clear()
        browser.close()


# Finds pages that scroll sideways, with the last element that is too wide outside a scrolling box, and boxes that clip
# their content. Boxes of one or two pixels are for screen readers.
TOO_WIDE = """(width) => {
  const found = [], style = (one) => getComputedStyle(one).overflowX;
  const start = (one) => one.outerHTML.slice(0, 120);
  if (document.documentElement.scrollWidth > width) {
    const wide = [...document.querySelectorAll('article *')].filter((one) => {
      if (one.getBoundingClientRect().right <= width + 1) return false;
      for (let box = one; box; box = box.parentElement)
        if (['auto', 'scroll', 'hidden', 'clip'].includes(style(box))) return false;
      return true;
    });
    found.push(`${document.documentElement.scrollWidth} pixels wide: ${wide.slice(-1).map(start)}`);
  }
  for (const one of document.querySelectorAll('article, article *'))
    if (one.clientWidth > 2 && one.scrollWidth > one.clientWidth + 1 && ['hidden', 'clip'].includes(style(one)))
      found.push(`clipped: ${start(one)}`);
  return found;
}"""
# Finds text with too little contrast, and pictures on a dark background, except the icons that unfold Sphinx's lists.
HARD_TO_SEE = """(least) => {
  const found = new Map(), seen = new Set();
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const linear = (x) => x <= 0.04 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
    const [red, green, blue] = numbers(color).map((x) => linear(x / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const opaque = (color) => (numbers(color)[3] ?? 1) > 0.5;
  const ground = (one) => {
    for (let box = one; box; box = box.parentElement)
      if (opaque(getComputedStyle(box).backgroundColor)) return getComputedStyle(box).backgroundColor;
    return 'rgb(255, 255, 255)';
  };
  const article = document.querySelector('article, [role=main]');
  const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (seen.has(one) || !walker.currentNode.data.trim() || one.closest('script, style, button, .headerlink')) continue;
    seen.add(one);
    const [color, back] = [getComputedStyle(one).color, ground(one)];
    if (!one.checkVisibility()) continue;
    const [low, high] = [light(color), light(back)].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    const pair = `${color} on ${back} has a contrast of ${contrast.toFixed(1)}`;
    if (contrast < least && !found.has(pair)) found.set(pair, one.outerHTML.slice(0, 120));
  }
  for (const one of article.querySelectorAll('img:not(.toggler)')) {
    const back = ground(one);
    if (light(back) < 0.5) found.set(`a picture on ${back}`, one.outerHTML.slice(0, 120));
  }
  return [...found].map(([fault, where]) => `${fault}: ${where}`);
}"""
# Returns the visible text without code and without rendered formulas.
VISIBLE = """() => {
  const copy = document.querySelector('article, [role=main]').cloneNode(true);
  copy.querySelectorAll('code, pre, script, style, math').forEach((one) => one.remove());
  return copy.textContent;
}"""


CHECKS = (hidden_pages, broken_links, loaded_from_elsewhere, raw_tex, names_without_page_or_guide, decisions_on_the_way)


def find_chromium() -> str | None:
    return os.environ.get("HEATMOVER_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", type=int, help="number of pages to open in the browser (all)")
    arguments = parser.parse_args()
    site = read_site(arguments.folder)
    problems = [problem for check in CHECKS for problem in check(site, arguments.folder)]
    program = find_chromium()
    lacking = "Chromium" if program is None else "" if _has_playwright() else "playwright"
    how = f"not in a browser: {lacking} is missing" if lacking else "in a browser too"
    if program is not None and not lacking:
        step = 1 if arguments.pages is None else max(1, len(site) // arguments.pages)
        problems += in_browser(list(site)[::step], program)
    elif os.environ.get("HEATMOVER_REQUIRE_BROWSER"):
        problems.append(how)
    for problem in problems:
        print(problem)
    print(f"{len(site)} pages checked, {how}: {len(problems)} problem{'s' * (len(problems) != 1)}")
    return 1 if problems or not site else 0


def _has_playwright() -> bool:
    from importlib.util import find_spec

    return find_spec("playwright") is not None


if __name__ == "__main__":
    sys.exit(main())
