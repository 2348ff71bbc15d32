"""The documentation as a reader without a network sees it, and the checks that `make docs` ends with."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path

import pytest

pytest.importorskip("torch")  # the site has a page for every public name

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="session")
def check(docs_module):
    return docs_module("check_site")


def text_of(html):
    return unescape(re.sub(r"<[^>]+>", "", html))


def test_every_public_name_is_in_one_table_of_the_reference(docs_module):
    public_names = docs_module("public_names")
    names_of = docs_module("name_index").names_of
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")]
    listed = ["heatmover." + name for page in pages for name in names_of(page)]
    assert len(public_names.own_pages()) > 100
    assert {name for name in listed if listed.count(name) > 1} == set()
    assert set(public_names.own_pages()) - set(listed) == set()


def test_every_public_module_has_a_page(docs_module):
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    modules = set(docs_module("public_names").public_modules()) - {"heatmover"}
    assert {name for name in modules if f".. automodule:: {name}\n" not in pages} == set()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("hm.DiffusionEMD", "heatmover.DiffusionEMD"),
        ("hm.compare(points, labels)", "heatmover.compare"),
        ("heatmover.study.compare", "heatmover.compare"),
        ("hm.tl.samples(adata)", "heatmover.tl.samples"),
        ("Graph.from_points", "heatmover.Graph.from_points"),
        ("pairwise_distances", "heatmover.pairwise_distances"),
        ("permanova(...)", "heatmover.statistics.permanova"),
        ("hm.baselines.exact_emd", "heatmover.transport.baselines.exact_emd"),
        ("np.ndarray", "numpy.ndarray"),
        ("AnnData", "anndata.AnnData"),
        # Words that are a function's name too, and things that are no names.
        ("cohort", None),
        ("line", None),
        ("random_state", None),
        ("heatmover compare", None),
        ("hm", None),
        ("points[0]", None),
        ("--block", None),
    ],
)
def test_code_names_what_it_names_and_nothing_else(docs_module, code, name):
    assert docs_module("mentions").meant(code, "tutorial") == name


def test_a_bare_name_is_one_on_the_page_of_its_module(docs_module):
    meant = docs_module("mentions").meant
    assert meant("line", "reference/datasets") == "heatmover.datasets.line"
    assert meant("line", "reference/statistics") is None


def test_mentions_are_links(site):
    page = (site / "names.html").read_text(encoding="utf-8")
    links = {text_of(text): href for href, text in re.findall(r'<a [^>]*href="([^"]+)"[^>]*>(.*?)</a>', page)}
    assert links["hm.DiffusionEMD"] == "reference/generated/heatmover.DiffusionEMD.html#heatmover.DiffusionEMD"
    assert links["Graph.from_points(points)"].endswith("heatmover.Graph.html#heatmover.Graph.from_points")
    assert links["DiffusionEMD.max_scale_"].endswith("#heatmover.DiffusionEMD")
    assert links["np.ndarray"] == "https://numpy.org/doc/stable/reference/generated/numpy.ndarray.html#numpy.ndarray"
    assert links["AnnData"].startswith("https://anndata.readthedocs.io/")
    # In a code block.
    assert links["hm.Graph.from_points"].endswith("#heatmover.Graph.from_points")
    assert "no_such_name" not in links


def test_a_name_has_its_signature_attributes_and_guides(site):
    page = text_of((site / "reference/generated/heatmover.DiffusionEMD.html").read_text(encoding="utf-8"))
    assert "class heatmover.DiffusionEMD(" in page
    assert "max_scale_ (int)" in page
    assert re.search(r"Used in\s+Names", page)
    method = text_of(
        (site / "reference/generated/heatmover.transport.baselines.exact_emd.html").read_text(encoding="utf-8")
    )
    assert "heatmover.transport.baselines.exact_emd(" in method


def test_every_formula_is_mathml(site):
    page = (site / "formulas.html").read_text(encoding="utf-8")
    assert page.count("<math") > 100
    assert "\\" not in text_of(page.partition("<article")[2].partition("</article>")[0])


def test_all_links_hold_and_nothing_comes_from_elsewhere(check, site):
    pages = check.read_site(site)
    assert len(pages) > 6
    for problems in (check.broken_links, check.loaded_from_elsewhere, check.raw_tex):
        assert list(problems(pages, site)) == []


BAD = {
    "broken_links": '<a href="nowhere.html">x</a>',
    "broken_links anchor": '<a href="#nowhere">x</a>',
    "loaded_from_elsewhere": '<script src="https://cdn.example.org/mathjax.js"></script>',
    "raw_tex": r"<p>the norm $\|x\|_1$</p>",
    "raw_tex command": r"<p>\(\frac{a}{b}\)</p>",
}


@pytest.mark.parametrize("fault", BAD)
def test_a_fault_would_be_found(check, tmp_path, fault):
    (tmp_path / "page.html").write_text(f"<html><body>{BAD[fault]}</body></html>", encoding="utf-8")
    assert list(getattr(check, fault.split()[0])(check.read_site(tmp_path), tmp_path))


def test_a_name_without_a_guide_would_be_found(check, site):
    pages = check.read_site(site)
    problems = list(check.names_without_page_or_guide(pages, site))
    # The small site has pages of four names, and a guide that mentions all of them in its table.
    assert not [one for one in problems if one.startswith(("heatmover.Graph:", "heatmover.tl.samples:"))]
    assert "heatmover.compare: no page of its own" in problems
    guide = next(path for path in pages if path.name == "names.html")
    del pages[guide]
    assert "heatmover.Graph: no guide links to it" in check.names_without_page_or_guide(pages, site)


def test_code_may_show_tex(check, tmp_path):
    (tmp_path / "page.html").write_text(r"<p><code>$\frac{a}{b}$</code> costs $5 or $6</p>", encoding="utf-8")
    assert list(check.raw_tex(check.read_site(tmp_path), tmp_path)) == []


@pytest.fixture(scope="session")
def program(check):
    found = check.find_chromium()
    if found is None:
        if any(
            os.environ.get(name, "").lower() in {"1", "true", "yes"} for name in ("HEATMOVER_REQUIRE_BROWSER", "CI")
        ):
            pytest.fail("The browser tests must run here: no Chromium found.")
        pytest.skip("no Chromium found; install it (Debian: apt-get install chromium) or name it in HEATMOVER_CHROMIUM")
    return found


def apart(function, *arguments):
    """Call a function in a thread of its own: the browser of the report's tests may still be open in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def test_the_search_finds_a_name(site, program):
    found, failed = apart(search_for_a_name, site, program)
    assert any("reference/generated/heatmover.DiffusionEMD.html" in link for link in found)
    assert failed == []


