"""`heatmover doctor`: what it says is so, it says whether compare would run, and it writes nothing."""

from __future__ import annotations

import re
import sys

import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.cli import _doctor
from heatmover.cohort import read_cohort
from heatmover.cohort.candidates import candidates
from heatmover.cohort.subsample import draw_cells
from heatmover.study.cautions import MOST_CELLS


def flowing(text):
    return " ".join(text.split())


@pytest.fixture
def doctor(cli):
    return lambda path, *arguments: cli.run("doctor", path, *arguments)


def test_a_healthy_file(cells, doctor):
    before = cells.read_bytes(), sorted(cells.parent.iterdir())
    result = doctor(cells, "-s", "sample")
    assert result.exit_code == 0, result.output
    text = flowing(result.stdout)
    assert "cells.h5ad (h5ad)" in text
    assert "samples 10: 's00', 's01', 's02' and 7 more" in text
    assert "cells 300; 30 in every sample; no sample below 30 cells" in text
    assert "features 3: 'CD4', 'CD8', 'CD19'; no missing values" in text
    assert re.search(r"condition groups (case .5., control .5.|control .5., case .5.)", text)
    assert "age number 40.5 to 49.5" in text
    assert "cluster of cells varies within 10 samples" in text
    assert "300 points" in text
    assert re.search(r"about \d+ seconds and \d\.\d GB of memory here", text)
    assert text.endswith("heatmover compare would run.")
    assert before == (cells.read_bytes(), sorted(cells.parent.iterdir()))


def test_without_a_key_the_candidates_are_listed(cells, doctor):
    result = doctor(cells)
    assert result.exit_code == 2
    rows = [line.split()[0] for line in result.stdout.splitlines()[3:]]
    assert rows[:2] == ["sample", "patient"]
    assert "CD4" not in rows
    assert result.stderr.endswith("perhaps --sample-key sample.\n")


@pytest.mark.parametrize("kind", ["csv", "parquet", "h5ad"])
def test_candidates_by_counting(make, tmp_path, kind):
    frame = make.frame()
    path = tmp_path / f"cells.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path, index=False)
    else:
        make.h5ad(frame, path)
    found = {candidate.column: candidate for candidate in candidates(str(path))}
    assert {"sample", "patient", "condition", "cluster"} <= found.keys()
    assert not {"CD4", "CD8", "CD19", "center"} & found.keys()
    for name in ("sample", "cluster"):
        counts = frame[name].value_counts()
        assert (found[name].n_values, found[name].fewest) == (len(counts), counts.min())


