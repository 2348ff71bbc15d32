"""The report in a real browser: it is quiet, it reacts, it can be read, and nothing in it comes to life."""

from __future__ import annotations

import json

import pytest

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


def test_the_menu_recolours_the_map_the_strips_and_the_legend(reader, pages):
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


def test_the_menus_work_from_the_keyboard(reader, pages):
    page = reader(pages / "plain.html")
    choose(page, "condition")
    before = page.evaluate(COLORS)
    page.get_by_label("Colour by").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function(f"({COLORS}) !== {json.dumps(before)}")
    unlabelled = "[...document.querySelectorAll('select, input')].filter((one) => !one.labels.length).length"
    assert page.evaluate(unlabelled) == 0


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
        choose(page, name if len(name) <= 40 else name[:39] + "\u2026")
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
    """Relative luminance as the accessibility guidelines define it, of a colour such as "rgb(1, 2, 3)"."""
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_two_directions_of_cell_types_stand_out_and_apart(reader, pages, scheme):
    page = reader(pages / "plain.html", color_scheme=scheme)
    colors = page.evaluate(
        "['more', 'less'].map((name) => getComputedStyle(document.querySelector(`#cells .swatch.${name}`))"
        ".backgroundColor)"
    )
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, blue = ([int(part) for part in color[4:-1].split(",")] for color in colors)
    # Orange and blue: what the colour-blind confuse is red and green.
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
