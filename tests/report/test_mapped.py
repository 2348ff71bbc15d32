"""The page on mapped samples: what the samples are told is there, and names are nothing but text."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import heatmover as hm
from heatmover.errors import InvalidInputError
from heatmover.report.mapped import _differences, render_mapped

HOSTILE = ['<script>alert("x")</script>', '"><img src=x onerror=alert(1)>', "a & b {{ 7*7 }} </title>"]


def build(names, features, groups) -> hm.Atlas:
    data = hm.datasets.cohort(12, cells_per_sample=30, effect=6.0)
    labels = np.array([names[int(code)] for code in np.unique(data.labels, return_inverse=True)[1]], dtype=object)
    order = sorted(names)
    variables = {
        groups: [f"{groups} {name in names[:6]}" for name in order],
        "age": [None if i == 2 else 40 + i for i in range(12)],
        "patient": [f"p{i}" for i in range(12)],
    }
    return hm.build_atlas(
        data.points[:, :3], labels, features=features, variables=variables, n_neighbors=8,
        model=hm.DiffusionEMD(max_scale=4),
    )  # fmt: skip


@cache
def plain_mapped() -> hm.atlas.Mapped:
    atlas = build([f"ref{i:02d}" for i in range(12)], ["CD3", "CD4", "CD8"], "condition")
    data = hm.datasets.cohort(12, cells_per_sample=30, effect=6.0)
    known = np.isin(data.labels, ["case-02", "control-03"])
    far = np.full((30, 3), 50.0)
    return atlas.map(np.vstack([data.points[known, :3], far]), [*data.labels[known], *["stranger"] * 30])


@cache
def hostile_mapped() -> hm.atlas.Mapped:
    names = [f"{HOSTILE[i % 3]}{i}" for i in range(12)]
    atlas = build(names, [f"{text}f" for text in HOSTILE], HOSTILE[0])
    return atlas.map(np.random.default_rng(0).normal(size=(20, 3)), HOSTILE[1])


def test_all_answers_are_there(parsed):
    mapped = plain_mapped()
    page = parsed(render_mapped(mapped, k=4, n_bootstrap=10))
    text = "".join(page.texts)
    assert "NOT COVERED: stranger." in text
    assert all(sentence in text for sentence in mapped.warnings)
    answer = mapped.predict("condition", 4)
    for row, name in enumerate(mapped.names):
        assert name in text
        assert str(answer.values[row]) in text
    for i in mapped.nearest(4)[1].ravel():
        assert mapped.reference.names[i] in text
    for heading in ("Coverage", "Map", "Predictions", "Which cells differ", "95% confidence interval", "CD4"):
        assert heading in text
    # A name for each sample is nothing that neighbors could tell.
    assert "patient" in text
    whole = render_mapped(mapped, k=4, n_bootstrap=0)
    assert [name for name in mapped.reference.variables if f">{name}</bdi></h3>" in whole] == ["condition", "age"]


def test_a_covered_sample_has_another_headline():
    atlas = build([f"ref{i:02d}" for i in range(12)], ["CD3", "CD4", "CD8"], "condition")
    data = hm.datasets.cohort(12, cells_per_sample=30, effect=6.0)
    page = render_mapped(atlas.map(data.points[:30, :3], "again"), n_bootstrap=0)
    assert "The atlas covers the sample." in page
    assert "95% interval" not in page


def test_names_are_nothing_but_text(parsed):
    page = parsed(render_mapped(hostile_mapped(), n_bootstrap=5))
    plain = parsed(render_mapped(plain_mapped(), n_bootstrap=5))
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in plain.tags}
    assert "script" not in {tag for tag, _ in page.tags}
    assert "img" not in {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert not [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href") and not value.startswith("#")
    ]
    text = "".join(page.texts)
    assert HOSTILE[1] in text
    assert "{{ 7*7 }}" in text


def test_the_page_is_written_whole(tmp_path):
    plain_mapped().report(tmp_path / "report.html", n_bootstrap=0, predict=["age"], title="Today")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "<h1>Today</h1>" in page
    assert "Median error among" in page
    # Without a label the nearest sample is what cells are compared with.
    assert "compared with <bdi>its nearest sample" in page
    with pytest.raises(InvalidInputError, match="did you mean 'age'"):
        plain_mapped().report(tmp_path / "report.html", n_bootstrap=0, predict=["agee"])
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


def test_one_reference_variable_and_none():
    data = hm.datasets.cohort(6, cells_per_sample=20)
    bare = hm.build_atlas(data.points, data.labels, n_neighbors=8, model=hm.DiffusionEMD(max_scale=3))
    page = render_mapped(bare.map(data.points[:10], "x"), n_bootstrap=0)
    assert "Predictions" not in page


def test_the_cells_that_differ_are_those_that_do():
    rng = np.random.default_rng(0)

    def cells(share: float) -> np.ndarray:
        points = rng.normal(size=(40, 2))
        points[: round(40 * share), 0] += 8
        return points

    points = np.vstack([cells(0.25) for _ in range(8)])
    labels = np.repeat([f"s{i}" for i in range(8)], 40)
    with pytest.warns(hm.GraphWarning):  # two populations that nothing joins
        atlas = hm.build_atlas(
            points, labels, features=["up", "same"], n_neighbors=8, model=hm.DiffusionEMD(max_scale=5)
        )
    (found,) = _differences(atlas.map(cells(0.75), "x"), [])
    more, less = found["parts"]
    assert (more["own"], more["theirs"]) == ("75%", "25%")
    assert (less["own"], less["theirs"]) == ("25%", "75%")
    assert (more["features"][0]["name"], more["features"][0]["size"][0]) == ("up", "+")
    assert (less["features"][0]["name"], less["features"][0]["size"][0]) == ("up", "\u2212")


def test_digits_are_alike():
    from heatmover.report.mapped import _digits

    assert [_digits(value, 3) for value in (0.0, 1.2, 0.12345, 123.0, 1234.0)] == [
        "0.00",
        "1.20",
        "0.123",
        "123",
        "1.23e+03",
    ]
