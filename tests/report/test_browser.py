"""The report in a real browser: it is quiet, it reacts, it can be read, and nothing in it comes to life."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import heatmover as hm
from heatmover.report import write_report
from heatmover.study.tables import plain_text

COLORS = "document.getElementById('sample-map').data[1].marker.color.join()"
# Where a sample is on the screen, from plotly's own axes.
PLACE = """([id, x, y]) => {
  const plot = document.getElementById(id), frame = plot.getBoundingClientRect();
  const { xaxis, yaxis } = plot._fullLayout;
  return [frame.left + xaxis._offset + xaxis.c2p(x), frame.top + yaxis._offset + yaxis.c2p(y)];
}"""
# Every element whose own text somebody has to read, and the size of its letters.
SMALLEST = """() => Math.min(...[...document.querySelectorAll('body *')]
  .filter((one) => one.getClientRects().length)
  .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((one) => parseFloat(getComputedStyle(one).fontSize)))"""
WIDTHS = (360, 1400)


def choose(page, name):
    page.locator("#map .color-choice").select_option(label=name)


def point_at(page, figure, x, y):
    page.locator(f"#{figure}").scroll_into_view_if_needed()
    left, top = page.evaluate(PLACE, [figure, x, y])
    page.mouse.move(left - 2, top - 2)
    page.mouse.move(left, top, steps=3)
    page.wait_for_selector("#tip:not([hidden])", timeout=10_000)
    return page.locator("#tip").inner_text()


def sample_at(page, index):
    point = page.evaluate(
        "(i) => { const one = document.getElementById('sample-map').data[1]; return [one.x[i], one.y[i]]; }", index
    )
    return point_at(page, "sample-map", *point)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["plain", "hostile"])
def test_the_page_fits_its_width_and_can_be_read(reader, pages, name, width):
    page = reader(pages / f"{name}.html", width=width)
    for details in page.locator("details").all():
        details.evaluate("one => { one.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(SMALLEST) >= 12
    assert page.locator("#headline").bounding_box()["width"] <= width
    assert page.evaluate("document.getElementById('sample-map').querySelector('svg').clientWidth") <= width


def test_the_menu_recolors_the_map_the_strips_and_the_legend(reader, pages):
    page = reader(pages / "plain.html")
    choose(page, "condition")
    strip = "JSON.stringify(document.getElementById('heatmap-figure').data[1].z)"
    before = page.evaluate(COLORS), page.evaluate(strip), page.locator("#map .legend").inner_text()
    choose(page, "age")
    after = page.evaluate(COLORS), page.evaluate(strip), page.locator("#map .legend").inner_text()
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert "missing (3)" in after[2]
    assert page.locator("#heatmap .color-choice").input_value() == page.locator("#map .color-choice").input_value()
    # What is drawn, not only what was asked for.
    fills = (
        "[...new Set([...document.querySelectorAll('#sample-map .point')].map((one) => getComputedStyle(one).fill))]"
    )
    assert len(page.evaluate(fills)) > 5


NAMES = """() => [...document.querySelectorAll('#sample-map .textpoint text')].map((one) => {
  const box = one.getBoundingClientRect();
  return [box.left, box.top, box.right, box.bottom, one.textContent];
})"""


def overlapping(boxes):
    """Pairs of boxes that share more than a pixel of their edges."""
    return [
        (a[4], b[4])
        for i, a in enumerate(boxes)
        for b in boxes[:i]
        if a[0] + 1 < b[2] and b[0] + 1 < a[2] and a[1] + 1 < b[3] and b[1] + 1 < a[3]
    ]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["plain", "hostile"])
def test_names_on_the_map_do_not_overlap(reader, pages, name, width, data_of):
    page = reader(pages / f"{name}.html", width=width)
    page.locator("#find").fill("")
    page.locator("#map-choice").select_option(index=0)
    boxes = page.evaluate(NAMES)
    assert 3 <= len(boxes) <= 12
    assert len({box[4] for box in boxes}) == len(boxes)
    assert overlapping(boxes) == []
    frame = page.locator("#sample-map").bounding_box()
    assert all(frame["x"] <= box[0] and box[2] <= frame["x"] + frame["width"] for box in boxes)
    # Drawn again, every name is where it was.
    page.locator("#map-choice").select_option(index=1)
    page.locator("#map-choice").select_option(index=0)
    assert page.evaluate(NAMES) == boxes
    page.locator("#names").uncheck()
    assert page.evaluate(NAMES) == []
    page.locator("#names").check()


def test_only_the_samples_one_looks_for_are_named(reader, pages):
    page = reader(pages / "plain.html")
    page.locator("#find").fill("case-03")
    assert [box[4] for box in page.evaluate(NAMES)] == ["case-03"]
    page.locator("#find").fill("")


def test_the_menus_work_from_the_keyboard(reader, pages):
    page = reader(pages / "plain.html")
    choose(page, "condition")
    before = page.evaluate(COLORS)
    page.get_by_label("Color by").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function(f"({COLORS}) !== {json.dumps(before)}")
    unlabeled = "[...document.querySelectorAll('select, input')].filter((one) => !one.labels.length).length"
    assert page.evaluate(unlabeled) == 0


def test_the_other_map_is_drawn(reader, pages):
    page = reader(pages / "plain.html")
    place = "document.getElementById('sample-map').data[1].x.join()"
    before = page.evaluate(place)
    page.locator("#map-choice").select_option(index=1)
    assert page.evaluate(place) != before
    assert "diffusion axis 1" in page.locator("#sample-map").inner_text()


def test_hover_names_the_sample_its_cells_its_value_and_the_nearest(reader, pages, plain_study):
    page = reader(pages / "plain.html")
    choose(page, "condition")
    text = sample_at(page, 3)
    comparison = plain_study.comparison
    nearest = comparison.names[comparison.nearest(1)[1][3, 0]]
    assert comparison.names[3] in text
    assert "30 cells" in text
    assert "condition: " in text
    assert f"nearest: {nearest} (distance " in text
    page.mouse.move(2, 2)
    page.wait_for_selector("#tip", state="hidden")


def test_hover_over_the_heatmap_tells_both_names_and_their_distance(reader, pages, plain_study, data_of):
    page = reader(pages / "plain.html")
    order = data_of(pages / "plain.html")["sections"]["heatmap"]["order"]
    text = point_at(page, "heatmap-figure", 2, 5)
    names, distances = plain_study.comparison.names, plain_study.comparison.distances
    assert names[order[2]] in text
    assert names[order[5]] in text
    told = float(text.split("distance ")[1])
    # Four digits are shown, of distances in steps of 1/65535 of the largest.
    shown = distances[order[2], order[5]]
    assert told == pytest.approx(shown, rel=0, abs=5e-4 * shown + distances.max() / 65535)


def test_a_sample_is_found_by_part_of_its_name(reader, pages):
    page = reader(pages / "plain.html")
    page.locator("#find").fill("CASE-0")
    assert page.locator("#found").inner_text() == "6 of 12 samples found"
    opacity = page.evaluate("document.getElementById('sample-map').data[1].marker.opacity")
    assert sorted(set(opacity)) == [0.12, 1]


def test_hostile_names_are_inert_text(reader, pages, data_of, hostile_names):
    path = pages / "hostile.html"
    page = reader(path)
    shared = data_of(path)["shared"]
    for name in [coloring["name"] for coloring in shared["colorings"]]:
        choose(page, name if len(name) <= 40 else name[:20] + "\u2026" + name[-19:])
    choose(page, shared["colorings"][0]["name"])
    tips = [sample_at(page, i) for i in range(12)]
    point_at(page, "heatmap-figure", 1, 7)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    assert page.locator("body b, body i").count() == page.locator(".facts b, details p b").count()
    assert page.evaluate("window.hacked") is None
    shown = "\n".join(tips)
    assert hostile_names[0] in shown
    assert "<b>bold</b> &amp; &lt;i&gt; <!-- comment" in shown
    assert "{{ 7 * 7 }}" in shown
    labels = page.locator("#heatmap-figure").inner_text()
    assert "<b>bold</b> &amp;" in labels
    assert "$\\alpha$ %{x}" in labels
    assert hostile_names[0] in page.locator("h1").inner_text()


def test_long_names_are_cut_in_figures_and_whole_in_the_table(reader, pages, data_of):
    page = reader(pages / "hostile.html", width=360)
    long = data_of(pages / "hostile.html")["shared"]["names"].index("x" * 5000)
    assert len(sample_at(page, long)) < 500
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    page.locator("#samples summary").click()
    names = page.locator("#samples tbody th").all_text_contents()
    assert "x" * 5000 in names


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(reader, pages, scheme):
    page = reader(pages / "plain.html", color_scheme=scheme)
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    axis = page.evaluate("getComputedStyle(document.querySelector('#sample-map .xtitle')).fill")
    assert (luminance(paper) < 0.5) == (scheme == "dark")
    for color in (ink, axis):
        low, high = sorted([luminance(color), luminance(paper)])
        assert (high + 0.05) / (low + 0.05) > 4.5


def luminance(color):
    """Relative luminance as the accessibility guidelines define it, of a color such as "rgb(1, 2, 3)"."""
    values = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_method_is_copied(reader, pages):
    page = reader(pages / "plain.html", permissions=["clipboard-read"])
    page.locator("#copy").click()
    assert page.locator("#copied").inner_text() == "Copied."
    page.locator("#find").focus()
    page.keyboard.press("Control+V")
    pasted = page.locator("#find").input_value()
    assert "Diffusion Earth Mover's Distances (Tong et al., 2021)" in pasted
    assert "999 permutations" in pasted


@pytest.mark.parametrize("width", [360, 1400])
def test_bars_of_cell_types_are_drawn_in_proportion(reader, pages, plain_study, width):
    page = reader(pages / "plain.html", width=width)
    drawn = page.evaluate(
        "[...document.querySelectorAll('#cells .bar-fill')].map((one) => one.getBoundingClientRect().width)"
    )
    assert len(drawn) == len(plain_study.contrast.types)
    for length, kind in zip(drawn, plain_study.contrast.types, strict=True):
        assert length == pytest.approx(max(1, drawn[0] * kind.share / plain_study.contrast.types[0].share), abs=1.5)
    assert drawn[0] > 60
    told = [text.replace("\u2212", "-").rstrip(" %") for text in page.locator("#cells .bar-value").all_inner_texts()]
    assert sum(map(float, told)) == pytest.approx(100, abs=1.5)
    right = page.evaluate("Math.max(...[...document.querySelectorAll('#cells *')].map((one) => "
                          "one.getBoundingClientRect().right))")  # fmt: skip
    assert right <= width


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["plain", "hostile"])
def test_number_and_state_are_drawn_on_both_sides_of_zero(reader, pages, request, name, width):
    page = reader(pages / f"{name}.html", width=width)
    contrast = request.getfixturevalue(f"{name}_study").contrast
    zero, room = page.evaluate(
        "[document.querySelector('#cells .zero').getBoundingClientRect().left,"
        " document.querySelector('#cells .track').getBoundingClientRect().width]"
    )
    pieces = page.evaluate(
        "[...document.querySelectorAll('#cells .piece')].map((one) => {"
        " const box = one.getBoundingClientRect(); return [box.left, box.right]; })"
    )
    parts = [part / contrast.distance for kind in contrast.types for part in (kind.abundance, kind.state)]
    span = max(0, *parts) - min(0, *parts)
    for (left, right), part in zip(pieces, parts, strict=True):
        assert (right - zero if part > 0 else left - zero) == pytest.approx(part / span * room, abs=3)
    right = page.evaluate("Math.max(...[...document.querySelectorAll('#cells .parts *')].map((one) => "
                          "one.getBoundingClientRect().right))")  # fmt: skip
    assert right <= width
    assert room > 100


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_number_and_state_stand_out(reader, pages, scheme):
    page = reader(pages / "plain.html", color_scheme=scheme)
    colors = page.evaluate(
        "['number', 'state'].map((name) => getComputedStyle(document.querySelector(`#cells .swatch.${name}`))"
        ".backgroundColor)"
    )
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for color in colors:
        low, high = sorted([luminance(color), luminance(paper)])
        assert (high + 0.05) / (low + 0.05) > 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_two_directions_of_cell_types_stand_out_and_apart(reader, pages, scheme):
    page = reader(pages / "plain.html", color_scheme=scheme)
    colors = page.evaluate(
        "['more', 'less'].map((name) => getComputedStyle(document.querySelector(`#cells .swatch.${name}`))"
        ".backgroundColor)"
    )
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, blue = ([int(part) for part in color[4:-1].split(",")] for color in colors)
    # Orange and blue: what the color-blind confuse is red and green.
    assert red[0] - red[2] > 100
    assert blue[2] - blue[0] > 100
    for color in colors:
        low, high = sorted([luminance(color), luminance(paper)])
        assert (high + 0.05) / (low + 0.05) > 4.5


def test_hostile_cell_types_are_inert_text(reader, pages, hostile_names):
    page = reader(pages / "hostile.html", width=360)
    shown = page.locator("#cells tbody th bdi").all_text_contents()
    assert sorted(shown) == sorted(name.replace("\u0001", "\\x01") for name in hostile_names[:5])
    assert page.locator("#cells img, #cells script, #cells i").count() == 0
    assert page.evaluate("window.hacked") is None
    tallest = page.evaluate("Math.max(...[...document.querySelectorAll('#cells tr')].map((one) => one.offsetHeight))")
    assert tallest < 400


def test_the_cell_types_need_no_script(browser, pages, plain_study):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 800})
    page = context.new_page()
    page.goto((pages / "plain.html").as_uri())
    assert page.locator("#cells tbody tr").count() == len(plain_study.contrast.types)
    assert page.locator("#cells .bar-fill").first.bounding_box()["width"] > 60
    context.close()


BARS = """() => document.getElementById('composition-figure').data.slice(0, -1).map((one) => Array.from(one.y))"""


def test_bars_of_composition_are_the_shares_in_the_order_chosen(reader, pages, plain_study, data_of):
    page = reader(pages / "plain.html")
    choose(page, "condition")
    order = data_of(pages / "plain.html")["sections"]["heatmap"]["order"]
    found = plain_study.composition
    page.locator("#bar-order").select_option(value="tree")
    np.testing.assert_allclose(page.evaluate(BARS), found.shares[order].T, atol=1e-4)
    page.locator("#bar-order").select_option(value="groups")
    conditions = plain_study.variables["condition"].tolist()
    by_group = sorted(order, key=lambda i: conditions[i])
    np.testing.assert_allclose(page.evaluate(BARS), found.shares[by_group].T, atol=1e-4)
    assert page.locator("#types-legend .item").all_inner_texts() == list(found.types)
    # What is drawn: the heights of the bars of the first sample add up to the plot.
    tall = page.evaluate(
        "[...document.querySelectorAll('#composition-figure .cartesianlayer .subplot.xy .trace.bars')]"
        ".map((one) => one.querySelector('.point path').getBoundingClientRect().height)"
    )
    np.testing.assert_allclose(np.array(tall) / sum(tall), found.shares[by_group[0]], atol=0.02)


def test_hover_over_a_bar_tells_sample_type_and_share(reader, pages, plain_study, data_of):
    page = reader(pages / "plain.html")
    choose(page, "condition")
    page.locator("#bar-order").select_option(value="tree")
    order = data_of(pages / "plain.html")["sections"]["heatmap"]["order"]
    share = plain_study.composition.shares[order[4]]
    text = point_at(page, "composition-figure", 4, share[0] / 2)
    assert plain_study.comparison.names[order[4]] in text
    assert f"{plain_study.composition.types[0]}: {100 * share[0]:.3g}%" in text


CELLS = "document.getElementById('cellmap-figure').data[0]"


def test_cells_are_drawn_where_the_map_has_them_with_the_strongest_on_top(reader, pages, plain_study):
    page = reader(pages / "plain.html")
    shown = plain_study.cell_map
    order = page.evaluate(f"{CELLS}.customdata")
    np.testing.assert_allclose(page.evaluate(f"{CELLS}.x"), shown.places[order, 0], rtol=1e-4)
    assert (np.diff(np.abs(shown.witness[order])) >= -1e-4).all()
    colors = page.evaluate(f"{CELLS}.marker.color")
    assert colors[-1] in ("#542788", "#b35806") or abs(shown.witness[order[-1]]) < 1
    assert len(set(colors)) > 100
    assert page.locator("#cellmap-legend").inner_text().split("\n")[0] == "more case"
    point = page.evaluate(f"[{CELLS}.x[359], {CELLS}.y[359]]")
    text = point_at(page, "cellmap-figure", *point)
    page.mouse.move(0, 0)
    page.wait_for_selector("#tip", state="hidden")
    assert "a cell of " + plain_study.comparison.names[shown.samples[order[-1]]] in text
    assert f"cell type: {shown.type_names[shown.types[order[-1]]]}" in text or "other" in text
    page.locator("#cellmap-choice").select_option(label="cell type")
    assert len(set(page.evaluate(f"{CELLS}.marker.color"))) == page.locator("#cellmap-legend .item").count()
    page.locator("#cellmap-choice").select_option(label="condition")
    assert page.locator("#cellmap-legend .item").all_inner_texts() == ["case", "control"]
    assert len(set(page.evaluate(f"{CELLS}.marker.color"))) == 2


def saved(page, section, kind):
    with page.expect_download() as download:
        page.locator(f"button.save[data-section={section}][data-format={kind}]").click()
    assert download.value.suggested_filename == f"{section}.{kind}"
    return Path(download.value.path()).read_bytes()


@pytest.mark.parametrize("name", ["plain", "hostile"])
def test_pictures_are_saved_without_a_network(reader, pages, name):
    page = reader(pages / f"{name}.html")
    sections = page.evaluate(
        "[...document.querySelectorAll('.save[data-format=svg]')].map((one) => one.dataset.section)"
    )
    assert {"map", "heatmap", "composition", "scales"} <= set(sections)
    for place, section in enumerate(sections):
        if place % 5 == 4:
            page.wait_for_timeout(1_100)  # Chromium drops the eleventh download of one second
        root = ElementTree.fromstring(saved(page, section, "svg"))
        tags = {element.tag.partition("}")[2] for element in root.iter()}
        assert "svg" in root.tag
        assert "text" in tags
        assert not tags & {"script", "foreignObject", "iframe", "a"}
        events = [key for element in root.iter() for key in dict(element.items()) if key.lower().startswith("on")]
        assert events == []
        assert saved(page, section, "png").startswith(b"\x89PNG\r\n")
    assert page.locator("img").count() == 0


def test_a_saved_picture_has_its_legend_and_names(reader, pages):
    page = reader(pages / "plain.html")
    choose(page, "condition")
    page.locator("#map-choice").select_option(index=0)
    page.locator("#find").fill("")
    texts = "".join(ElementTree.fromstring(saved(page, "map", "svg")).itertext())
    assert "case (6)" in texts
    assert "control-0" in texts
    assert "other" not in texts


@pytest.mark.parametrize("name", ["plain", "hostile"])
def test_tables_are_saved_as_they_are_in_python(reader, pages, request, name):
    page = reader(pages / f"{name}.html")
    study = request.getfixturevalue(f"{name}_study")
    rows = list(csv.reader(io.StringIO(saved(page, "samples", "csv").decode(), newline="")))
    assert [plain_text(row[0]) for row in rows[1:]] == list(study.comparison.names)
    np.testing.assert_allclose([float(row[3]) for row in rows[1:]], study.comparison.nearest(1)[0][:, 0])
    rows = list(csv.reader(io.StringIO(saved(page, "composition", "csv").decode(), newline="")))
    assert [plain_text(cell) for cell in rows[0][1:]] == list(study.composition.types)
    np.testing.assert_allclose(np.array(rows[1:])[:, 1:].astype(float), study.composition.shares, atol=1e-12)
    for section in ("statistics", "cells", "scales"):
        assert saved(page, section, "csv").count(b"\n") > 1


def test_the_policy_stops_what_the_page_did_not_bring(browser, pages):
    context = browser.new_context(offline=False)
    page = context.new_page()
    blocked = []
    page.on("console", lambda message: blocked.append(message.text))
    page.goto((pages / "plain.html").as_uri())
    page.evaluate(
        """() => { const made = document.createElement('script'); made.textContent = 'window.hacked = 1';
        document.body.append(made); const image = document.createElement('img'); image.src = 'http://localhost:9/x.png';
        document.body.append(image); }"""
    )
    assert page.evaluate("window.hacked") is None
    assert sum("Content Security Policy" in text for text in blocked) >= 2
    context.close()


def test_without_a_browser_tests_skip_but_not_where_it_is_required(chromium_finder, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("HEATMOVER_CHROMIUM", "HEATMOVER_REQUIRE_BROWSER", "CI"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium found"):
        chromium_finder()
    for name in ("HEATMOVER_REQUIRE_BROWSER", "CI"):
        monkeypatch.setenv(name, "true")
        with pytest.raises(pytest.fail.Exception, match="must run here"):
            chromium_finder()
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEATMOVER_CHROMIUM", "elsewhere")
    assert chromium_finder() == "elsewhere"


def test_collapsed_sections_print(reader, pages):
    page = reader(pages / "plain.html")
    # Pages are shared, and other tests open everything.
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = false; })")
    assert page.locator("details:not([open])").count() > 0
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0


def test_collapsed_sections_print_without_script(browser, pages):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((pages / "plain.html").as_uri())
    page.emulate_media(media="print")
    assert page.locator("#samples table").bounding_box()["height"] > 100


def test_the_skip_link_comes_first(reader, pages):
    page = reader(pages / "plain.html", width=1390)  # a page of its own, in which nothing has had the focus
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0


def test_lines_between_pairs_can_be_switched_off(reader, tmp_path):
    data = hm.datasets.cohort(8, cells_per_sample=20)
    study = hm.study_comparison(
        hm.compare(data.points, data.labels, n_neighbors=8),
        {"condition": ["before", "after"] * 4},
        blocks={"patient": list("aabbccdd")},
    )
    write_report(study, tmp_path / "pairs.html")
    page = reader(tmp_path / "pairs.html")
    drawn = "document.getElementById('sample-map').data[3].x.length"
    assert page.evaluate(drawn) == 12
    page.locator("#pairs").uncheck()
    assert page.evaluate(drawn) == 0
