"""A folder of FCS files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError

MARKERS = ["CD4", "CD8", "CD19"]


@pytest.fixture
def folder(frame, make, tmp_path):
    return make.folder(frame, tmp_path / "fcs")


def test_without_a_sheet_files_name_the_samples(folder, frame):
    cohort = read_cohort(folder)
    assert cohort.names == ("p1", "p2", "p3", "p4")
    assert cohort.samples.shape == (4, 0)
    assert cohort.points().dtype == np.float32


def test_arcsinh(folder, frame):
    points = read_cohort(folder, cofactor=5).points()
    np.testing.assert_allclose(points, np.arcsinh(frame[MARKERS].to_numpy() / 5), rtol=1e-6)


def test_time_is_a_feature_only_if_asked_for(folder):
    assert read_cohort(folder).features == tuple(MARKERS)
    assert read_cohort(folder, representation=["Time", "CD8"]).features == ("Time", "CD8")


def test_markers_name_channels_and_files_may_order_them_as_they_like(make, tmp_path):
    make.fcs(tmp_path / "a.fcs", [[1, 2], [3, 4]], ["V450-A", "B515-A"], ["CD4", ""])
    make.fcs(tmp_path / "b.FCS", [[5, 6]], ["B515-A", "V450-A"], ["", "CD4"])
    make.fcs(tmp_path / "._b.fcs", [[5, 6]], ["x", "y"])
    cohort = read_cohort(tmp_path)
    assert cohort.features == ("CD4", "B515-A")
    np.testing.assert_array_equal(cohort.points(), [[1, 2], [3, 4], [6, 5]])


def test_the_sheet_may_name_the_samples_and_leave_out_the_ending(folder, tmp_path):
    text = "patient,path,age\nzoe,p1,9\nyan,p2,8\nxia,p3,7\nwim,p4,6\n"
    (tmp_path / "sheet.csv").write_text(text)
    cohort = read_cohort(folder, sample_sheet=tmp_path / "sheet.csv", sample_key="patient")
    assert cohort.names == ("wim", "xia", "yan", "zoe")
    assert cohort.variable("age").tolist() == [6, 7, 8, 9]
    assert cohort.labels()[0] == "zoe"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,age\np1.fcs,1\np2.fcs,1\np3.fcs,1\n", "'p4.fcs' not in it"),
        ("file,age\np1.fcs,1\np2.fcs,1\np3.fcs,1\np4.fcs,1\np5.fcs,1\n", "'p5.fcs' not there"),
        ("file,age\np1.fcs,1\np2.fcs,1\np3.fcs,1\np4.fcs,1\np4,1\n", "'p4.fcs' more than once"),
        ("name,age\nA,1\nB,1\n", "a column of file names"),
        ("name,file\nA,p1\nA,p2\nB,p3\nC,p4\n", "'A' more than once"),
        ("name,file\nA,p1\n,p2\nB,p3\nC,p4\n", "a name in every row of 'name', found 1 missing"),
    ],
)
def test_a_sheet_that_does_not_fit(text, message, folder, tmp_path):
    (tmp_path / "sheet.csv").write_text(text)
    key = "name" if text.startswith("name,file") else None
    with pytest.raises(InvalidInputError, match=message):
        read_cohort(folder, sample_sheet=tmp_path / "sheet.csv", sample_key=key)


def test_channels_of_the_same_name(make, tmp_path):
    make.fcs(tmp_path / "a.fcs", [[1, 2]], ["V450", "B515"], ["CD4", "CD4"])
    with pytest.raises(InvalidInputError, match=r"distinct channels in 'a.fcs', found 'CD4' more than once"):
        read_cohort(tmp_path)


def test_a_channel_that_one_file_lacks(folder, make):
    make.fcs(folder / "q.fcs", [[1, 2]], ["CD4", "CD8"])
    with pytest.raises(InvalidInputError, match=r"no 'CD19' in 'q.fcs'"):
        read_cohort(folder)
    assert read_cohort(folder, representation=["CD8", "CD4"]).names[-1] == "q"


def test_only_time(make, tmp_path):
    make.fcs(tmp_path / "a.fcs", [[1], [2]], ["Time"])
    with pytest.raises(InvalidInputError, match="at least one channel besides Time"):
        read_cohort(tmp_path)


def test_a_file_without_cells_is_named(folder, make):
    content = (folder / "p2.fcs").read_bytes()
    count = content.split(b"$TOT/")[1].split(b"/")[0]
    (folder / "p2.fcs").write_bytes(content.replace(b"$TOT/" + count, b"$TOT/" + b"0" * len(count)))
    with pytest.raises(InvalidInputError, match=r"0 cells in 'p2.fcs'"):
        read_cohort(folder)


@pytest.mark.parametrize("share", [0, 0.02, 0.1, 0.5, 0.9])
def test_a_truncated_file_is_named(share, folder):
    content = (folder / "p3.fcs").read_bytes()
    (folder / "p3.fcs").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InvalidInputError, match=r"p3\.fcs"):
        read_cohort(folder)


def test_a_file_that_is_something_else_is_named(folder):
    (folder / "p3.fcs").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInputError, match=r"p3\.fcs' cannot be read \(it does not begin with 'FCS'\)"):
        read_cohort(folder)


def test_a_single_file_is_no_cohort(folder):
    with pytest.raises(InvalidInputError, match=r"a folder of .fcs files, found a single one"):
        read_cohort(folder / "p1.fcs")


def test_spillover_that_was_not_applied_is_told(folder, make):
    assert read_cohort(folder).warnings == ()
    make.fcs(folder / "q.fcs", np.ones((3, 3)), MARKERS, metadata={"spillover": "2,CD4,CD8,1,0.1,0,1"})
    (note,) = read_cohort(folder).warnings
    assert "spillover matrix, which was not applied" in note


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"$P2", b"$P9", "it describes the channels '1', '3', '4', '9' of 4"),
        (b"$BYTEORD/1,2,3,4", b"$BYTEORD/3,4,1,2", "$BYTEORD is '3,4,1,2'"),
        (b"$MODE/L", b"$MODE/C", "$MODE is 'c'"),
        (b"$DATATYPE/F", b"$DATATYPE/A", "$DATATYPE is 'a'"),
        (b"$DATATYPE/F", b"$DATATYPE/?", "$DATATYPE is '?'"),
        (b"$PAR/4", b"$PAR/9", "p2.fcs"),
        (b"$PAR/4", b"$PAR/x", "p2.fcs"),
    ],
)
def test_a_file_that_says_what_cannot_be(old, new, message, folder):
    """Channels would get the names of others, numbers other bytes."""
    content = (folder / "p2.fcs").read_bytes()
    assert old in content
    (folder / "p2.fcs").write_bytes(content.replace(old, new))
    with pytest.raises(InvalidInputError) as caught:
        read_cohort(folder)
    assert message in str(caught.value)
    assert "p2.fcs" in str(caught.value)


def test_a_number_of_cells_that_was_damaged_asks_for_no_memory(folder):
    content = (folder / "p2.fcs").read_bytes()
    start = content.index(b"$TOT/")
    stop = content.index(b"/", start + 5)
    count = b"9" * 12
    # The text is longer then; what it says of the data is read before that is.
    header = content[:18] + b"%8d" % (int(content[18:26]) + 12 - (stop - start - 5)) + content[26:start]
    (folder / "p2.fcs").write_bytes(header + b"$TOT/" + count + content[stop:])
    with pytest.raises(InvalidInputError, match="999999999999 cells in a file of"):
        read_cohort(folder)


@pytest.mark.parametrize("delimiter", [b"(", b"[", b"+", b"?"])
def test_what_is_no_pattern_is_no_foreign_error(delimiter, folder):
    content = (folder / "p2.fcs").read_bytes()
    start, stop = int(content[10:18]), int(content[18:26])
    text = content[start : stop + 1].replace(b"/", delimiter)
    (folder / "p2.fcs").write_bytes(content[:start] + text + content[stop + 1 :])
    with pytest.raises(InvalidInputError, match=r"p2\.fcs"):
        read_cohort(folder)


def test_the_page_of_the_documentation_runs_as_it_is_printed(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[3] / "docs" / "howto" / "fcs.md"
    if not page.exists():
        pytest.skip("the documentation is not here")
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, page.name, "exec"), {})
    printed = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    assert capsys.readouterr().out == printed[-1]
    sheet = (tmp_path / "samples.csv").read_text(encoding="utf-8")
    assert sheet.startswith(printed[0].removesuffix("...\n"))
