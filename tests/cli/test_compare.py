"""`heatmover compare`: files and figures are right, and every bad input is one sentence that leaves nothing."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import subprocess
import sys

import anndata
import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover._base.progress import SILENT
from heatmover.cli._settings import Reading, Settings
from heatmover.cohort import read_cohort
from heatmover.report.folder import FILES
from heatmover.study import StudyParameters, study_cohort

ODD = ["a/b", "line\nbreak", "[red]é∑[/red]", "\x1b[31mred", "'quoted'", '"', " padded ", "7", "x" * 300, "a,b;c"]


@pytest.fixture(scope="module")
def finished(cells, tmp_path_factory, cli):
    out = tmp_path_factory.mktemp("compare") / "out"
    result = cli.run("compare", cells, "-s", "sample", "-c", "condition", "-c", "age", "-o", out, "--permutations", 99)
    assert result.exit_code == 0, result.output
    return out, result


@pytest.fixture(scope="module")
def expected(cells):
    cohort = read_cohort(cells, sample_key="sample")
    return study_cohort(cohort, variables=["condition", "age"], n_permutations=99)


@pytest.fixture
def plain_report(monkeypatch):
    """A report that is quick to write."""
    monkeypatch.setattr(
        "heatmover.report.folder.write_report", lambda study, path, *, title: path.write_text(str(title))
    )


def read_distances(path):
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    assert [row[0] for row in rows] == header[1:]
    return header[1:], np.array([[float(value) for value in row[1:]] for row in rows])


def test_the_files_say_what_the_package_says(finished, expected, cells, cli):
    out, _ = finished
    assert sorted(cli.contents(out)) == sorted(FILES)
    names, distances = read_distances(out / "distances.csv")
    assert tuple(names) == expected.comparison.names
    np.testing.assert_array_equal(distances, expected.comparison.distances)
    samples = anndata.read_h5ad(out / "samples.h5ad")
    np.testing.assert_array_equal(samples.obsp["distances"], distances)
    assert samples.obs["condition"].tolist() == ["control", "case"] * 5
    assert samples.obs["age"].tolist() == [40.5 + i for i in range(10)]
    assert list(samples.uns["heatmover"]["varying"]) == ["cluster"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html")
    assert "condition" in page


def test_the_record_can_be_run_again(finished, expected, cells, tmp_path, cli, plain_report):
    text = (finished[0] / "run.json").read_text(encoding="utf-8")
    record = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert record["command"]["line"] == (
        "heatmover compare cells.h5ad --sample-key sample --color condition --color age --permutations 99"
    )
    assert record["input"]["checksum"] == f"sha256:{hashlib.sha256(cells.read_bytes()).hexdigest()}"
    assert {"read file", "find neighbors", "test variables", "write results"} <= record["seconds"].keys()
    assert record["parameters"]["random_state"] == 0
    assert record["versions"]["heatmover"] == hm.__version__
    assert [found["variable"] for found in record["findings"]] == ["condition", "age"]
    for name, found in record["files"].items():
        assert hashlib.sha256((finished[0] / name).read_bytes()).hexdigest() == found["sha256"]
    arguments = record["command"]["line"].split()[3:]
    again = cli.run("compare", cells, *arguments, "--threads", 1, "--quiet", "--out", tmp_path / "again")
    assert again.exit_code == 0
    assert (tmp_path / "again" / "distances.csv").read_bytes() == (finished[0] / "distances.csv").read_bytes()


def test_the_terminal_shows_the_answer(finished, expected):
    out, result = finished
    flowing = " ".join(result.stdout.split())
    assert flowing.startswith(expected.headline())
    for finding in expected.findings:
        assert f"{finding.answer.p_value:.2g}" in flowing
    assert "distance correlation" in flowing
    assert "and 2 more samples in distances.csv" in flowing
    assert "300 points" in flowing
    assert f"Wrote into {out}: report.html the report" in flowing
    assert flowing.endswith(f"Open in a browser: {out / 'report.html'}")
    assert result.stderr.splitlines()[:2] == ["read file ...", "check values ..."]
    assert result.stderr.splitlines()[-1] == "write results ..."


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(cells, tmp_path, cli, columns, plain_report):
    result = cli.run("compare", cells, "-s", "sample", "-o", tmp_path / "out", "--permutations", 9, columns=columns)
    wide = [
        line for line in result.stdout.splitlines() if len(line) > columns and not line.startswith(("Wrote", "Open"))
    ]
    assert wide == []


def test_quiet_prints_nothing(cells, tmp_path, cli, plain_report):
    result = cli.run("compare", cells, "-s", "sample", "-o", tmp_path / "out", "-q", "--title", "Mine")
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "out" / "report.html").read_text() == "Mine"


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_tables(make, tmp_path, cli, kind, expected, plain_report):
    path = tmp_path / f"cells.{kind}"
    frame = make.frame()
    if kind == "parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    for number, rep in enumerate([[], ["--rep", "CD4,CD8,CD19"], ["--rep", "CD4", "-r", "CD8,CD19"]]):
        out = tmp_path / str(number)
        assert cli.run("compare", path, "-s", "sample", "-o", out, "--permutations", 9, "-q", *rep).exit_code == 0
        _, distances = read_distances(out / "distances.csv")
        np.testing.assert_allclose(distances, expected.comparison.distances, rtol=1e-5)


def test_representation_by_key_and_by_genes(cells, tmp_path, cli, plain_report):
    found = []
    for number, rep in enumerate(["X", "X_twice", "CD4,CD8"]):
        out = tmp_path / str(number)
        assert cli.run("compare", cells, "-s", "sample", "-r", rep, "-o", out, "--permutations", 9, "-q").exit_code == 0
        found.append(read_distances(out / "distances.csv")[1])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)  # the unit does not matter
    assert np.abs(found[0] - found[2]).max() > 0.01


def test_odd_names_go_through(make, tmp_path, cli):
    frame = make.frame(names=ODD).rename(columns={"condition": "con/dition\n[b]", "cluster": "clus\0ter/"})
    frame = frame.rename(columns={"patient": "pat\0ient"})
    path = tmp_path / "cells.parquet"
    frame.to_parquet(path, index=False)
    result = cli.run(
        "compare",
        path,
        "-s",
        "sample",
        "-c",
        "con/dition\n[b]",
        "-o",
        tmp_path / "out",
        "--permutations",
        9,
        "--block",
        "pat\0ient",
    )
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "[red]é∑[/red]" in result.stdout
    names, _ = read_distances(tmp_path / "out" / "distances.csv")
    order = ["7", *sorted(set(ODD) - {"7"})]  # a number comes before any text
    assert names == order
    assert list(anndata.read_h5ad(tmp_path / "out" / "samples.h5ad").obs_names) == order
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "[red]" in page


@pytest.mark.parametrize(
    "labels",
    [
        [10 * i for i in range(10)],
        [bool(i % 2) for i in range(10)],
        [i / 2 for i in range(10)],
        [b"x%d" % i for i in range(10)],
    ],
    ids=["whole", "truth", "fractions", "bytes"],
)
def test_names_that_are_not_text(make, tmp_path, cli, labels, plain_report):
    path = tmp_path / "cells.parquet"
    frame = make.frame(names=labels)
    frame["sample"] = frame["sample"].tolist()
    frame.to_parquet(path, index=False)
    result = cli.run("compare", path, "-s", "sample", "-o", tmp_path / "out", "--permutations", 9)
    assert result.exit_code == 0, result.output


def test_a_sample_sheet_and_a_block(make, tmp_path, cli, plain_report):
    make.frame().to_csv(tmp_path / "cells.csv", index=False)
    sheet = pd.DataFrame({"sample": [f"s{i:02d}" for i in range(10)], "dose": [0, 1] * 5, "pair": list("aabbccddee")})
    sheet.to_csv(tmp_path / "sheet.csv", index=False)
    result = cli.run(
        "compare", tmp_path / "cells.csv", "-s", "sample", "--sample-sheet", tmp_path / "sheet.csv",
        "-c", "dose", "--block", "pair", "-o", tmp_path / "out",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["findings"][0]["blocks"] == "within"
    assert record["input"]["sample_sheet"] == "sheet.csv"
    assert str(tmp_path) not in (tmp_path / "out" / "run.json").read_text()


def test_small_samples_are_left_out(make, tmp_path, cli, plain_report):
    frame = make.frame()
    frame = frame[(frame["sample"] != "s03") | (frame["CD4"] == frame.loc[frame["sample"] == "s03", "CD4"].max())]
    path = make.h5ad(frame, tmp_path / "cells.h5ad")
    cli.fails_with(
        cli.run("compare", path, "-s", "sample", "-o", tmp_path / "out"),
        r"at least two cells in every sample, found one cell in 1 of 10 samples \('s03'\); --min-cells 2 leaves out "
        "these samples, and --min-cells 1 keeps them",
    )
    assert not (tmp_path / "out").exists()
    result = cli.run("compare", path, "-s", "sample", "--min-cells", 2, "-o", tmp_path / "out", "--permutations", 9)
    assert "1 sample with fewer than 2 cells was left out: 's03'" in " ".join(result.stdout.split())
    assert len(read_distances(tmp_path / "out" / "distances.csv")[0]) == 9


def change(frame, name):
    if name == "nan":
        frame.loc[17, "CD4"] = np.nan
    elif name == "infinity":
        frame.loc[17, "CD8"] = np.inf
    elif name == "unlabeled":
        frame.loc[5, "sample"] = None
    elif name == "one sample":
        frame["sample"] = "only"
    elif name == "apart":
        frame.loc[frame["cluster"] == "T", "CD4"] += 1e6
    return frame


KEY = ["-s", "sample"]
BAD = {
    "no such key": ("", ["-s", "sampel"], r"--sample-key .*found 'sampel' \(did you mean 'sample'\?\)"),
    "no key": ("", [], "--sample-key to name the column .*found none"),
    "no such color": ("", [*KEY, "-c", "Condition"], r"found 'Condition' \(did you mean 'condition'\?\)"),
    "no such block": ("", [*KEY, "--block", "patients"], r"'patients' \(did you mean 'patient'\?\)"),
    "varies": ("", [*KEY, "-c", "cluster"], "'cluster' to be constant within each sample, found that it varies"),
    "one condition": ("", [*KEY, "-c", "center"], "'center' to differ between samples, found only 'here'"),
    "no such rep": ("", [*KEY, "--rep", "X_pcs"], "--rep to be 'X' or a key of obsm, found 'X_pcs'"),
    "no such gene": ("", [*KEY, "--rep", "CD4,CD9"], "every name in --rep .*found 'CD9'"),
    "nan": ("nan", KEY, "without NaN or infinity, found 1 such value .*first: row 17, sample 's00'"),
    "infinity": ("infinity", KEY, "without NaN or infinity"),
    "unlabeled": ("unlabeled", KEY, r"a sample label for every cell .*1 of 300 missing \(first: row 5\)"),
    "one sample": ("one sample", KEY, "at least two samples to compare, found 1 of 1 sample; check the column"),
    "apart": ("apart", KEY, r"connected graph, found 2 components, with \d+% .*raise --neighbors,.*--allow-components"),
    "all small": (
        "",
        [*KEY, "--min-cells", "31"],
        "two samples with 31 or more cells .*found 0 of 10 samples; lower --min-cells",
    ),
    "components": ("", [*KEY, "--components", "9"], "--components to be at most 3"),
    "components text": (
        "",
        [*KEY, "--components", "few"],
        "--components to be a whole number .* or 'all', found 'few'",
    ),
    "landmarks text": ("", [*KEY, "--landmarks", "some"], "--landmarks .* 'auto' or none, found 'some'"),
    "landmarks zero": ("", [*KEY, "--landmarks", "0"], "--landmarks to be a whole number of at least 1.*found 0"),
    "too many landmarks": ("", [*KEY, "--landmarks", "400"], "landmarks"),
    "cofactor": ("", [*KEY, "--cofactor", "5"], "FCS files for --cofactor 5.*, found .*; leave out --cofactor"),
    "negative cofactor": ("", [*KEY, "--cofactor", "-5"], "--cofactor to be a number"),
    "seed": ("", [*KEY, "--seed", "-1"], "--seed to be a whole number of at least 0"),
    "long seed": ("", [*KEY, "--seed", "9" * 20], "--seed to be at most 9223372036854775807, found 9999"),
    "threads": ("", [*KEY, "--threads", "0"], "--threads to be a whole number of at least 1"),
    "permutations": ("", [*KEY, "--permutations", "0"], "--permutations to be a whole number of at least 1"),
    "neighbors": ("", [*KEY, "--neighbors", "0"], "--neighbors to be a whole number of at least 1"),
    "too many neighbors": ("", [*KEY, "--neighbors", "300"], "--neighbors"),
    "empty name": ("", [*KEY, "--rep", "CD4,,CD8"], "--rep to be names separated by commas"),
    "sheet": ("", [*KEY, "--sample-sheet", "nowhere.csv"], "a file that exists"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(make, tmp_path, cli, case):
    changed, options, sentence = BAD[case]
    path = make.h5ad(change(make.frame(), changed), tmp_path / "cells.h5ad")
    cli.fails_with(cli.run("compare", path, *options, "-o", tmp_path / "out"), sentence)
    assert [found.name for found in tmp_path.iterdir()] == ["cells.h5ad"]


def test_broken_files(cells, tmp_path, cli):
    whole = cells.read_bytes()
    broken = {
        "short.h5ad": (whole[: len(whole) // 2], "a complete h5ad file, found .*cannot be read"),
        "text.h5ad": (b"sample,x\na,1\n", "Expected an h5ad file, found that .*text.h5ad' is something else"),
        "empty.h5ad": (b"", "is empty"),
        "cells.docx": (b"PK", "a file ending in .h5ad"),
    }
    for name, (data, sentence) in broken.items():
        (tmp_path / name).write_bytes(data)
        cli.fails_with(cli.run("compare", tmp_path / name, "-s", "sample", "-o", tmp_path / "out"), sentence)
    cli.fails_with(cli.run("compare", tmp_path / "shrt.h5ad", "-s", "sample", "-o", "out"), "did you mean 'short.h5ad'")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(broken)


def test_parts_may_be_allowed(make, tmp_path, cli, plain_report):
    path = make.h5ad(change(make.frame(), "apart"), tmp_path / "cells.h5ad")
    result = cli.run("compare", path, "-s", "sample", "--allow-components", "-o", tmp_path / "out", "--permutations", 9)
    assert result.exit_code == 0, result.output
    assert "2 components contain several points" in " ".join(result.stdout.split())


def test_too_many_samples_are_refused_with_the_alternative(tmp_path, cli):
    n_cells = 40_002
    frame = pd.DataFrame({"sample": np.repeat(np.arange(20_001), 2), "x": np.arange(n_cells) / 7, "y": 0.5})
    frame.to_parquet(tmp_path / "cells.parquet", index=False)
    result = cli.run("compare", tmp_path / "cells.parquet", "-s", "sample", "-o", tmp_path / "out")
    cli.fails_with(result, r"at most 20,000 samples .*found 20,001, .*3 GB; in Python, embed the samples .*hm\.nearest")
    assert "find neighbors" not in result.stderr


def test_variables_are_looked_for_before_values(cells, tmp_path, cli):
    result = cli.run("compare", cells, "-s", "sample", "-c", "nothing", "-o", tmp_path / "out")
    assert "check values" not in result.stderr


@pytest.mark.parametrize("package", ["plotly", "jinja2", "anndata"])
def test_missing_packages_are_found_before_any_work(cells, tmp_path, monkeypatch, cli, package):
    monkeypatch.setitem(sys.modules, package, None)
    result = cli.run("compare", cells, "-s", "sample", "-o", tmp_path / "out")
    cli.fails_with(result, rf"'{package}'.*heatmover\[cohort\]")
    assert result.stderr.count("\n") == 1


def test_results_are_replaced_only_by_force(finished, cells, tmp_path, cli, plain_report):
    arguments = ["compare", cells, "-s", "sample", "-o", tmp_path, "--permutations", 9]
    (tmp_path / "report.html").write_text("old")
    cli.fails_with(cli.run(*arguments), "no results in .* yet, found report.html; use --force")
    assert cli.contents(tmp_path) == {"report.html": b"old"}
    assert cli.run(*arguments, "--force").exit_code == 0
    assert sorted(cli.contents(tmp_path)) == sorted(FILES)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("limit", [1024, 20 * 1024, 100 * 1024])
def test_a_full_disk_leaves_nothing(cells, tmp_path, cli, limit):
    """The system refuses to write more than so much into a file, as it does where a disk is full."""
    resource = pytest.importorskip("resource", reason="needs the limits of Unix")
    results, told = tmp_path / "results", tmp_path / "told"
    results.mkdir()
    with told.open("w") as file:
        child = cli.fork(
            "compare", cells, "-s", "sample", "-o", results / "out", "--permutations", 9,
            stdout=file.fileno(), stderr=file.fileno(),
            before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )  # fmt: skip
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert told.read_text().splitlines()[-1].startswith("Error: Could not write the results")
    assert list(results.iterdir()) == []


def test_help_has_groups_and_examples(cli):
    text = cli.run("compare", "--help", columns=80).stdout
    for title in ("Input", "Sample metadata", "Method", "Output and run", "Examples"):
        assert title in text
    for option in (
        "--sample-key",
        "--rep",
        "--color",
        "--block",
        "--min-cells",
        "--out",
        "--seed",
        "--title",
        "--force",
    ):
        assert option in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "<bool>" not in text
    assert cli.run("compare", "-h", columns=80).stdout == text


def test_help_lists_what_most_people_need_first(cli):
    text = cli.run("compare", "--help", columns=80).stdout
    first = text[text.index("Main options:") : text.index("Input:")]
    named = re.findall(r"^  (?:-\w, )?(--[\w-]+)", first, flags=re.MULTILINE)
    assert named == [
        "--sample-key", "--out", "--color", "--block", "--adjust", "--cells", "--rep", "--sample-sheet",
        "--standardize", "--force",
    ]  # fmt: skip


def test_into_a_pipe_lines_are_neither_wrapped_nor_padded(cells, tmp_path):
    command = [sys.executable, "-m", "heatmover", "compare", str(cells), "-s", "sample", "-o", str(tmp_path / "out")]
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) > 100
    assert [line for line in lines if line != line.rstrip()] == []


def test_what_is_a_feature_and_what_is_not_is_said(make, tmp_path, cli, plain_report):
    frame = make.frame()
    frame["score"] = np.arange(len(frame)) + 0.5
    frame = frame.astype({"score": object})
    frame.loc[7, "score"] = "."
    path, arguments = tmp_path / "cells.csv", ("-s", "sample", "-o", tmp_path / "out", "--permutations", 9)
    frame.to_csv(path, index=False)
    cli.fails_with(cli.run("compare", path, *arguments), r"column 'score', found '\.' in line 9; .* --annotation")
    cli.fails_with(cli.run("doctor", path, "-s", "sample"), r"'score', found '\.' in line 9")
    result = cli.run("compare", path, *arguments, "--annotation", "score")
    assert result.exit_code == 0, result.output
    assert "features 'CD4', 'CD8', 'CD19'; not used as features: " in " ".join(result.stdout.split())
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["input"]["dimensions"] == ["CD4", "CD8", "CD19"]
    assert record["input"]["unused"]["score"] == "named as an annotation"
    assert record["input"]["unused"]["age"] == "the same in all cells of each sample"
    for study, reading in ((StudyParameters(cells="score"), {}), (StudyParameters(), {"no_features": ("score",)})):
        settings = Settings(Reading(str(path), "sample", **reading), study)
        assert settings.read(SILENT).features == ("CD4", "CD8", "CD19")


def test_noise_of_few_cells_is_removed_and_intervals_are_kept(make, tmp_path, cli):
    """The same numbers from the command line as from Python, and the intervals in samples.h5ad."""
    import anndata

    path = tmp_path / "cells.csv"
    make.frame().to_csv(path, index=False)
    out = tmp_path / "out"
    result = cli.run(
        "compare", path, "-s", "sample", "-o", out, "--permutations", 9, "--bias", "corrected", "--bootstrap", 20
    )
    assert result.exit_code == 0, result.output
    record = json.loads((out / "run.json").read_text())
    assert record["parameters"]["bias"] == "corrected"
    assert record["uncertainty"]["n_bootstrap"] == 20
    assert any("Split-half retrieval" in note for note in record["notes"])
    stored = anndata.read_h5ad(out / "samples.h5ad").uns["heatmover"]["intervals"]
    assert (stored["lower"] <= stored["upper"]).all()
    cli.fails_with(cli.run("compare", path, "-s", "sample", "-o", out, "--bias", "none"), "--bias")
    cli.fails_with(cli.run("compare", path, "-s", "sample", "-o", out, "--bootstrap", "-3"), "--bootstrap")


@pytest.fixture(scope="module")
def unequal(make, tmp_path_factory):
    """Samples of 12 to 30 cells."""
    frame = make.frame(10, 30)
    keep = frame.groupby("sample").cumcount() < 30 - 2 * frame["sample"].str[1:].astype(int)
    return make.h5ad(frame[keep].reset_index(drop=True), tmp_path_factory.mktemp("unequal") / "cells.h5ad")


@pytest.mark.parametrize("further", [(), ("--memory", "1GB", "--landmarks", 50)])
@pytest.mark.parametrize(
    ("words", "count"), [(("--equal-cells",), 12), (("--equal-cells", 10), 10), (("--equal-cells=11",), 11)]
)
def test_equal_cells(cli, unequal, tmp_path, words, count, further):
    result = cli.run(
        "compare", *words, unequal, "-s", "sample", "-c", "condition", "--permutations", 19, "--neighbors", 8,
        *further, "-o", tmp_path / "out", columns=200,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["drawn"]["n_cells"] == count
    assert record["cells"] == 10 * count
    assert record["parameters"]["equal_cells"] == (True if count == 12 else count)
    assert "--equal-cells" in record["command"]["line"]
    said = (
        f"{count} cells were drawn from every sample, {10 * count} of 210 cells in total (samples have 12 to 30 cells)"
    )
    assert said in " ".join(result.stdout.split())
    assert said in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--equal-cells", "20"), r"fewer in 4 of 10 .* with --min-cells 20, or draw at most 12"),
        (("--equal-cells", "0"), "--equal-cells to be a whole number of at least 2, found 0"),
        (("--equal-cells", "-7"), "--equal-cells to be a whole number of at least 2, found -7"),
        (("--equal-cells", "2.5"), "--equal-cells to be a whole number"),
        (("--equal-cells", "many"), r"unexpected extra argument\(s\) \(many\); put names with spaces into quotes"),
        (("--equal-cells=many",), r"at least 2, found 'many'; --equal-cells, without a number, draws as many"),
        (("--equal-cells=",), "at least 2, found ''; --equal-cells, without a number"),
    ],
)
def test_equal_cells_that_cannot_be(cli, unequal, tmp_path, words, sentence):
    for command in (("compare", "-o", tmp_path / "out"), ("doctor", "-q")):
        result = cli.run(command[0], unequal, "-s", "sample", "--neighbors", 8, *words, *command[1:])
        cli.fails_with(result, sentence)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--units", "miles"), "--units to be one of 'euclidean', 'geodesic', found 'miles'"),
        (("--units", ""), "--units to be one of"),
        (("--units", "euclidean", "--min-cells", 26), r"at least 7 samples for --units, .* found 3; leave out --units"),
        (("--units", "geodesic", "--neighbors", 1), r"a connected graph for --units geodesic.*raise --neighbors"),
    ],
)
def test_units_that_cannot_be(cli, unequal, tmp_path, words, sentence):
    neighbors = () if "--neighbors" in words else ("--neighbors", 8)
    result = cli.run("compare", unequal, "-s", "sample", *neighbors, *words, "-o", tmp_path / "out")
    cli.fails_with(result, sentence)
    assert not (tmp_path / "out").exists()


def test_units_without_the_package_are_told_before_cells_are_read(cli, unequal, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    for further in ((), ("--memory", "1GB")):
        result = cli.run("compare", unequal, "-s", "sample", "--units", "euclidean", *further, "-o", tmp_path / "out")
        cli.fails_with(result, r"heatmover\[exact\]")
        assert "check values" not in result.stderr


def test_a_variable_is_read_as_it_is_said(make, tmp_path, cli):
    frame = make.frame()
    frame["stage"] = frame["sample"].str[1:].astype(int) % 4 + 1
    frame["plate"] = frame["sample"].str[1:].astype(int) // 2 + 10.5
    file = tmp_path / "cells.csv"
    frame.to_csv(file, index=False)
    base = ("compare", file, "-s", "sample", "-c", "stage", "-c", "plate", "--permutations", "19", "-q")
    given = ("--numeric", "stage", "--categorical", "plate")
    assert cli.run(*base, *given, "-o", tmp_path / "out").exit_code == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [found["kind"] for found in record["findings"]] == ["number", "groups"]
    assert record["parameters"]["numeric"] == ["stage"]
    assert "--numeric stage --categorical plate" in record["command"]["line"]
    for command, out in (("compare", ("-o", tmp_path / "bad")), ("doctor", ())):
        result = cli.run(command, file, "-s", "sample", "--numeric", "condition", "-q", *out)
        cli.fails_with(result, "Expected numbers in 'condition', a column named in --numeric, found 'control'; correct")
    assert not (tmp_path / "bad").exists()


def test_a_comparison_loads_nothing_that_it_does_not_need(tmp_path):
    rows = [f"s{i % 4},{'ab'[i % 2]},{i % 7},{i % 5 / 3}" for i in range(80)]
    (tmp_path / "cells.csv").write_text("\n".join(["sample,group,x,y", *rows]))
    code = """
import sys
from heatmover.cli import app
app(["compare", sys.argv[1], "-s", "sample", "-o", sys.argv[2], "-q"], standalone_mode=False)
print([name for name in ("matplotlib", "torch") if name in sys.modules])
"""
    order = [sys.executable, "-c", code, str(tmp_path / "cells.csv"), str(tmp_path / "out")]
    done = subprocess.run(order, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
