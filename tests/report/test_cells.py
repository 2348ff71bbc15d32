"""The section on cell types: its numbers are the contrast's, its words and colours agree, names stay text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heatmover.report import render
from heatmover.report.page import _percent, cell_sections

ROWS = "#cells tbody tr"


@pytest.fixture(scope="module")
def contrast(plain_study):
    return plain_study.contrast


def with_types(study, types):
    return replace(study, contrast=replace(study.contrast, types=tuple(types)))


def test_the_section_stands_behind_the_statistics(plain_study, data_of):
    keys = list(data_of(render(plain_study))["sections"])
    assert keys[keys.index("statistics") + 1] == "cells"


def test_without_a_contrast_there_is_no_section(plain_study):
    without = replace(plain_study, contrast=None)
    assert cell_sections(without) == []
    page = render(without)
    assert "Which cells differ" not in page
    assert "Cell types" not in page


def test_numbers_and_words_are_those_of_the_contrast(plain_study, contrast, parsed):
    text = " ".join("".join(parsed(render(plain_study)).texts).split())
    assert contrast.describe() in text
    assert f"Cell types (branch) were compared between {contrast.n_samples[0]}" in text
    for kind in contrast.types:
        assert kind.name in text
        assert _percent(kind.share) in text


@pytest.mark.parametrize(
    ("score", "q_value", "mark", "words"),
    [(3.0, 0.01, "▲", "more in case"), (-3.0, 0.01, "▼", "less in case"), (3.0, 0.2, "\u2013", "no sign of it")],
)
def test_direction_is_a_sign_a_word_and_a_class(plain_study, contrast, parsed, score, q_value, mark, words):
    changed = replace(contrast.types[0], score=score, q_value=q_value)
    quiet = [replace(kind, q_value=1.0) for kind in contrast.types[1:]]
    page = parsed(cell_sections(with_types(plain_study, [changed, *quiet]))[0].html)
    classes = [attributes.get("class", "") for _, attributes in page.tags]
    wanted = {"▲": "more", "▼": "less", "\u2013": "same"}[mark]
    assert f"bar-fill {wanted}" in classes
    assert f"answer {wanted}" in classes
    text = " ".join("".join(page.texts).split())
    assert f"{mark} {words}" in text


def test_a_share_below_zero_has_no_bar_and_a_minus(plain_study, contrast, parsed):
    below = replace(contrast.types[-1], share=-0.042)
    page = parsed(cell_sections(with_types(plain_study, [*contrast.types[:-1], below]))[0].html)
    assert "\u22124.2 %" in page.texts
    widths = [attributes["style"] for _, attributes in page.tags if attributes.get("class", "").startswith("bar-fill")]
    assert widths[-1] == "width:0.0%"
    assert widths[0] == "width:100.0%"


def test_many_kinds_are_added_up(plain_study, contrast, parsed):
    many = [replace(contrast.types[0], name=f"kind {i}", share=0.01) for i in range(100)]
    text = "".join(parsed(cell_sections(with_types(plain_study, many))[0].html).texts)
    assert "70 further types add 70 % together." in text
    assert "kind 29" in text
    assert "kind 30" not in text


def test_groups_that_are_the_same_have_a_page(plain_study, contrast):
    equal = [replace(kind, share=0.0, contribution=0.0, q_value=1.0) for kind in contrast.types]
    study = with_types(plain_study, equal)
    study = replace(study, contrast=replace(study.contrast, distance=0.0))
    assert "are the same" in cell_sections(study)[0].html


@pytest.mark.parametrize(
    ("share", "text"), [(0.5, "50 %"), (0.0123, "1.2 %"), (-0.0004, "0 %"), (-0.3, "\u221230 %"), (0.0, "0 %")]
)
def test_shares_read_as_per_cent(share, text):
    assert _percent(share) == text


@pytest.mark.parametrize("width", [360, 1400])
def test_bars_are_drawn_in_proportion(reader, pages, contrast, width):
    page = reader(pages / "plain.html", width=width)
    drawn = page.evaluate(
        "[...document.querySelectorAll('#cells .bar-fill')].map((one) => one.getBoundingClientRect().width)"
    )
    assert len(drawn) == len(contrast.types)
    for length, kind in zip(drawn, contrast.types, strict=True):
        assert length == pytest.approx(max(1, drawn[0] * kind.share / contrast.types[0].share), abs=1.5)
    assert drawn[0] > 60
    told = [text.replace("\u2212", "-").rstrip(" %") for text in page.locator("#cells .bar-value").all_inner_texts()]
    assert sum(map(float, told)) == pytest.approx(100, abs=1.5)
    right = page.evaluate("Math.max(...[...document.querySelectorAll('#cells *')].map((one) => "
                          "one.getBoundingClientRect().right))")  # fmt: skip
    assert right <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_two_directions_stand_out_and_apart(reader, pages, scheme):
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


def luminance(color):
    """Relative luminance as the accessibility guidelines define it, of a colour such as "rgb(1, 2, 3)"."""
    values = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_hostile_kinds_are_inert_text(reader, pages, hostile_names):
    page = reader(pages / "hostile.html", width=360)
    shown = page.locator("#cells tbody th bdi").all_text_contents()
    assert sorted(shown) == sorted(name.replace("\u0001", "\\x01") for name in hostile_names[:5])
    assert page.locator("#cells img, #cells script, #cells i").count() == 0
    assert page.evaluate("window.hacked") is None
    tallest = page.evaluate("Math.max(...[...document.querySelectorAll('#cells tr')].map((one) => one.offsetHeight))")
    assert tallest < 400


def test_it_needs_no_script(browser, pages, contrast):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 800})
    page = context.new_page()
    page.goto((pages / "plain.html").as_uri())
    assert page.locator(ROWS).count() == len(contrast.types)
    assert page.locator("#cells .bar-fill").first.bounding_box()["width"] > 60
    context.close()
