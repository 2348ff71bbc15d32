"""The page without a browser: what stands in it, what must not, and how it becomes a file."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import heatmover as hm
import heatmover.report
from heatmover.errors import InvalidInputError
from heatmover.report import Section, fill, render, write_report
from heatmover.study.study import study_comparison


def small(n_samples, *, cells=20, **variables):
    data = hm.datasets.cohort(n_samples, cells_per_sample=cells, effect=4.0)
    return study_comparison(hm.compare(data.points, data.labels, n_neighbors=8), variables or None)


def policy(page):
    return next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes and tag == "meta")


def test_the_finding_and_every_section_are_there(plain_study, parsed):
    page = parsed(render(plain_study, title="A title"))
    text = "".join(page.texts)
    assert plain_study.headline() in text
    assert "A title" in text
    for finding in plain_study.findings:
        assert finding.describe() in text
    for heading in ("Map of the samples", "Clustered distances", "Graph diagnosis", "Provenance"):
        assert heading in text
    for name in plain_study.comparison.names:
        assert name in text


def test_the_page_and_the_record_say_the_same_of_a_finding(plain_study, parsed):
    texts = " ".join(" ".join(parsed(render(plain_study)).texts).split())
    for finding, recorded in zip(plain_study.findings, plain_study.plain()["findings"], strict=True):
        assert recorded["sentence"] == finding.describe()
        assert finding.closeness() in finding.describe()
        assert " ".join(recorded["sentence"].split()) in texts


def test_only_our_own_elements_exist_whatever_the_names(plain_study, hostile_study, parsed):
    plain, hostile = (parsed(render(study)) for study in (plain_study, hostile_study))
    assert [tag for tag, _ in hostile.tags if tag in {"script", "style", "img", "iframe", "link", "object"}] == [
        "style", "script", "script", "script"
    ]  # fmt: skip
    assert {tag for tag, _ in hostile.tags} <= {tag for tag, _ in plain.tags} | {"aside"}
    handlers = [name for _, attributes in hostile.tags for name in attributes if name.startswith("on")]
    assert handlers == []


def test_every_hostile_name_comes_back_as_it_was(hostile_study, hostile_names, parsed, data_of):
    page = render(hostile_study)
    shared = data_of(page)["shared"]
    assert sorted(shared["names"]) == sorted(hostile_names)
    assert [coloring["name"] for coloring in shared["colorings"]][:-1] == list(hostile_study.variables)
    table = parsed(page).texts
    for name in hostile_names:
        # HTML has no place for U+0001, and names have none for U+0000.
        assert name.replace("\u0001", "\\x01") in table


def test_the_data_cannot_leave_its_script(hostile_study):
    page = render(hostile_study)
    data = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, flags=re.DOTALL)[1]
    assert not set(data) & set("<>&\u2028\u2029")


def test_the_policy_names_our_scripts_and_allows_no_network(plain_study, parsed):
    page = parsed(render(plain_study))
    allowed = policy(page)
    for script in page.scripts[1:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in allowed
    assert allowed.startswith("default-src 'none'")
    assert "unsafe-inline" not in allowed.split("script-src")[1].split(";")[0]
    assert "http" not in allowed
    places = [value for _, attributes in page.tags for key, value in attributes.items() if key in {"src", "href"}]
    assert all(place.startswith("#") for place in places)


@pytest.mark.parametrize("n_samples", [2, 3])
def test_few_samples(n_samples, data_of):
    data = data_of(render(small(n_samples)))
    assert data["sections"]["heatmap"]["size"] == n_samples
    assert len(data["sections"]["map"]["maps"][0]["y"]) == n_samples


def test_no_variables(parsed, data_of):
    page = render(small(6))
    assert "nothing was tested" in "".join(parsed(page).texts)
    assert [coloring["name"] for coloring in data_of(page)["shared"]["colorings"]] == ["number of cells"]


def test_one_variable_that_cannot_be_tested(parsed):
    text = "".join(parsed(render(small(6, site=["here"] * 6))).texts)
    assert "it is constant" in text
    assert "not tested" in text


def test_missing_and_infinite_values_are_null_in_the_data(data_of):
    age = [1.5, np.nan, 3.0, 4.0, 5.0, 6.5, 7.0, np.inf]
    shared = data_of(render(small(8, age=age, group=["a", None, "b", "a", "b", "a", "b", "a"])))["shared"]
    numbers, groups = shared["colorings"][:2]
    assert numbers["values"] == [1.5, None, 3.0, 4.0, 5.0, 6.5, 7.0, None]
    assert groups["codes"] == [0, -1, 1, 0, 1, 0, 1, 0]
    assert groups["counts"] == [4, 3]


def test_many_groups_become_thirty_and_names_are_no_groups(data_of):
    groups = [f"g{i:02d}" for i in range(40)] + ["g00"] * 5 + ["g39"] * 5
    names = [f"patient {i}" for i in range(50)]
    shared = data_of(render(small(50, cells=8, group=groups, patient=names)))["shared"]
    assert [coloring["name"] for coloring in shared["colorings"]] == ["group", "number of cells"]
    coloring = shared["colorings"][0]
    assert len(coloring["groups"]) == 30
    assert coloring["groups"][-1] == "other (11 groups)"
    assert coloring["counts"][0] == 6
    assert "g39" in coloring["groups"]
    assert sum(coloring["counts"]) == 50


def test_the_first_color_is_that_of_the_first_variable_tested(plain_study, data_of):
    shared = data_of(render(plain_study))["shared"]
    assert shared["colorings"][shared["first"]]["name"] == "condition"


def test_a_further_section_stands_where_it_asks_to(plain_study, parsed, data_of):
    section = Section("further", "Cells <that> differ", fill("sentences.html", sentences=["a & b"]), {"values": [1]})
    page = render(plain_study, extra_sections=[section])
    keys = [attributes["id"] for tag, attributes in parsed(page).tags if tag == "section"]
    assert keys[keys.index("statistics") + 1] == "further"
    assert "Cells &lt;that&gt; differ" in page
    assert "<p>a &amp; b</p>" in page
    assert data_of(page)["sections"]["further"] == {"values": [1]}


@pytest.mark.parametrize("bad", [Section("map", "again", ""), Section("new", "lost", "", after="nowhere")])
def test_a_section_without_a_place_is_refused(plain_study, bad):
    with pytest.raises(InvalidInputError, match="a new section after one of map, heatmap"):
        render(plain_study, extra_sections=[bad])


def test_the_file_is_the_page_and_replaces_an_older_one(plain_study, tmp_path, parsed):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(plain_study, path, title="new")
    page = parsed(path.read_bytes().decode("utf-8"))
    assert "new" in page.texts
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(plain_study, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    class Full(io.TextIOWrapper):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    real = Path.open

    def open_on_a_full_disk(self, mode="r", **options):
        return Full(real(self, "xb")) if mode == "x" else real(self, mode, **options)

    monkeypatch.setattr(Path, "open", open_on_a_full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_report(plain_study, path)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_lone_surrogate_in_a_name_does_not_break_the_file(tmp_path):
    study = small(6, **{"bad\udc80": list("aabbab")})
    write_report(study, tmp_path / "report.html")
    assert "bad\\udc80" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_comparison_reports_itself_with_nothing_else_imported(tmp_path):
    code = (
        "import sys, heatmover as hm; data = hm.datasets.cohort(4, cells_per_sample=10); "
        "hm.compare(data.points, data.labels, n_neighbors=5).report(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "report.html")], check=True, timeout=300)
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_comparison_reports_itself(tmp_path):
    data = hm.datasets.cohort(8, cells_per_sample=20)
    comparison = hm.compare(data.points, data.labels, n_neighbors=8)
    study = comparison.report(tmp_path / "report.html", {"condition": data.annotations["condition"]}, title="Mine")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert study.findings[0].variable == "condition"
    assert "<h1>Mine</h1>" in page
    assert heatmover.report.render(study, title="Mine").count("<section") == page.count("<section")


ILLEGAL = [
    chr(code) for code in (*range(9), 0x0B, *range(0x0E, 0x20), *range(0x7F, 0xA0), 0xFDD0, 0xFFFE, 0xFFFF, 0x1FFFE)
]


def test_characters_that_html_does_not_allow_are_spelled_out(data_of):
    names = [f"{character}name{number}" for number, character in enumerate([*ILLEGAL[1:], "\udc80"])]
    rng = np.random.default_rng(0)
    comparison = hm.compare(rng.normal(size=(2 * len(names), 2)), np.repeat(names, 2), n_neighbors=8)
    page = render(
        study_comparison(comparison, {"bell\x07": rng.normal(size=len(names))}, n_permutations=9), title="a\0b"
    )
    assert not [character for character in [*ILLEGAL, "\udc80"] if character in page]
    assert "<h1>a\\x00b</h1>" in page
    assert "\\x7fname" in page
    # In the data every name is what it was.
    assert sorted(data_of(page)["shared"]["names"]) == sorted(names)


def test_a_graph_that_hangs_by_a_thread_is_told_on_the_page():
    data = hm.datasets.swiss_roll(10, points_per_measure=200, n_dimensions=3)
    with pytest.warns(hm.GraphWarning, match="nearly disconnected"):
        comparison = hm.compare(data.points, data.labels, n_neighbors=15)
    page = render(study_comparison(comparison, {"turn": np.arange(10.0)}, n_permutations=9), title="roll")
    assert "nearly disconnected from the rest. The largest has 201 of 2,000 points (10%)." in page
    assert "No problems found" not in page


def test_the_page_has_a_skip_link_and_named_regions(plain_study, parsed):
    tags = parsed(render(plain_study)).tags
    assert next(attributes for tag, attributes in tags if tag == "a")["href"] == "#main"
    ids = {attributes["id"] for _, attributes in tags if "id" in attributes}
    assert "main" in ids
    named = [attributes.get("aria-labelledby") for tag, attributes in tags if tag == "section"]
    assert named
    assert set(named) <= ids


def test_the_map_joins_the_two_samples_of_every_pair(data_of):
    data = hm.datasets.cohort(8, cells_per_sample=20, effect=4.0)
    compared = hm.compare(data.points, data.labels, n_neighbors=8)
    condition = {"condition": ["before", "after"] * 4}
    page = render(study_comparison(compared, condition, blocks={"patient": list("aabbccdd")}))
    assert data_of(page)["sections"]["map"]["pairs"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert 'id="pairs"' in page
    for blocks in (None, {"patient": list("aaabbccd")}):
        page = render(study_comparison(compared, condition, blocks=blocks))
        assert data_of(page)["sections"]["map"]["pairs"] == []
        assert 'id="pairs"' not in page


def test_a_foreign_sample_is_named_as_an_outlier(parsed):
    rng = np.random.default_rng(0)
    places = rng.normal(size=(16, 60, 2))
    places[7] += [3, 0]
    points, labels = places.reshape(-1, 2), np.repeat([f"<s{i}>" for i in range(16)], 60)
    study = study_comparison(hm.compare(points, labels, n_neighbors=20), {"group": ["a", "b"] * 8})
    outlying = study.plain()["outliers"]["samples"]
    assert list(outlying) == ["<s7>"]
    assert f"1 outlier: '<s7>' ({outlying['<s7>']:g}) " in study.outliers()["sentence"]
    assert study.outliers()["sentence"] in "".join(parsed(render(study)).texts)
    assert small(12).outliers()["sentence"].startswith("No sample is an outlier")
    assert "not assessed" in small(8).outliers()["sentence"]
