"""The commands of an atlas: built, mapped onto, added to, looked at, checked; each failure is one sentence."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover._base.storage import writing

FEATURES = ["CD3", "CD4", "CD8"]


def table(n_samples: int, seed: int, first: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frames = []
    for number in range(first, first + n_samples):
        group = number % 2
        centers = np.where(rng.random((30, 1)) < (0.8 if group else 0.2), 0.0, 5.0)
        frame = pd.DataFrame(centers + rng.normal(size=(30, 3)), columns=FEATURES)
        frames.append(frame.assign(sample=f"s{number}", group="ab"[group]))
    return pd.concat(frames)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("atlas")
    table(10, 0).to_csv(folder / "reference.csv", index=False)
    new = table(2, 1, first=20)
    new[new.columns[::-1]].to_csv(folder / "new.csv", index=False)
    new.assign(CD4=new["CD4"] + 100).to_csv(folder / "odd.csv", index=False)
    new.rename(columns={"CD4": "CD44"}).to_csv(folder / "renamed.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def built(files, cli):
    out = files / "reference.atlas"
    result = cli.run("atlas", "build", files / "reference.csv", "-s", "sample", "--standardize", "-o", out)
    assert result.exit_code == 0, result.output
    assert "Atlas(10 samples of 300 cells" in result.stdout
    assert "Expected a connected graph, found 2 components" in result.stdout
    return out


def test_a_file_is_mapped_and_written_as_csv(files, built, cli):
    out = files / "found.csv"
    result = cli.run("atlas", "map", built, files / "new.csv", "--predict", "group", "-k", 3, "-o", out)
    assert result.exit_code == 0, result.output
    mapped = hm.load(built).map(files / "new.csv")
    assert "'s20', 30 cells: nearest" in result.stdout
    assert "s20: group a (accuracy" in result.stdout
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["sample"] for row in rows] == ["s20", "s21"]
    assert [row["group"] for row in rows] == list(mapped.predict("group", 3).values) == ["a", "b"]
    assert [row["covered"] for row in rows] == ["true", "true"]
    distances, indices = mapped.nearest(3)
    assert [float(row["distance 3"]) for row in rows] == distances[:, 2].tolist()
    assert [row["nearest 1"] for row in rows] == [mapped.reference.names[i] for i in indices[:, 0]]


def test_a_sample_that_is_not_covered_has_exit_code_1(files, built, cli):
    result = cli.run("atlas", "map", built, files / "odd.csv")
    assert result.exit_code == 1
    assert result.stdout.count("NOT COVERED: ") == 2
    assert "check the units" in result.stdout


def test_samples_are_added_once(files, built, cli):
    result = cli.run("atlas", "build", files / "reference.csv", "-s", "sample", "-q", "-o", files / "grown.atlas")
    assert (result.exit_code, result.stdout) == (0, "")
    result = cli.run("atlas", "add", files / "grown.atlas", files / "new.csv")
    assert result.exit_code == 0, result.output
    assert "coverage is assessed with the 10 original samples" in result.stdout
    assert "2 samples were added" in cli.run("atlas", "info", files / "grown.atlas").stdout
    checked = cli.run("atlas", "check", files / "grown.atlas")
    assert "all checksums match" in checked.stdout
    grown = hm.load(files / "grown.atlas")
    assert grown.names[-2:] == ("s20", "s21")
    assert grown.variables["group"][-2:] == ("a", "b")
    with writing(files / "grown.atlas"):
        table(1, 2, first=30).to_csv(files / "third.csv", index=False)
        cli.fails_with(cli.run("atlas", "add", files / "grown.atlas", files / "third.csv"), "one writer at a time")
    again = cli.run("atlas", "add", files / "grown.atlas", files / "new.csv")
    cli.fails_with(again, "new sample names, found 's20', 's21', already in the atlas")
    assert hm.load(files / "grown.atlas").names == grown.names
    assert not [path for path in files.iterdir() if path.name.startswith(".")]


def test_info_and_check_tell_what_is_there(files, built, cli):
    told = cli.run("atlas", "info", built).stdout
    assert "features: CD3, CD4, CD8" in told
    assert "s0: 30 cells; group a" in told
    assert "version 3, written by heatmover" in told
    checked = cli.run("atlas", "check", built)
    assert checked.exit_code == 0
    assert "all checksums match" in checked.stdout


def test_what_is_wrong_is_one_sentence(files, built, cli):
    for arguments, sentence in (
        (["map", built, files / "renamed.csv"], r"'CD4' \(did you mean 'CD44'\?\)"),
        (["map", built, files / "new.csv", "-s", "grop"], "did you mean 'group'"),
        (["map", built, files / "new.csv", "--predict", "grp"], "did you mean 'group'"),
        (["map", built, files / "new.csv", "-k", 11], "k to be at most 10"),
        (["map", files, files / "new.csv"], "no manifest.json in it"),
        (["info", files / "nowhere"], "nothing there"),
        (["build", files / "new.csv", "-s", "sample", "-o", built], "--force replaces an atlas"),
    ):
        cli.fails_with(cli.run("atlas", *arguments), sentence)
    model = files / "line.model"
    hm.DiffusionEMD(hm.Graph.from_grid((9,))).fit().save(model)
    cli.fails_with(cli.run("atlas", "info", model), "Expected an atlas, found a saved DiffusionEMD")


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("part000001/nodes/centers/c/0/0", "'part000001/nodes/centers/c/0/0' cannot be used"),
        ("part000002/count_cells/c/0", r"'part000002/count_cells/c/0' cannot be used"),
    ],
)
def test_damage_is_found(built, cli, place, sentence):
    chunk = built / place
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        for command in ("check", "info"):
            cli.fails_with(cli.run("atlas", command, built), sentence)
    finally:
        chunk.write_bytes(content)


def test_a_folder_holds_the_page_and_the_table(files, built, cli):
    out = files / "found"
    result = cli.run("atlas", "map", built, files / "new.csv", "-k", 3, "-o", out, "--title", "Today <1>")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == ["mapped.csv", "report.html"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h1>Today &lt;1&gt;</h1>" in page
    assert "s20" in page
    cli.fails_with(cli.run("atlas", "map", built, files / "odd.csv", "-k", 3, "-o", out), "--force to replace them")
    assert (out / "report.html").read_text(encoding="utf-8") == page
    again = cli.run("atlas", "map", built, files / "odd.csv", "-k", 3, "-o", out, "--force")
    assert again.exit_code == 1
    assert "NOT COVERED" in (out / "report.html").read_text(encoding="utf-8")
