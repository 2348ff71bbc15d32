"""`--cells`: the section, the table and the line on cell types, and every refusal before the work."""

from __future__ import annotations

import csv
import html
import json
import re

import numpy as np
import pandas as pd
import pytest

from heatmover.cohort import read_cohort
from heatmover.report.folder import CELL_TYPES, COMPOSITION, DRIVERS, FILES
from heatmover.study.study import study_cohort
from heatmover.study.tables import plain_text

HOSTILE = "=1+1\n<b>[red]\x1b[31m,\"'"


@pytest.fixture(scope="module")
def file(make, tmp_path_factory):
    frame = make.frame(12, 30)
    # Cases lie to the right, so that the kind differs between cases and controls.
    frame["Cell type"] = ["right" if value > 1.5 else "left" for value in frame["CD4"]]
    frame.loc[::50, "Cell type"] = HOSTILE
    return make.h5ad(frame, tmp_path_factory.mktemp("kinds") / "cells.h5ad")


@pytest.fixture(scope="module")
def finished(file, tmp_path_factory, cli):
    out = tmp_path_factory.mktemp("compare") / "out"
    result = cli.run(
        "compare", file, "-s", "sample", "-c", "condition", "--cells", "Cell type", "-o", out, "--permutations", 99
    )
    assert result.exit_code == 0, result.output
    return out, result


@pytest.fixture(scope="module")
def expected(file):
    cohort = read_cohort(file, sample_key="sample")
    return study_cohort(cohort, variables=["condition"], cells="Cell type", n_permutations=99).contrast


def test_the_table_has_the_numbers_of_the_contrast(finished, expected, cli):
    assert sorted(cli.contents(finished[0])) == sorted([*FILES, CELL_TYPES, COMPOSITION, DRIVERS])
    with (finished[0] / CELL_TYPES).open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    names = [plain_text(row["cell_type"]) for row in rows]
    assert names == [kind.name for kind in expected.types]
    assert HOSTILE in names
    assert f"'{HOSTILE}" in [row["cell_type"] for row in rows]  # no formula in a spreadsheet
    for row, kind in zip(rows, expected.types, strict=True):
        assert (row["group"], row["reference"]) == ("case", "control")
        for name in ("share", "abundance", "state", "abundance_p", "abundance_q", "state_p", "state_q"):
            assert float(row[name]) == getattr(kind, name)
        assert float(row["abundance"]) + float(row["state"]) == pytest.approx(float(row["contribution"]), abs=1e-12)
        assert float(row["ratio"]) == kind.ratio
        assert row["direction"] == kind.direction
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)


def test_the_table_of_features_is_that_of_the_contrast(finished, expected):
    written = pd.read_csv(finished[0] / DRIVERS)
    table = expected.drivers.table()
    assert list(written.columns) == ["cell_type", "group", "reference", *table.columns[1:]]
    np.testing.assert_allclose(written["score"], table["score"])
    assert set(written["feature"]) == set(expected.drivers.features)
    shown = (finished[0] / "report.html").read_text(encoding="utf-8")
    assert ("Features that differ within cell types" in shown) == bool(expected.drivers.top())


def test_the_terminal_has_a_line_and_the_report_a_section(finished, expected):
    flowing = " ".join(finished[1].stdout.split())
    assert f"cells {' '.join(expected.describe().split())}" in flowing
    assert CELL_TYPES in flowing
    assert "Which cells differ" in (finished[0] / "report.html").read_text(encoding="utf-8")


def test_the_record_names_the_option_as_it_was_typed(finished, expected):
    record = json.loads((finished[0] / "run.json").read_text(encoding="utf-8"))
    assert record["command"]["line"] == (
        "heatmover compare cells.h5ad --sample-key sample --color condition --cells 'Cell type' --permutations 99"
    )
    assert record["contrasts"][0]["group"] == "case"
    assert record["contrasts"][0]["types"][0]["share"] == expected.types[0].share
    assert CELL_TYPES in record["files"]


