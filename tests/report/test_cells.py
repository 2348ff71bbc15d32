"""The section on cell types: its numbers are the contrast's, its words and colors agree, names stay text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heatmover.report import render
from heatmover.report.page import _percent, cell_sections
from heatmover.study.drawing.style import NUMBER_AND_STATE


@pytest.fixture(scope="module")
def contrast(plain_study):
    return plain_study.contrast


def with_types(study, types):
    return replace(study, contrasts=(replace(study.contrast, types=tuple(types)),))


def test_the_section_stands_behind_the_statistics(plain_study, data_of):
    keys = list(data_of(render(plain_study))["sections"])
    assert keys[keys.index("statistics") + 1 :][:2] == ["cellmap", "cells"]


def test_without_a_contrast_there_is_no_section(plain_study):
    without = replace(plain_study, contrasts=())
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
    [
        (3.0, 0.01, "▲", "2 times as many"),
        (-3.0, 0.01, "▼", "0.5 times as many"),
        (3.0, 0.2, "\u2013", "no significant change"),
    ],
)
def test_direction_is_a_sign_a_word_and_a_class(plain_study, contrast, parsed, score, q_value, mark, words):
    shares = {"in_group": 0.2, "in_reference": 0.1 if score > 0 else 0.4}
    changed = replace(contrast.types[0], score=score, abundance_q=q_value, **shares)
    quiet = [replace(kind, abundance_q=1.0) for kind in contrast.types[1:]]
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
    assert "\u22124.2%" in page.texts
    widths = [attributes["style"] for _, attributes in page.tags if attributes.get("class", "").startswith("bar-fill")]
    assert widths[-1] == "width:0.0%"
    assert widths[0] == "width:100.0%"


def test_number_and_state_are_bars_from_zero(plain_study, contrast, parsed):
    parts = [(0.6, -0.2), (0.1, 0.3), (0.0, 0.2)]
    types = [
        replace(
            kind, abundance=a * contrast.distance, state=s * contrast.distance, abundance_q=q, state_q=1 - q, score=1
        )
        for kind, (a, s), q in zip(contrast.types, parts, (0.01, 0.99, 0.99), strict=False)
    ]
    section = cell_sections(with_types(plain_study, types))[0]
    pieces = [attributes for _, attributes in parsed(section.html).tags if "piece" in attributes.get("class", "")]
    drawn = [tuple(float(part.split(":")[1].rstrip("%")) for part in one["style"].split(";")) for one in pieces]
    # The room goes from -20% to 60%: zero is at a quarter of it.
    expected = [(25, 75), (0, 25), (25, 12.5), (25, 37.5), (25, 0), (25, 25)]
    np.testing.assert_allclose(drawn, expected)
    assert ["pale" not in one["class"] for one in pieces] == [True, False, False, True, False, True]
    assert section.data["numbers"] == pytest.approx([0.6, 0.1, 0])
    assert section.data["states"] == pytest.approx([-0.2, 0.3, 0.2])
    assert section.data["sure_states"] == [False, True, True]
    assert section.data["colors"] == list(NUMBER_AND_STATE)


def test_all_parts_of_all_types_make_the_distance(plain_study):
    data = cell_sections(plain_study)[0].data
    assert sum(data["numbers"]) + sum(data["states"]) == pytest.approx(1, abs=1e-4)


def test_a_type_of_one_group_has_no_state_to_compare(plain_study, contrast, parsed):
    alone = replace(contrast.types[0], in_reference=0.0, state=0.0, state_q=1.0)
    text = " ".join("".join(parsed(cell_sections(with_types(plain_study, [alone]))[0].html).texts).split())
    assert "nothing to compare" in text
    assert "only in the group" in text


def test_many_kinds_are_added_up(plain_study, contrast, parsed):
    many = [replace(contrast.types[0], name=f"kind {i}", share=0.01) for i in range(100)]
    text = "".join(parsed(cell_sections(with_types(plain_study, many))[0].html).texts)
    assert "70 further types contribute 70% in total." in text
    assert "kind 29" in text
    assert "kind 30" not in text


def test_groups_that_are_the_same_have_a_page(plain_study, contrast):
    equal = [replace(kind, share=0.0, contribution=0.0, abundance_q=1.0, state_q=1.0) for kind in contrast.types]
    study = with_types(plain_study, equal)
    study = replace(study, contrasts=(replace(study.contrast, distance=0.0),))
    assert "are identical" in cell_sections(study)[0].html


@pytest.mark.parametrize(
    ("share", "text"), [(0.5, "50%"), (0.0123, "1.2%"), (-0.0004, "0%"), (-0.3, "\u221230%"), (0.0, "0%")]
)
def test_shares_read_as_per_cent(share, text):
    assert _percent(share) == text


def test_called_cells_have_colors_and_the_legend_counts_all_cells(plain_study, data_of, parsed):
    shown, calls = plain_study.cell_map, replace(plain_study.cell_calls, more=0.12, less=0.03)
    signs = (np.arange(360) % 3 - 1).astype(np.int32)
    drawn = replace(shown, signs=signs, q_values=np.where(signs, 0.05, 0.5))
    page = render(replace(plain_study, cell_map=drawn, cell_calls=calls))
    choice = data_of(page)["sections"]["cellmap"]["choices"][0]
    assert choice["name"] == "cells that differ"
    assert choice["codes"][:3] == [2, 0, 1]
    assert choice["groups"] == ["not called", "denser in case: 12% of the cells", "denser in control: 3% of the cells"]
    start = "12% of the cells are in neighborhoods that are denser in 'case', and 3% in neighborhoods that are less"
    assert start in " ".join("".join(parsed(page).texts).split())
    none = replace(calls, no_calls="With 5 pairs no test can reach 0.05. No cell is called.")
    assert "With 5 pairs" in render(replace(plain_study, cell_map=drawn, cell_calls=none))
