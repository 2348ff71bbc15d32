"""A folder of FCS files through the command line."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from flowio import create_fcs

CHANNELS = ["Time", "Er170Di", "Nd142Di"]
MARKERS = ["Time", "CD3", "CD19"]


def write(path, values, markers=MARKERS, channels=CHANNELS):
    with open(path, "wb") as stream:  # noqa: PTH123 - also names that are no text
        create_fcs(stream, values.ravel().tolist(), channels, markers)


@pytest.fixture
def folder(tmp_path):
    """Eight files; every second is treated and has larger values of CD3."""
    rng = np.random.default_rng(0)
    place = tmp_path / "fcs"
    place.mkdir()
    rows = ["file,donor,treatment"]
    for i in range(8):
        values = rng.lognormal(size=(40, 3)) * [100, 5 + 40 * (i % 2), 5]
        write(place / f"f{i}.fcs", values)
        rows.append(f"f{i}.fcs,d{i // 2},{'drug' if i % 2 else 'none'}")
    (tmp_path / "sheet.csv").write_text("\n".join(rows) + "\n")
    return place


def test_a_folder_with_its_sheet(folder, tmp_path, cli):
    sheet, out = tmp_path / "sheet.csv", tmp_path / "out"
    arguments = [folder, "--sample-sheet", sheet, "--cofactor", 5, "-c", "treatment", "--block", "donor"]
    looked = cli.run("doctor", *arguments)
    assert looked.exit_code == 0, looked.output
    assert "'CD3', 'CD19'" in looked.stdout
    result = cli.run("compare", *arguments, "-o", out)
    assert result.exit_code == 0, result.output
    record = json.loads((out / "run.json").read_text())
    assert record["input"]["dimensions"] == ["CD3", "CD19"]
    assert record["findings"][0]["groups"] == {"drug": 4, "none": 4}
    assert record["findings"][0]["blocks"] == "within"
    assert "--cofactor 5" in record["command"]["line"]


def test_channels_and_names_of_the_sheet(folder, tmp_path, cli):
    sheet = tmp_path / "sheet.csv"
    cli.fails_with(
        cli.run("compare", folder, "--sample-sheet", sheet, "-s", "doner", "-o", tmp_path / "out"),
        r"--sample-key .*'doner' \(did you mean 'donor'\?\)",
    )
    cli.fails_with(
        cli.run("compare", folder, "--rep", "CD4", "-o", tmp_path / "out"), r"every name in --rep .*did you mean 'CD3'"
    )
    assert cli.run("compare", folder, "-r", "CD3", "-o", tmp_path / "out", "-q").exit_code == 0


def test_bad_folders(folder, tmp_path, cli):
    rng = np.random.default_rng(1)
    write(folder / "g.fcs", rng.random((5, 3)), markers=["Time", "CD3", "CD3"])
    cli.fails_with(cli.run("compare", folder, "-o", tmp_path / "out"), "distinct channels in 'g.fcs', found 'CD3'")
    write(folder / "g.fcs", rng.random((0, 3)))
    cli.fails_with(
        cli.run("compare", folder, "-o", tmp_path / "out"), "at least one cell .*0 cells in 'g.fcs'|FCS file"
    )
    write(folder / "g.fcs", rng.random((5, 3)))
    cli.fails_with(
        cli.run("compare", folder, "--sample-sheet", tmp_path / "sheet.csv", "-o", tmp_path / "out"),
        "every FCS file to be in the sample sheet, found no 'g.fcs' in it; .*leave them out with --skip-unlisted",
    )
    (folder / "g.fcs").write_bytes((folder / "f0.fcs").read_bytes()[:400])
    cli.fails_with(cli.run("doctor", folder), "FCS file")
    assert not (tmp_path / "out").exists()


def test_a_file_that_the_sheet_does_not_list_is_left_out(folder, tmp_path, cli):
    write(folder / "g.fcs", np.random.default_rng(1).random((5, 3)))
    arguments = [folder, "--sample-sheet", tmp_path / "sheet.csv", "--skip-unlisted"]
    assert cli.run("doctor", *arguments).exit_code == 0
    result = cli.run("compare", *arguments, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "does not list them: 'g.fcs'" in " ".join(result.output.split())
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["input"]["samples"] == 8
    assert "--skip-unlisted" in record["command"]["line"]
    built = cli.run("atlas", "build", *arguments, "-o", tmp_path / "kept.atlas")
    assert built.exit_code == 0, built.output
    (tmp_path / "new.csv").write_text("file,sample\nf0.fcs,first\nf1.fcs,second\n")
    mapped = cli.run("atlas", "map", tmp_path / "kept.atlas", folder, "--sample-sheet", tmp_path / "new.csv")
    cli.fails_with(mapped, "and 2 more in it; .*leave them out with --skip-unlisted")
    arguments = [folder, "--sample-sheet", tmp_path / "new.csv", "--skip-unlisted"]
    mapped = cli.run("atlas", "map", tmp_path / "kept.atlas", *arguments)
    assert mapped.exit_code in (0, 1), mapped.output
    assert "second" in mapped.output


@pytest.mark.skipif(os.name != "posix", reason="names of bytes are Unix's")
def test_a_file_name_that_is_no_text(folder, tmp_path, cli):
    write(os.fsencode(folder) + b"/caf\xe9.fcs", np.random.default_rng(2).random((30, 3)))
    result = cli.run("compare", folder, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "caf" in (tmp_path / "out" / "distances.csv").read_text(encoding="utf-8")


def test_spillover_and_scales(tmp_path, cli):
    rng, place = np.random.default_rng(0), tmp_path / "flow"
    place.mkdir()
    names = ["FSC-A", "B515-A", "V450-A"]
    for i in range(6):
        values = rng.lognormal(5, 1, size=(40, 3)) * [100, 1, 1]
        with (place / f"f{i}.fcs").open("wb") as stream:
            text = {"spillover": "2,B515-A,V450-A,1,0.2,0.1,1"}
            create_fcs(stream, values.ravel().tolist(), names, metadata_dict=text)
    base = ("compare", place, "--standardize", "-q")
    assert cli.run(*base, "--transform", "logicle", "-o", tmp_path / "on").exit_code == 0
    assert cli.run(*base, "--no-compensate", "-o", tmp_path / "off").exit_code == 0
    on, off = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("on", "off"))
    assert "--transform logicle" in on["command"]["line"]
    assert "--no-compensate" in off["command"]["line"]
    notes = " ".join(on["notes"])
    assert (
        "Spillover between 2 detectors was compensated by the matrix in each FCS file; --no-compensate reads" in notes
    )
    assert "'FSC-A' stayed linear while other channels were transformed" in notes
    assert any("the spillover matrix in the FCS files was not applied" in note for note in off["notes"])
    looked = cli.run("doctor", place, "--transform", "arcsinh")
    cli.fails_with(
        looked, r"Expected --cofactor with --transform arcsinh, found none; 5 is usual for mass cytometry, and 150"
    )
    result = cli.run("compare", place, "--rep", "FSC-A", "--transform", "logicle", "-o", tmp_path / "bad", "-q")
    cli.fails_with(result, "a channel to transform, for --transform logicle, found only 'FSC-A', which stays linear")


def test_the_doctor_advises_a_transform_of_linear_channels(folder, cli):
    text = " ".join(cli.run("doctor", folder).stdout.split())
    assert "The channels are linear, so a few bright cells dominate the distances. Use --transform logicle" in text
    for words in (("--cofactor", "5"), ("--transform", "logicle")):
        assert "The channels are linear" not in " ".join(cli.run("doctor", folder, *words).stdout.split())