def test_a_later_run_without_it_leaves_no_table_behind(file, finished, tmp_path, cli):
    out = tmp_path / "out"
    arguments = ("compare", file, "-s", "sample", "-c", "condition", "-o", out, "--permutations", 19)
    assert cli.run(*arguments, "--cells", "Cell type").exit_code == 0
    assert (out / CELL_TYPES).exists()
    assert cli.run(*arguments, "--force").exit_code == 0
    assert not (out / CELL_TYPES).exists()


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (
            "cell types",
            r"Expected --cells to be the name of a column that .*, found 'cell types' \(did you mean 'Cell type'\?\)",
        ),
        ("condition", "'condition', which is the same in all cells of every sample"),
        ("nothing like it", "found 'nothing like it'; there are 'cluster', 'Cell type'"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "doctor"])
def test_a_bad_column_is_one_sentence(file, tmp_path, cli, command, column, sentence):
    out = ("-o", tmp_path / "out") if command == "compare" else ("-q",)
    cli.fails_with(cli.run(command, file, "-s", "sample", "--cells", column, *out), sentence)
    assert not (tmp_path / "out").exists()


def test_a_run_in_pieces_tells_the_same_of_every_cell(file, tmp_path, cli):
    arguments = ("compare", file, "-s", "sample", "-c", "condition", "--cells", "Cell type", "--landmarks", 40)
    further = ("--neighbors", 8, "--permutations", 49, "-q")
    found = {}
    for name, pieces in (("memory", ()), ("pieces", ("--memory", "1 GB"))):
        assert cli.run(*arguments, *further, *pieces, "-o", tmp_path / name).exit_code == 0
        with (tmp_path / name / CELL_TYPES).open(newline="", encoding="utf-8") as stream:
            found[name] = {row["cell_type"]: row for row in csv.DictReader(stream)}
    assert found["memory"].keys() == found["pieces"].keys()
    for name, row in found["memory"].items():
        other = found["pieces"][name]
        # Landmarks differ, and with them what a type adds to the distance; its cells and their shares do not.
        assert (row["cells"], row["group"], row["reference"]) == (other["cells"], other["group"], other["reference"])
        for column in ("in_group", "in_reference"):
            assert float(row[column]) == pytest.approx(float(other[column]), rel=1e-12)
        assert row["direction"] == other["direction"]
        # Every cell has the features of its landmark, which differ little from its own.
        assert float(row["abundance"]) + float(row["state"]) == pytest.approx(float(row["contribution"]), abs=1e-9)
    assert sum(float(row["share"]) for row in found["pieces"].values()) == pytest.approx(1)
    near, own = (
        pd.read_csv(tmp_path / name / DRIVERS).set_index(["cell_type", "feature"])["in_group"].sort_index()
        for name in ("pieces", "memory")
    )
    np.testing.assert_allclose(near, own, atol=0.5)


def test_the_reference_can_be_named(file, tmp_path, cli):
    arguments = ("compare", file, "-s", "sample", "-c", "condition", "--cells", "Cell type", "--permutations", 19, "-q")
    assert cli.run(*arguments, "--reference", "case", "-o", tmp_path / "out").exit_code == 0
    kinds = pd.read_csv(tmp_path / "out" / CELL_TYPES)
    assert (kinds["group"][0], kinds["reference"][0]) == ("control", "case")
    record = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert record["command"]["line"].endswith("--cells 'Cell type' --reference case --permutations 19")


@pytest.mark.parametrize("command", ["compare", "doctor"])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--cells", "Cell type", "--reference", "contrl"), r"Expected --reference to be a group .*'control'"),
        (
            ("--reference", "control"),
            "Expected --cells together with --reference control, .* found --reference control alone; set --cells",
        ),
    ],
)
def test_an_unknown_reference_is_one_sentence(file, tmp_path, cli, command, options, sentence):
    out = ("-o", tmp_path / "out") if command == "compare" else ("-q",)
    cli.fails_with(cli.run(command, file, "-s", "sample", "-c", "condition", *options, *out), sentence)
    assert not (tmp_path / "out").exists()


