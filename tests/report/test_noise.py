"""How sure distances are, on the page: hatched pairs, intervals in words and tables, and the section on noise."""

from __future__ import annotations

import base64
import csv

import numpy as np
import pytest

import heatmover as hm
from heatmover.errors import InvalidInputError
from heatmover.report import render, write_report
from heatmover.report.page import heatmap
from heatmover.study.cautions import NOISY, RELIABLE, named_floors, noise_sentences, pair_counts

SIZES = np.array([12, 200, 14, 180, 60, 220, 30, 150])


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(SIZES.sum(), 3))
    labels = np.repeat([f"s{i}" for i in range(8)], SIZES)
    points[np.isin(labels, ["s1", "s5"]), 0] += 4
    return hm.compare(points, labels, n_neighbors=12, n_bootstrap=60)


@pytest.fixture(scope="module")
def study(comparison):
    return hm.study_comparison(comparison, {"group": list("abababab")}, n_permutations=19)


def test_bits_are_the_pairs_that_are_not_distinguishable(comparison):
    data = heatmap(comparison)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(data["alike"]), dtype=np.uint8))[:28].astype(bool)
    order = np.array(data["order"])
    expected = ~comparison.intervals.distinguishable[np.ix_(order, order)][np.triu_indices(8, 1)]
    np.testing.assert_array_equal(bits, expected)
    assert 0 < bits.sum() < 28
    for name in ("lower", "upper"):
        steps = np.frombuffer(base64.b64decode(data[name]["steps"]), dtype="<u2") / 65535 * data[name]["largest"]
        bounds = getattr(comparison.intervals, name)[np.ix_(order, order)][np.triu_indices(8, 1)]
        np.testing.assert_allclose(steps, bounds, atol=data[name]["largest"] / 65535)


def test_the_section_tells_floors_retrieval_pairs_and_advice(study, comparison):
    page = render(study)
    assert '<h2 id="noise-title">Sampling noise</h2>' in page
    floors = named_floors(comparison)
    assert [floor["cells"] for floor in floors] == [12, int(np.quantile(SIZES, 0.5, method="nearest")), 220]
    for floor in floors:
        assert f"{floor['name'].capitalize()}, {floor['cells']} cells</dt><dd>{floor['distance']} " in page
    counts = pair_counts(comparison)
    assert counts["distinguishable"] + counts["alike"] == counts["all"] == 28
    assert f"{counts['distinguishable']} of 28 pairs of samples are distinguishable" in page
    assert f"({counts['alike']} of 28 pairs)" in page
    assert "The distances on this page are raw: they include this small-sample bias." in page
    for sentence in noise_sentences(comparison):
        assert sentence.replace("'", "&#39;") in page


def test_nothing_of_it_where_nobody_asked(plain_study):
    page = render(plain_study)
    assert "noise-title" not in page
    assert "istinguishable" not in page.split("<script>")[0]
    assert heatmap(plain_study.comparison)["alike"] is None
    assert noise_sentences(plain_study.comparison) == ()
    assert pair_counts(plain_study.comparison) is None
    with pytest.raises(InvalidInputError, match="n_bootstrap=200"):
        plain_study.comparison.intervals_to_csv("nowhere.csv")
    with pytest.raises(InvalidInputError, match="a comparison that assessed sampling noise"):
        plain_study.comparison.noise_floor(10)


def test_a_corrected_study_without_replicates_has_the_section_but_no_intervals(comparison):
    rng = np.random.default_rng(1)
    labels = np.repeat([f"s{i}" for i in range(6)], 20)
    corrected = hm.compare(rng.normal(size=(120, 2)), labels, n_neighbors=10, bias="corrected")
    study = hm.study_comparison(corrected)
    page = render(study)
    assert "The distances on this page are corrected" in page
    assert "Every sample, 20 cells" in page
    assert "Distinguishable pairs" not in page
    assert "Hatched" not in page
    assert NOISY in study.about_noise or RELIABLE in study.about_noise


def test_advice_is_in_the_words_of_the_command_line(comparison):
    study = hm.study_comparison(comparison)
    said = study.reworded(lambda sentence: sentence.upper())
    assert said.about_noise == tuple(sentence.upper() for sentence in study.about_noise)


def test_intervals_as_a_table(comparison, tmp_path):
    comparison.intervals_to_csv(tmp_path / "intervals.csv")
    with (tmp_path / "intervals.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["sample", "other", "distance", "lower", "upper", "distinguishable"]
    assert [(row["sample"], row["other"]) for row in rows[:2]] == [("s0", "s1"), ("s0", "s2")]
    assert len(rows) == 28
    upper = [comparison.intervals.upper[i, j] for i, j in zip(*np.triu_indices(8, 1), strict=True)]
    assert [float(row["upper"]) for row in rows] == upper


def test_the_browser_hatches_and_tells_intervals(reader, study, tmp_path, comparison):
    path = tmp_path / "noise.html"
    write_report(study, path)
    narrow = reader(path, width=360)
    for details in narrow.locator("details").all():
        details.evaluate("one => { one.open = true; }")
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 360
    page = reader(path)
    images = "document.getElementById('heatmap-figure')._fullLayout.images.length"
    assert page.evaluate(images) == 1
    assert page.evaluate("document.querySelectorAll('#heatmap-figure image').length") >= 1
    # White or dark stripes where a pair is not distinguishable, nothing elsewhere.
    striped = """async () => {
      const plot = document.getElementById('heatmap-figure'), picture = new Image();
      picture.src = plot._fullLayout.images[0].source;
      await picture.decode();
      const canvas = document.createElement('canvas');
      canvas.width = picture.width; canvas.height = picture.height;
      const pen = canvas.getContext('2d', { willReadFrequently: true });
      pen.drawImage(picture, 0, 0);
      const side = picture.width / 8, rows = [];
      for (let i = 0; i < 8; i++) for (let j = 0; j < 8; j++)
        rows.push(pen.getImageData(j * side, i * side, side, side).data.some((value) => value > 0));
      return rows;
    }"""
    order = np.array(heatmap(comparison)["order"])
    expected = ~comparison.intervals.distinguishable[np.ix_(order, order)] & ~np.eye(8, dtype=bool)
    assert page.evaluate(striped) == expected.ravel().tolist()
    i, j = (int(places[0]) for places in np.nonzero(expected))
    page.locator("#heatmap-figure").scroll_into_view_if_needed()
    left, top = page.evaluate(
        """([x, y]) => {
          const plot = document.getElementById('heatmap-figure'), frame = plot.getBoundingClientRect();
          const { xaxis, yaxis } = plot._fullLayout;
          return [frame.left + xaxis._offset + xaxis.c2p(x), frame.top + yaxis._offset + yaxis.c2p(y)];
        }""",
        [j, i],
    )
    page.mouse.move(left - 2, top - 2)
    page.mouse.move(left, top, steps=3)
    page.wait_for_selector("#tip:not([hidden])", timeout=10_000)
    text = page.locator("#tip").inner_text()
    assert "95% interval 0 to" in text
    assert "not distinguishable" in text