@pytest.mark.parametrize(
    ("columns", "likely"),
    [
        # What each column has, from coarse to fine, in the order of the file.
        ({"donor": 4, "sample": 8}, "sample"),
        ({"donor": 4, "library": 8, "sample": 4}, "library"),
        ({"sample_type": 2, "patient": 4}, "patient"),
        ({"batch": 8, "donor": 4}, "donor"),
        ({"sample": 4, "sample_id": 4}, "sample"),
        ({"cluster_id": 8, "specimen": 4}, "specimen"),
        ({"cluster": 8, "run": 4}, "run"),
        ({"bulk_labels": 8, "channel": 4}, "channel"),
        ({"cell_type_id": 8, "louvain": 6, "phase": 3, "response": 4}, "response"),
        ({"leiden": 8, "orig.ident": 4}, "orig.ident"),
        ({"annotation": 8, "cluster": 4}, "annotation"),
        ({"sample_barcode": 240, "donor": 4}, "donor"),
    ],
)
def test_the_finest_column_that_makes_samples_is_suggested(columns, likely, tmp_path):
    cells = np.arange(480)
    frame = pd.DataFrame({name: [f"v{i}" for i in cells * count // 480] for name, count in columns.items()})
    frame["CD4"] = np.random.default_rng(0).normal(size=480)
    frame.to_csv(tmp_path / "cells.csv", index=False)
    assert candidates(str(tmp_path / "cells.csv"))[0].column == likely


def test_a_key_of_cell_types_is_questioned_in_options(doctor, tmp_path):
    types, donors = np.divmod(np.arange(400) % 40, 10)
    frame = pd.DataFrame({"cell_type": [f"t{i}" for i in types], "donor": [f"d{i}" for i in donors]})
    frame[["x", "y"]] = np.random.default_rng(0).normal(size=(400, 2))
    frame.to_csv(tmp_path / "cells.csv", index=False)
    text = " ".join(doctor(tmp_path / "cells.csv", "-s", "cell_type").stdout.split())
    assert text.count("4 of 4 values of 'cell_type' occur in every 'donor', so 'cell_type' looks like") == 1
    assert "perhaps use --sample-key donor." in text


@pytest.mark.parametrize("words", [(), ("--sample-sheet", "sheet.csv")])
def test_compare_without_a_key_names_the_columns_and_the_doctor(words, cells, tmp_path, cli):
    result = cli.run("compare", cells, *words, "-o", tmp_path / "out")
    cli.fails_with(
        result,
        r"Expected --sample-key to name the column .*, found none; candidates: sample \(10 values\), "
        r"patient \(5 values\), condition \(2 values\), .*, "
        r"perhaps --sample-key sample; heatmover doctor .*cells.h5ad shows more\.$",
    )
    assert not (tmp_path / "out").exists()


def test_every_reason_is_told(make, tmp_path, doctor):
    frame = make.frame()
    frame = frame[(frame["sample"] != "s03") | ~frame.duplicated("sample")]
    path = make.h5ad(frame, tmp_path / "cells.h5ad")
    result = doctor(path, "-s", "sample", "-c", "cluster", "-c", "center", "-c", "condition", "--block", "patients")
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 4
    for error, sentence in zip(
        errors, ["--min-cells 2", "'cluster' to be constant", "'center' to differ", "'patients'"], strict=True
    ):
        assert sentence in error
    assert "would run" not in result.stdout
    assert "1 of them with a single cell" in flowing(result.stdout)
    assert [found.name for found in tmp_path.iterdir()] == ["cells.h5ad"]


def test_components(make, tmp_path, doctor):
    frame = make.frame()
    frame.loc[frame["cluster"] == "T", "CD4"] += 1e6
    path = make.h5ad(frame, tmp_path / "cells.h5ad")
    result = doctor(path, "-s", "sample")
    assert result.exit_code == 2
    assert "a connected graph, found 2 components" in result.stderr
    assert doctor(path, "-s", "sample", "--allow-components").exit_code == 0


def test_advice(make, tmp_path, doctor):
    frame = make.frame()
    frame["CD4"] *= 1000
    frame["CD19"] = 1.5
    frame = pd.concat([frame, frame.iloc[:60]])
    path = make.h5ad(frame, tmp_path / "cells.h5ad")
    text = flowing(doctor(path, "-s", "sample").stdout)
    assert re.search(
        r"different units. Compared with the median of the other features, the standard deviation is [0-9,]+ times "
        "as large for 'CD4'",
        text,
    )
    assert "'CD4' alone has 100% of the variance. --standardize gives all features equal weight." in text
    assert "constant: 'CD19'; 60 duplicate cells" in text
    assert "of the cells are duplicates and share a node" in text
    assert "decides nearly alone" not in flowing(doctor(path, "-s", "sample", "--standardize").stdout)


def test_bad_files_are_one_sentence(cells, tmp_path, cli, doctor):
    (tmp_path / "cells.h5ad").write_bytes(cells.read_bytes()[:5000])
    cli.fails_with(doctor(tmp_path / "cells.h5ad", "-s", "sample"), "a complete h5ad file")
    cli.fails_with(doctor(tmp_path / "cells.h5ad"), "a complete h5ad file")
    cli.fails_with(doctor(tmp_path / "none.h5ad", "-s", "sample"), "a file that exists")
    cli.fails_with(doctor(cells, "-s", "sampel"), "did you mean 'sample'")


def test_quiet_tells_by_the_exit_code(cells, doctor):
    result = doctor(cells, "-s", "sample", "-q")
    assert (result.exit_code, result.output) == (0, "")


def test_every_sample_is_drawn_from(tmp_path):
    rng = np.random.default_rng(0)
    sizes = [5, 1000, 29_000, 2, 10_000]
    labels = rng.permutation(np.repeat(list("abcde"), sizes))
    values = np.arange(len(labels)) + 0.5
    pd.DataFrame({"sample": labels, "x": values, "y": -values}).to_parquet(tmp_path / "cells.parquet")
    cohort = read_cohort(tmp_path / "cells.parquet", sample_key="sample")
    points, codes, _ = draw_cells(cohort, MOST_CELLS, 1)
    assert len(points) == len(codes) == MOST_CELLS
    assert len(np.unique(points[:, 0])) == MOST_CELLS  # no cell twice
    assert [cohort.names[code] for code in codes] == labels[(points[:, 0] - 0.5).astype(int)].tolist()
    counts = np.bincount(codes, minlength=5)
    assert counts.min() >= 1
    np.testing.assert_allclose(counts / MOST_CELLS, np.array(sizes) / sum(sizes), atol=0.02)
    order = rng.permutation(len(labels))
    frame = pd.DataFrame({"sample": labels[order], "x": values[order], "y": -values[order]})
    frame.to_parquet(tmp_path / "shuffled.parquet")
    again = draw_cells(read_cohort(tmp_path / "shuffled.parquet", sample_key="sample"), MOST_CELLS, 1).points
    np.testing.assert_array_equal(again, points)


@pytest.fixture(scope="module")
def noisy(make, tmp_path_factory):
    """One distribution; cases have 8 cells each, controls 40."""
    frame = make.frame(12, 40, shift=0.0)
    keep = (frame["condition"] == "control") | (frame.groupby("sample").cumcount() < 8)
    return make.h5ad(frame[keep].reset_index(drop=True), tmp_path_factory.mktemp("noisy") / "cells.h5ad")


def test_noise_in_plain_words(noisy, doctor):
    result = doctor(noisy, "-s", "sample", "--neighbors", 10, "--bias", "raw")
    text = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.output
    cohort = read_cohort(noisy, sample_key="sample")
    graph = hm.Graph.from_points(cohort.points(), n_neighbors=10, random_state=0)
    measures = hm.measures_from_labels(cohort.codes)
    found = hm.uncertainty(hm.DiffusionEMD(graph, random_state=0).fit(measures), measures, n_bootstrap=0)
    floors = f"8 cells {found.noise_floor(8):.2g} apart (40 cells: {found.noise_floor(40):.2g}"
    assert f"Sampling noise alone would put two identical samples of {floors}" in text
    assert f"Split-half retrieval: {100 * found.retrieval:.0f}%" in text
    assert "6 samples have fewer than 30 cells and will look artificially distant" in text
    assert "--bias corrected removes this bias, --equal-cells draws the same number of cells" in text
    assert "--min-cells 30 leaves small samples out" in text
    assert "The number of cells is associated with 'condition' (p = " in text
    corrected = flowing(doctor(noisy, "-s", "sample", "--neighbors", 10).stdout)
    assert "Individual nearest neighbors are unreliable here" in corrected
    assert "artificially distant" not in corrected


@pytest.mark.parametrize("words", [("--equal-cells",), ("--bias", "corrected"), ("--min-cells", 20)])
def test_advice_on_noise_is_not_what_is_asked_for_already(noisy, doctor, words):
    result = doctor(noisy, "-s", "sample", "--neighbors", 10, *words)
    text = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.output
    assert f"{words[0]} draws" not in text
    assert f"{' '.join(map(str, words))} removes" not in text
    if words[0] == "--equal-cells":
        assert "identical samples of 8 cells " in text
        assert "is associated with" not in text
        assert "artificially distant" not in text
    if words[0] == "--min-cells":
        assert "identical samples of 40 cells " in text


def test_equal_cells_have_the_noise_that_compare_finds(noisy, doctor):
    """The graph is that of the cells drawn, and so are its floors."""
    text = " ".join(doctor(noisy, "-s", "sample", "--neighbors", 10, "--equal-cells").stdout.split())
    cohort = read_cohort(noisy, sample_key="sample")
    study = hm.study_cohort(cohort, n_neighbors=10, equal_cells=True)
    assert cohort.n_cells > study.comparison.sizes.sum()
    floor = study.comparison.uncertainty.noise_floor(8)
    assert f"identical samples of 8 cells {floor:.2g} apart." in text


def test_of_many_cells_some_tell_the_noise(noisy, doctor, monkeypatch):
    monkeypatch.setattr(_doctor, "MOST_CELLS", 100)
    monkeypatch.setattr(_doctor, "MOST_SAMPLES", 5)
    text = " ".join(doctor(noisy, "-s", "sample", "--neighbors", 10).stdout.split())
    # A share of halves of fewer cells, or among fewer samples, is not what compare would find.
    assert "Split-half retrieval:" not in text
    assert "Individual nearest neighbors are unreliable" not in text
    assert "These are estimates from 100 cells; heatmover compare also reports split-half retrieval" in text
    # The floors are those of all cells.
    assert "identical samples of 8 cells " in text
    assert "40 cells: " in text


def test_where_noise_cannot_be_told_nothing_is_said(make, tmp_path, doctor):
    frame = make.frame(60, 1)
    asked = (make.h5ad(frame, tmp_path / "cells.h5ad"), "-s", "sample", "--neighbors", 5, "--min-cells", 1)
    result = doctor(*asked, "--bias", "raw")
    assert "Sampling noise alone" not in result.stdout
    assert result.exit_code == 0, result.output
    refused = doctor(*asked)
    assert refused.exit_code == 2
    assert "found 60 samples with 1 cell each; --bias raw compares samples without correction" in " ".join(
        refused.stderr.split()
    )


def test_units_need_pairs(make, tmp_path, doctor, cells, monkeypatch):
    few = make.h5ad(make.frame(5, 30), tmp_path / "cells.h5ad")
    result = doctor(few, "-s", "sample", "--neighbors", 8, "--units", "euclidean")
    assert result.exit_code == 2
    words = "Expected at least 7 samples for --units, which needs the exact distances of at least 16 pairs, found 5"
    assert words in " ".join(result.stderr.split())
    assert "plus the exact distances of --units" in " ".join(
        doctor(cells, "-s", "sample", "--neighbors", 8, "--units", "geodesic").stdout.split()
    )
    monkeypatch.setitem(sys.modules, "ot", None)
    result = doctor(cells, "-s", "sample", "--neighbors", 8, "--units", "geodesic")
    assert result.exit_code == 2
    assert "run 'pip install POT' (part of the extra heatmover[exact])" in result.stderr


def test_the_doctor_sees_the_design(make, tmp_path, doctor):
    frame = make.frame()
    place = frame["sample"].str[1:].astype(int)
    frame["patient"] = 100 + place // 2
    frame["treatment"] = frame["condition"].map({"case": "drug", "control": "none"})
    frame["sex"] = (place // 2 % 2).map({0: "f", 1: "m"})
    frame["batch"] = frame["sex"].map({"f": "b1", "m": "b2"})
    frame["stage"] = place // 2 % 3 + 1
    frame["CD19"] *= 1000
    path = tmp_path / "cells.csv"
    frame.to_csv(path, index=False)
    text = flowing(doctor(path, "-s", "sample").stdout)
    assert "'sex' and 'batch' divide the samples in the same way: a difference may be due to either, and no" in text
    assert "'condition' and 'treatment' divide the samples in the same way, so their tests are one test, not 2." in text
    assert "'sex', 'batch' and 'stage' are the same in all samples of each 'patient', so only 5 of 10" in text
    assert "Each 'patient' has one sample of every group of 'condition' and 'treatment': the samples are paired" in text
    assert "--numeric stage reads it as a number." in text
    assert re.search(
        r"different units. Compared with the median of the other features, the standard deviation is \d+ times as "
        "large for 'CD19'",
        text,
    )
    given = flowing(doctor(path, "-s", "sample", "--block", "patient", "--numeric", "stage", "--standardize").stdout)
    assert "--block patient" not in given
    assert "--numeric stage" not in given
    assert "different units: " not in given


def test_a_column_that_is_too_coarse(make, tmp_path, doctor):
    make.frame().to_csv(tmp_path / "cells.csv", index=False)
    text = flowing(doctor(tmp_path / "cells.csv", "-s", "patient").stdout)
    assert (
        "'sample', 'condition' differ between cells of the same 'patient', although sample metadata should be constant"
        in text
    )
    assert "Perhaps use --sample-key sample." in text