def test_without_groups_there_is_a_trend_or_a_note_and_no_table(make, tmp_path, cli):
    frame = make.frame(8, 20).drop(columns=["condition", "patient"])
    compare = ("compare", make.h5ad(frame, tmp_path / "cells.h5ad"), "-s", "sample", "--cells", "cluster")
    result = cli.run(*compare, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "out" / CELL_TYPES)
    assert set(table["group"]) == {"higher age"}
    assert "Trend along age" in plain_page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    alone = make.h5ad(frame.drop(columns=["age"]), tmp_path / "alone.h5ad")
    result = cli.run("compare", alone, *compare[2:], "-o", tmp_path / "none")
    assert result.exit_code == 0, result.output
    assert "Expected sample metadata that could be tested, found none" in " ".join(result.stdout.split())
    assert not (tmp_path / "none" / CELL_TYPES).exists()


def test_the_demo_finds_its_branch(tmp_path, cli):
    result = cli.run("demo", "--out", tmp_path / "out", "--samples", 30, "--cells", 60, "--effect", 3)
    assert result.exit_code == 0, result.output
    kinds = pd.read_csv(tmp_path / "out" / CELL_TYPES)
    assert kinds["cell_type"][0] == "branch 4"
    assert "'branch 4'" in result.stdout


@pytest.fixture(scope="module")
def designed(tmp_path_factory):
    """Ten samples in five pairs and two batches; after treatment there are more cells of one type, in another state."""
    rng = np.random.default_rng(3)
    after, size = np.tile([False, True], 5).repeat(60), 600
    kind = rng.random(size) < np.where(after, 0.8, 0.3)
    frame = pd.DataFrame(
        {
            "sample": np.repeat([f"s{i}" for i in range(10)], 60),
            "patient": np.repeat([f"p{i // 2}" for i in range(10)], 60),
            "visit": np.where(after, "after", "before"),
            "batch": np.repeat(list("xyxyxyyxxy"), 60),
            "kind": np.where(kind, "B", "T"),
            "u": rng.normal(size=size) + 5.0 * kind,
            "v": rng.normal(size=size) + 2.0 * after * kind,
        }
    )
    path = tmp_path_factory.mktemp("designed") / "cells.csv"
    frame.to_csv(path, index=False)
    return path


def contrasted(file, out, cli, *design):
    color = () if "--formula" in design else ("-c", "visit")
    result = cli.run("compare", file, "-s", "sample", *color, "--cells", "kind", *design, "-o", out)
    assert result.exit_code == 0, result.output
    page = " ".join((out / "report.html").read_text(encoding="utf-8").split())
    return " ".join(result.stdout.split()), page, json.loads((out / "run.json").read_text())