def search_for_a_name(site, program):
    from playwright.sync_api import sync_playwright

    failed = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_context(offline=True).new_page()
        tab.on("requestfailed", lambda request: failed.append(request.url))
        tab.on("pageerror", lambda error: failed.append(str(error)))
        tab.goto((site / "search.html").as_uri() + "?q=DiffusionEMD")
        tab.wait_for_selector("#search-results li", timeout=60_000)
        found = tab.locator("#search-results li a").evaluate_all("links => links.map((one) => one.href)")
        browser.close()
    return found, failed


FAULTY = r"""<html><head><style>
.hidden { width: 100px; overflow: hidden; white-space: nowrap }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } }
@media (min-width: 1000px) { .wide { width: 600px } }
</style></head><body><article>
<img src="gone.png"><p class="wide" style="width: 600px">$\frac{1}{2}$</p>
<p class="hidden">a line that is longer than its box</p><p style="color: #aaa; background: #fff">faint</p>
</article></body></html>"""


def test_a_folded_table_is_printed(site, program, tmp_path):
    style = (site / "_static" / "heatmover.css").as_uri()
    page = tmp_path / "folded.html"
    folded = "<details><summary>Numbers</summary><p>17</p></details>"
    page.write_text(f'<link rel="stylesheet" href="{style}"><article>{folded}</article>', encoding="utf-8")
    assert apart(visible_by_medium, page, program) == {"screen": False, "print": True}


def visible_by_medium(page, program):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_context(offline=True).new_page()
        tab.goto(page.as_uri())
        seen = {}
        for medium in ("screen", "print"):
            tab.emulate_media(media=medium)
            seen[medium] = tab.locator("details p").evaluate("(one) => one.checkVisibility()")
        browser.close()
    return seen


def test_pages_can_be_read_on_a_phone_and_a_desk_in_light_and_dark_without_a_network(check, site, program, tmp_path):
    faulty = tmp_path / "faulty.html"
    faulty.write_text(FAULTY, encoding="utf-8")
    pages = [site / "formulas.html", site / "names.html", site / "reference/generated/heatmover.DiffusionEMD.html"]
    problems = apart(lambda: list(check.in_browser([*pages, faulty], program)))
    # The last page has every fault, so that the check is seen to find them.
    assert {problem.partition(": ")[0] for problem in problems} == {"faulty.html"}
    for words in ("gone.png", "shows TeX", "on a phone, 6", "on a phone, clipped", "on a desk, clipped"):
        assert any(words in problem for problem in problems), words
    for words in ("light, rgb(170, 170, 170) on", "dark, rgb(170, 170, 170) on", "dark, a picture on"):
        assert any(words in problem for problem in problems), words
    assert not any(words in problem for problem in problems for words in ("on a desk, 6", "light, a picture on"))


def test_the_index_of_the_reference_has_every_name_once(docs_module):
    name_index = docs_module("name_index")
    folder = DOCS / "reference"
    text = name_index.filled((folder / "index.md").read_text(encoding="utf-8"), folder)
    names = ["heatmover." + name for name in name_index.names_of(text)]
    assert len(names) == len(set(names))
    assert set(docs_module("public_names").own_pages()) - set(names) == set()
    assert "### [Graph](graph.md)" in text


def test_next_comes_to_the_decisions_last(check, tmp_path):
    order = ["index", "howto/one", "decisions/index", "decisions/0001"]
    for name, following in zip(order, [*order[1:], None], strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        up = "../" * name.count("/")
        link = f'<link rel="next" href="{up}{following}.html">' if following else ""
        (tmp_path / f"{name}.html").write_text(f"<html><head>{link}</head></html>", encoding="utf-8")
    assert list(check.decisions_on_the_way(check.read_site(tmp_path), tmp_path)) == []
    (tmp_path / "decisions/0001.html").write_text('<link rel="next" href="../last.html">', encoding="utf-8")
    (tmp_path / "last.html").write_text("<p>the end</p>", encoding="utf-8")
    assert list(check.decisions_on_the_way(check.read_site(tmp_path), tmp_path)) == [
        "last.html: comes after the decisions"
    ]
