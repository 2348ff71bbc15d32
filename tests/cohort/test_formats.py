"""Every format of the same cells gives the same cohort."""

from __future__ import annotations

import hashlib
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError

MARKERS = ["CD4", "CD8", "CD19"]


def test_points_labels_and_variables_are_those_of_the_table(cohort, frame):
    assert cohort.features == tuple(MARKERS)
    np.testing.assert_array_equal(cohort.points(), frame[MARKERS].to_numpy())
    assert cohort.labels().tolist() == frame["sample"].tolist()
    assert cohort.names == ("p1", "p2", "p3", "p4")
    assert cohort.sizes.tolist() == frame["sample"].value_counts().sort_index().tolist()
    assert (cohort.n_cells, cohort.n_dimensions) == (60, 3)
    expected = frame.drop_duplicates("sample").set_index("sample")[["condition", "age", "dose", "smoker"]]
    pd.testing.assert_frame_equal(
        cohort.samples[list(expected)], expected, check_dtype=False, check_index_type=False, check_column_type=False
    )
    assert [cohort.samples[name].dtype.kind for name in expected] == ["O", "i", "f", "b"]
    assert set(cohort.samples) == set(expected)
    assert cohort.warnings == ()


def test_what_varies_within_samples_is_counted(written, cohort, frame):
    _, arguments = written
    counts = frame.groupby("sample")["cluster"].nunique()
    assert cohort.varying == ({} if "sample_sheet" in arguments else {"cluster": int((counts > 1).sum())})


@pytest.mark.parametrize("size", [1, 7, 16, 60, 1000])
def test_chunks_are_the_whole_in_pieces(cohort, size):
    pieces = list(cohort.chunks(size))
    assert all(0 < len(points) <= size and len(points) == len(codes) for points, codes in pieces)
    np.testing.assert_array_equal(np.vstack([points for points, _ in pieces]), cohort.points())
    np.testing.assert_array_equal(np.concatenate([codes for _, codes in pieces]), cohort.codes)


@pytest.mark.parametrize(("start", "stop"), [(0, 60), (0, 5), (13, 41), (17, 34), (59, 60), (30, 30)])
def test_a_range_of_cells_can_be_read(cohort, start, stop):
    pieces = list(cohort.chunks(9, start=start, stop=stop))
    points = np.vstack([np.empty((0, 3)), *(points for points, _ in pieces)])
    np.testing.assert_array_equal(points, cohort.points()[start:stop])
    assert sum(len(codes) for _, codes in pieces) == stop - start


def test_the_named_features_come_in_the_order_of_the_names(written, frame):
    path, arguments = written
    cohort = read_cohort(path, representation=["CD19", "CD4"], **arguments)
    assert cohort.features == ("CD19", "CD4")
    np.testing.assert_array_equal(cohort.points(), frame[["CD19", "CD4"]].to_numpy())
    assert "age" in cohort.samples


def test_standardized_features_have_mean_zero_and_variance_one(written, frame):
    path, arguments = written
    points = read_cohort(path, standardize=True, **arguments).points()
    values = frame[MARKERS].to_numpy()
    np.testing.assert_allclose(points, (values - values.mean(axis=0)) / values.std(axis=0), rtol=1e-5, atol=1e-6)


def test_principal_components_are_those_of_the_singular_vectors(written, frame):
    path, arguments = written
    cohort = read_cohort(path, n_components=2, **arguments)
    centerd = frame[MARKERS].to_numpy() - frame[MARKERS].to_numpy().mean(axis=0)
    _, singular, vectors = np.linalg.svd(centerd, full_matrices=False)
    expected = centerd @ vectors[:2].T
    signs = np.sign((expected * cohort.points()).sum(axis=0))
    np.testing.assert_allclose(cohort.points(), expected * signs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(cohort.explained_variance, (singular**2 / (singular**2).sum())[:2], rtol=1e-6)
    assert cohort.features == ("PC1", "PC2")


def test_only_the_annotations_asked_for_are_kept(written):
    path, arguments = written
    if "sample_sheet" in arguments:
        pytest.skip("the annotations of FCS files are the sample sheet's")
    cohort = read_cohort(path, annotations=["age"], representation=MARKERS, **arguments)
    assert list(cohort.samples) == ["age"]
    assert cohort.varying == {}


def test_a_cohort_survives_a_pickle(cohort):
    copy = pickle.loads(pickle.dumps(cohort))
    np.testing.assert_array_equal(copy.points(), cohort.points())
    assert not copy.codes.flags.writeable


def test_the_checksum_tells_files_apart(written, tmp_path):
    path, arguments = written
    source = read_cohort(path, **arguments).source
    if not source.path:
        assert source.checksum == ""
        return
    assert source.checksum.startswith("sha256:")
    if path.is_file():
        assert source.checksum == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        return
    copy = replace(source, path=str(shutil.copytree(path, tmp_path / "copy")))
    assert copy.checksum == source.checksum
    inner = next(file for file in sorted((tmp_path / "copy").rglob("*")) if file.is_file())
    inner.write_bytes(inner.read_bytes() + b" ")
    assert replace(copy).checksum != source.checksum


def test_misspelt_keys_are_guessed(written):
    path, arguments = written
    with pytest.raises(InvalidInputError, match=r"'Sampel' \(did you mean 'sample'\?\)"):
        read_cohort(path, **(arguments | {"sample_key": "Sampel"}))
    with pytest.raises(InvalidInputError, match=r"'cd-4' \(did you mean 'CD4'\?\)"):
        read_cohort(path, representation=["cd-4"], **arguments)


def test_a_variable_is_given_or_the_reason_why_not(cohort):
    assert cohort.variable("condition").tolist() == ["healthy", "ill", "healthy", "ill"]
    with pytest.raises(InvalidInputError, match=r"did you mean 'condition'\?"):
        cohort.variable("Conditions")
    if cohort.varying:
        with pytest.raises(
            InvalidInputError, match=r"'cluster' to be constant within each sample.*varies within 4 of 4"
        ):
            cohort.variable("cluster")


@pytest.mark.parametrize("bad", [{"size": 0}, {"start": -1}, {"stop": 61}, {"start": 9, "stop": 8}, {"size": 2.5}])
def test_chunks_refuses_nonsense_at_once(cohort, bad):
    with pytest.raises(InvalidInputError):
        cohort.chunks(**bad)
