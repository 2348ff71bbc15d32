"""FCS files: channels, sheets, compensation, and the logicle scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from heatmover.cohort import read_cohort
from heatmover.cohort.formats.fcs import LINEAR, Logicle
from heatmover.errors import InvalidInputError
from heatmover.study.record import input_record
from heatmover.study.scale.out_of_core import describe_input

SCALES = {
    "usual": (262144, 0.5, 4.5, 0),
    "ten bits": (1023, 0.5, 4.5, 0),
    "wide": (262144, 1.2, 4.5, 0),
    "widest": (262144, 2.25, 4.5, 0),
    "no linear part": (10000, 0, 4, 0),
    "room below": (10000, 0.5, 4.5, 1.0),
    "cut below": (10000, 1.0, 4.5, -0.5),
}


def biexponential(top, width, decades, negative):
    """The scale from its published conditions, each solved or checked by itself."""
    b = (decades + negative) * np.log(10)
    w, x2 = width / (decades + negative), negative / (decades + negative)
    x1 = x2 + w
    # The root below b; without a linear part it is b itself.
    d = b if w == 0 else brentq(lambda d: 2 * (np.log(d) - np.log(b)) + w * (d + b), 1e-12, b, xtol=1e-15, rtol=1e-15)
    ratio = (b / d) ** 2 * np.exp((b + d) * x1)  # c / a, for which the second derivative is zero at the value zero
    offset = np.exp(b * x1) - ratio * np.exp(-d * x1)  # f / a
    a = top / (np.exp(b) - ratio * np.exp(-d) - offset)
    return lambda x: a * (np.exp(b * x) - ratio * np.exp(-d * x) - offset)


@pytest.mark.parametrize("case", SCALES)
def test_the_scale_is_the_root_of_the_biexponential(case):
    parameters = SCALES[case]
    curve, top = biexponential(*parameters), parameters[0]
    values = np.r_[-top * np.logspace(-1, -7, 13), 0, top * np.logspace(-7, 0.7, 20)]
    roots = [brentq(lambda x, y=y: curve(x) - y, -3, 3, xtol=1e-15, rtol=1e-15) for y in values]
    np.testing.assert_allclose(Logicle(*parameters).apply(values), roots, atol=1e-11)


@pytest.mark.parametrize("case", SCALES)
def test_ends_zero_and_the_linear_part(case):
    top, width, decades, negative = SCALES[case]
    scale = Logicle(*SCALES[case])
    places = scale.apply(np.array([0.0, top]))
    np.testing.assert_allclose(places, [(width + negative) / (decades + negative), 1], atol=1e-12)
    around = places[0] + np.array([-1e-3, 0, 1e-3])
    below, zero, above = scale.inverse(around)
    assert abs(zero) < 1e-9 * top
    assert above + below == pytest.approx(0, abs=1e-4 * above)  # no curvature at zero


@given(st.lists(st.floats(-1e7, 1e7), min_size=1, max_size=20), st.floats(0, 2.25))
def test_back_and_forth_and_in_order(values, width):
    scale, values = Logicle(262144.0, width), np.sort(np.array(values))
    places = scale.apply(values)
    assert np.isfinite(places).all()
    assert (np.diff(places) >= -1e-13).all()
    np.testing.assert_allclose(scale.inverse(places), values, rtol=1e-9, atol=1e-6)


def test_what_is_no_number_stays_so():
    found = Logicle(1000.0).apply(np.array([np.nan, np.inf, -np.inf, 1000.0]))
    assert np.isnan(found[0])
    np.testing.assert_allclose(found[1:], [np.inf, -np.inf, 1])


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ((0.0,), "top"),
        ((1000.0, 3.0), "width from 0 to half of the decades, found 3 for 4.5 decades"),
        ((1000.0, -0.1), "width from 0"),
        ((1000.0, 0.5, 0.0), "decades"),
        ((1000.0, 0.5, 4.5, 4.0), "-width <= negative <= decades - 2 width, found 4"),
    ],
)
def test_scales_that_cannot_be(parameters, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        Logicle(*parameters)


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
        (
            "file,age\np1.fcs,1\np2.fcs,1\np3.fcs,1\n",
            "no 'p4.fcs' in it; add .* or leave them out with skip_unlisted=True",
        ),
        ("file,age\np1.fcs,1\np2.fcs,1\np3.fcs,1\np4.fcs,1\np5.fcs,1\n", "no 'p5.fcs' in the folder"),
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
    with pytest.raises(InvalidInputError, match=r"'CD19' in 'p1.fcs' but not in 'q.fcs'"):
        read_cohort(folder)
    assert read_cohort(folder, representation=["CD8", "CD4"]).names[-1] == "q"


def test_only_time(make, tmp_path):
    make.fcs(tmp_path / "a.fcs", [[1], [2]], ["Time"])
    with pytest.raises(InvalidInputError, match="at least one channel other than Time"):
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
    with pytest.raises(InvalidInputError, match=r"a folder of .fcs files, found a single file"):
        read_cohort(folder / "p1.fcs")


DETECTORS, DYES = ["FSC-A", "B515-A", "V450-A", "R660-A", "Time"], ["", "CD4", "CD8", "CD19", ""]
SPILL = np.array([[1, 0.2, 0.05], [0.1, 1, 0], [0, 0.15, 1]])


def spelt(matrix, names):
    return ",".join([str(len(matrix)), *names, *(str(value) for value in np.ravel(matrix))])


@pytest.fixture
def stained(make, tmp_path):
    """Two files of light that spilled over, and what it would be without."""
    rng, pure = np.random.default_rng(0), []
    place = tmp_path / "stained"
    place.mkdir()
    for name, order in (("a", [0, 1, 2]), ("b", [2, 0, 1])):
        light = np.round(rng.lognormal(6, 2, size=(30, 3)) - 50)
        pure.append(np.hstack([light, rng.uniform(2e4, 2e5, size=(30, 1))]))
        seen = np.hstack([pure[-1][:, 3:], light @ SPILL, np.arange(30)[:, None]])
        # The files name their detectors in different orders.
        text = spelt(SPILL[np.ix_(order, order)], [DETECTORS[i + 1] for i in order])
        make.fcs(place / f"{name}.fcs", seen, DETECTORS, DYES, metadata={"spill" if name == "a" else "spillover": text})
    return place, np.vstack(pure)


NAMES = ["CD4", "CD8", "CD19", "FSC-A"]


def test_spillover_is_undone(stained):
    place, pure = stained
    for asked in (None, True):
        cohort = read_cohort(place, representation=NAMES, compensate=asked)
        np.testing.assert_allclose(cohort.points(), pure, rtol=1e-4, atol=0.1)
        assert any(note.startswith("Spillover between 3 detectors was compensated") for note in cohort.warnings)
    raw = read_cohort(place, representation=NAMES, compensate=False)
    np.testing.assert_allclose(raw.points()[:, :3], pure[:, :3] @ SPILL, rtol=1e-5, atol=0.1)
    assert raw.warnings == ("As requested, the spillover matrix in the FCS files was not applied.",)
    # A choice of channels is made of the compensated ones.
    assert np.array_equal(read_cohort(place, representation=["CD8"]).points()[:, 0], cohort.points()[:, 1])


def test_scatter_and_time_stay_linear(stained):
    place, pure = stained
    names = [*NAMES, "Time"]
    found = read_cohort(place, representation=names, transform="arcsinh", cofactor=150)
    np.testing.assert_allclose(found.points()[:, :3], np.arcsinh(pure[:, :3] / 150), atol=1e-3)
    np.testing.assert_allclose(found.points()[:, 3], pure[:, 3], rtol=1e-6)
    assert found.points()[:30, 4].tolist() == list(range(30))
    assert any("'FSC-A', 'Time' stayed linear while other channels were transformed" in note for note in found.warnings)
    every = read_cohort(place, representation=NAMES, cofactor=150)
    np.testing.assert_allclose(every.points(), np.arcsinh(pure / 150), atol=1e-3)
    assert any("arcsinh was also applied to 'FSC-A'; transform='arcsinh' keeps" in note for note in every.warnings)


def test_logicle_has_one_scale_for_all_files(stained, make, tmp_path):
    place, pure = stained
    found = read_cohort(place, representation=NAMES, transform="logicle").points()
    top = 262144.0  # what the writer of these files says of every channel
    np.testing.assert_allclose(found[:, :3], Logicle(top).apply(pure[:, :3]), atol=2e-4)
    np.testing.assert_allclose(found[:, 3], pure[:, 3], rtol=1e-6)
    for name in ("a", "b"):
        path = tmp_path / f"{name}.fcs"
        make.fcs(path, [[100, 5], [200, 6]], ["B515-A", "V450-A"])
        if name == "b":
            path.write_bytes(path.read_bytes().replace(b"$P1R/262144/", b"$P1R/001024/"))
    both = read_cohort(tmp_path, transform="logicle").points()
    assert np.array_equal(both[:2], both[2:])


def test_no_spillover_is_told(make, tmp_path):
    make.fcs(tmp_path / "a.fcs", [[1, 2]], ["x", "y"], metadata={"spill": spelt(np.eye(2), "xy")})
    cohort = read_cohort(tmp_path)
    assert cohort.points().tolist() == [[1, 2]]
    assert "nothing was compensated" in cohort.warnings[-1]


def test_a_file_that_the_sheet_does_not_list_can_be_left_out(folder, make, tmp_path):
    make.fcs(folder / "control.fcs", [[1, 2]], ["other", "channels"])
    (tmp_path / "sheet.csv").write_text("file,age\np2.fcs,2\np1.fcs,1\np4.fcs,4\n")
    cohort = read_cohort(folder, sample_sheet=tmp_path / "sheet.csv", skip_unlisted=True)
    assert cohort.names == ("p1", "p2", "p4")
    assert cohort.variable("age").tolist() == [1, 2, 4]
    assert (
        "These names were left out, because the sample sheet does not list them: 'control.fcs', 'p3.fcs'."
        in cohort.warnings
    )
    assert cohort.points().shape[0] == cohort.n_cells


def test_a_channel_that_is_named_like_a_label_is_told(make, tmp_path):
    make.fcs(tmp_path / "a.fcs", [[1, 2, 3], [4, 5, 6]], ["CD4", "cluster_id", "Population"])
    told = "features, although their names look like cell labels: 'cluster_id', 'Population'. To choose"
    assert any(told in warning for warning in read_cohort(tmp_path).warnings)
    assert not any(told in warning for warning in read_cohort(tmp_path, representation=["CD4", "cluster_id"]).warnings)


def test_spillover_in_per_cent(make, tmp_path):
    matrix = np.array([[100, 50], [0, 100]])
    make.fcs(tmp_path / "a.fcs", [[7, 2, 5]], ["t", "x", "y"], metadata={"spill": spelt(matrix, "xy")})
    assert read_cohort(tmp_path).points().tolist() == [[7, 2, 4]]


def test_detectors_by_their_numbers(make, tmp_path):
    matrix = [[1, 0.5], [0, 1]]
    make.fcs(tmp_path / "a.fcs", [[7, 2, 5]], ["t", "x", "y"], metadata={"spill": spelt(matrix, "23")})
    assert read_cohort(tmp_path).points().tolist() == [[7, 2, 4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (spelt([[1, 1], [1, 1]], "xy"), "an invertible spillover matrix in 'a.fcs', found a "),
        (spelt([[100, 1], [1, 1]], "xy"), "1 \\(or 100, in percent\\) on the diagonal of .* in 'a.fcs', found 100"),
        (spelt([[1e300, 0], [0, 1e300]], "xy"), r"on the diagonal of the spillover matrix in 'a.fcs', found 1e\+300"),
        (spelt([[1, 1e300], [0, 1]], "xy"), "an invertible spillover matrix in 'a.fcs', found a "),
        (
            spelt([[1, 0.1], [0, 1]], "xz"),
            "spillover matrix in 'a.fcs' to be channels, found 'z', which is not a channel",
        ),
        (spelt([[1, 0.1], [0, 1]], "xx"), "to be channels, found 'x', 'x', some of them twice"),
        ("2,x,y,1,0,0", "a spillover matrix of 2 x 2 finite numbers in 'a.fcs', found 3"),
        ("2,x,y,1,0,0,nan", "2 x 2 finite numbers"),
        ("0", "0 x 0 finite numbers"),
        ("x,y,1", "a spillover matrix of numbers in 'a.fcs', found 'x,y,1'"),
        ("2,x,y,1,a,0,1", "a spillover matrix of numbers in 'a.fcs'"),
    ],
)
def test_a_matrix_that_cannot_be(text, message, make, tmp_path):
    make.fcs(tmp_path / "a.fcs", [[1, 2], [3, 4]], ["x", "y"], metadata={"spill": text})
    with pytest.raises(
        InvalidInputError, match=message + r".*; compensate=False reads the values without compensation\.$"
    ):
        read_cohort(tmp_path)
    assert read_cohort(tmp_path, compensate=False).n_cells == 2


def test_a_matrix_in_some_files_only(folder, make):
    make.fcs(folder / "q.fcs", np.ones((3, 3)), MARKERS, metadata={"spillover": "2,CD4,CD8,1,0.1,0,1"})
    with pytest.raises(InvalidInputError, match=r"every FCS file or in none, found none in 'p1.fcs', .*'q.fcs'; comp"):
        read_cohort(folder)
    assert len(read_cohort(folder, compensate=False).names) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transform": "log"}, "transform"),
        ({"transform": "arcsinh"}, r"cofactor with transform='arcsinh', found none; 5 is usual"),
        ({"transform": "logicle", "cofactor": 5}, r"no cofactor with transform='logicle', found 5"),
        ({"compensate": True}, r"a spillover matrix in the FCS files, for compensate=True, found none"),
        ({"compensate": "yes"}, "compensate to be True or False"),
        ({"transform": "logicle", "representation": ["Time"]}, "a channel to transform, .*, found only 'Time', which"),
    ],
)
def test_transforms_that_cannot_be(changes, message, folder):
    with pytest.raises(InvalidInputError, match=message):
        read_cohort(folder, **changes)


@pytest.mark.parametrize("name", ["FSC-A", "SSC-H", "FS INT", "SS", "FSC1", "Time", "Event_length", "Forward Scatter"])
def test_names_of_scatter(name):
    assert LINEAR.search(name)


@pytest.mark.parametrize("name", ["FITC-A", "CD4", "SSEA4", "FSHR", "PE-Cy7", "BV510", "Timp1", "Bcl6"])
def test_names_that_are_none(name):
    assert not LINEAR.search(name)


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
    with pytest.raises(InvalidInputError, match="999,999,999,999 cells in a file of"):
        read_cohort(folder)


@pytest.mark.parametrize("delimiter", [b"(", b"[", b"+", b"?"])
def test_what_is_no_pattern_is_no_foreign_error(delimiter, folder):
    content = (folder / "p2.fcs").read_bytes()
    start, stop = int(content[10:18]), int(content[18:26])
    text = content[start : stop + 1].replace(b"/", delimiter)
    (folder / "p2.fcs").write_bytes(content[:start] + text + content[stop + 1 :])
    with pytest.raises(InvalidInputError, match=r"p2\.fcs"):
        read_cohort(folder)


@pytest.mark.parametrize("changes", [{"cofactor": 5}, {"cofactor": 6}, {"transform": "logicle"}, {"compensate": False}])
def test_a_checkpoint_of_other_values_is_another_input(changes, make, tmp_path):
    text = {"spill": spelt([[1, 0.1], [0, 1]], "xy")}
    for name in "ab":
        make.fcs(tmp_path / f"{name}.fcs", [[1, 2], [3, 5]], ["x", "y"], metadata=text)
    plain, other = read_cohort(tmp_path), read_cohort(tmp_path, **changes)
    assert describe_input(plain) == describe_input(read_cohort(tmp_path, compensate=True))
    assert describe_input(plain) != describe_input(other)
    assert input_record(other)["measured"] == {"cofactor": None, "transform": None, "compensate": True} | changes