@pytest.mark.parametrize(
    ("design", "reason"),
    [
        (
            ["--block", "patient"],
            "With 5 pairs the smallest possible p-value is 0.0625, so a test of a cell type cannot reach 0.05.",
        ),
        (
            ["--permutations", "9"],
            "With 9 permutations the smallest possible p-value is 0.1, so a test of a cell type cannot reach 0.05.",
        ),
    ],
)
def test_nothing_is_called_where_the_design_does_not_allow_it(designed, tmp_path, cli, design, reason):
    assert contrasted(designed, tmp_path / "plain", cli)[2]["contrasts"][0]["types"][0]["direction"] == "more"
    said, page, record = contrasted(designed, tmp_path / "out", cli, *design)
    told = f"{reason} No cell type is called significant."
    assert told in said
    contrast = record["contrasts"][0]
    # Features have a t-test where permutations cannot reach significance.
    assert (contrast["no_calls"], contrast["drivers"]) == (told, {"B": ["+v"]})
    assert not any(kind["direction"] or kind["moved"] for kind in contrast["types"])
    sections = {name: plain_page(page.split(f'id="{name}"')[1].split("</section>")[0]) for name in ("cells", "methods")}
    assert sections["cells"].count(told) == 3  # what was found, the table of types, and how to read it
    assert told in sections["methods"]
    types = page.replace(page.split('class="findings drivers"')[1].split("</table>")[0], "")
    assert not re.search('class="(bar-fill|answer) (more|less|yes)"|class="piece (number|state)"', types)
    table = pd.read_csv(tmp_path / "out" / CELL_TYPES)
    assert set(table["note"]) == {told}
    assert (table.filter(regex="_q$").to_numpy() == 1).all()
    assert (table.filter(regex="_p$").to_numpy() < 1).any()


@pytest.mark.parametrize("design", [["--adjust", "batch"], ["--formula", "visit + batch"]])
def test_covariates_reach_the_tests_of_cell_types(designed, tmp_path, cli, design):
    said, page, record = contrasted(designed, tmp_path / "out", cli, *design)
    contrast = record["contrasts"][0]
    assert (contrast["adjusted"], contrast["no_calls"]) == (["batch"], "")
    assert any(kind["direction"] for kind in contrast["types"])
    assert "adjusted for 'batch'" in said
    assert "with 'batch' held fixed (Freedman and Lane, 1983)" in plain_page(page)


def plain_page(page):
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())


def test_methods_say_which_tests_were_adjusted(designed, tmp_path, cli):
    page = plain_page(contrasted(designed, tmp_path / "out", cli, "--adjust", "batch")[1])
    assert "The test of 'visit' was adjusted for 'batch': residuals of a linear model" in page
    assert "Distances between samples are not adjusted for 'batch'." in page
    both = plain_page(contrasted(designed, tmp_path / "both", cli, "--formula", "visit + batch")[1])
    assert "The test of 'batch' was adjusted for 'visit':" in both


def test_a_trend_and_two_groups_can_be_asked_for(make, tmp_path, cli):
    frame = make.frame(12, 25)
    place = frame["sample"].astype("category").cat.codes
    frame["stage"] = np.array(["I", "II", "III"])[place % 3]
    compare = ("compare", make.h5ad(frame, tmp_path / "cells.h5ad"), "-s", "sample", "--permutations", 49)
    for options, expected in (
        (("-c", "age", "--trend", "age"), {("higher age", "lower age")}),
        (("-c", "stage", "--group", "II", "--versus", "III"), {("II", "III")}),
        (("-c", "stage"), {("I", "all others"), ("II", "all others"), ("III", "all others")}),
    ):
        result = cli.run(*compare, *options, "--cells", "cluster", "-o", tmp_path / "out", "--force")
        assert result.exit_code == 0, result.output
        table = pd.read_csv(tmp_path / "out" / CELL_TYPES)
        assert set(zip(table["group"], table["reference"], strict=True)) == expected
    assert "All 3 groups of 'stage' together" in " ".join(result.stdout.split())
    assert "All contrasts" in plain_page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--trend", "condition"), "Expected numbers or an ordered category in 'condition' for a trend"),
        (("--trend", "agee"), "did you mean 'age'"),
        (("--group", "cases"), "Expected --group to be a group of an examined variable"),
        (("--group", "case", "--versus", "case"), "Expected --reference to be another group than --group"),
    ],
)
def test_a_contrast_that_makes_no_sense_is_one_sentence(file, tmp_path, cli, options, sentence):
    result = cli.run(
        "compare", file, "-s", "sample", "-c", "condition", "--cells", "Cell type", *options, "-o", tmp_path / "out"
    )
    cli.fails_with(result, sentence)
    assert not (tmp_path / "out").exists()
