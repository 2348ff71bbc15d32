"""Values are looked at by the first pass over the cells: the same refusals, and nothing left behind."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import heatmover as hm
from heatmover import scale
from heatmover.cohort import Cohort, read_cohort
from heatmover.errors import InvalidInputError
from heatmover.study.scale import landmarks

BAD = [3, 700, 701, 1999]


class Watch:
    """Notes the names of the stages."""

    def __init__(self):
        self.stages = []

    def stage(self, name, total):
        self.stages.append(name)

    def advance(self, steps=1):
        pass


@pytest.fixture(autouse=True)
def pieces(small_pieces):
    small_pieces(250)


@pytest.fixture
def bad_file(data, write, tmp_path):
    points = data.points.copy()
    points[BAD, [0, 1, 2, 3]] = [np.nan, np.inf, -np.inf, np.nan]
    return write(tmp_path / "bad.parquet", SimpleNamespace(points=points, labels=data.labels), [60])


def refusal(call):
    with pytest.raises(InvalidInputError) as error:
        call()
    return str(error.value)


def test_nothing_is_read_for_a_look_alone(file, cohort):
    watch = Watch()
    unchecked = scale.read_cohort(file, sample_key="sample", progress=watch)
    assert unchecked.unchecked
    assert not cohort.unchecked
    found = scale.compare_cohort(unchecked, landmarks=60, progress=watch)
    assert "check values" not in watch.stages
    assert watch.stages.count("draw cells") == 1
    np.testing.assert_array_equal(found.distances, scale.compare_cohort(cohort, landmarks=60).distances)


@pytest.mark.parametrize(
    "options",
    [{"standardize": True}, {"n_components": 3}, {"on_missing": "drop"}, {"standardize": True, "n_components": 2}],
)
def test_what_needs_all_values_has_a_pass_of_its_own(file, options):
    watch = Watch()
    found = scale.read_cohort(file, sample_key="sample", progress=watch, **options)
    assert watch.stages[0] == "check values"
    assert not found.unchecked
    expected = read_cohort(file, sample_key="sample", **options)
    np.testing.assert_array_equal(found.points(), expected.points())
    assert found.warnings == expected.warnings


def test_a_table_of_text_is_looked_at_at_once(tmp_path):
    path = tmp_path / "cells.csv"
    path.write_text("sample,x\na,1.5\na,\nb,2.5\nb,3.5\n")
    expected = refusal(lambda: read_cohort(path, sample_key="sample"))
    assert refusal(lambda: scale.read_cohort(path, sample_key="sample")) == expected


@pytest.mark.parametrize(
    "use",
    [
        lambda cohort, _: scale.compare_cohort(cohort, landmarks=60),
        lambda cohort, _: scale.histograms(cohort, landmarks=60),
        lambda cohort, place: scale.compare_cohort(cohort, landmarks=60, checkpoint=place),
        lambda cohort, place: scale.compare_cohort(cohort, landmarks=60, checkpoint=place, resume=True),
        lambda cohort, _: scale.compare_cohort(cohort, landmarks=60, equal_cells=True),
        lambda cohort, _: scale.study_cohort(cohort, landmarks=60, clusters=3),
        lambda cohort, _: hm.study_cohort(cohort),
        lambda cohort, _: cohort.points(),
        lambda cohort, _: list(cohort.chunks(10, start=690, stop=720)),
        lambda cohort, _: cohort.checked(),
    ],
)
def test_whatever_reads_the_values_refuses_them_as_reading_does(bad_file, tmp_path, use):
    expected = refusal(lambda: read_cohort(bad_file, sample_key="sample"))
    assert expected.startswith(
        "Expected features without NaN or infinity, found 4 such values in 4 cells (first: row 3"
    )
    cohort = scale.read_cohort(bad_file, sample_key="sample")
    assert refusal(lambda: use(cohort, tmp_path / "run.zarr")) == expected
    assert not (tmp_path / "run.zarr").exists()


def test_a_mended_file_begins_the_checkpoint_that_the_bad_one_could_not(bad_file, file, cohort, tmp_path):
    options = {"landmarks": 60, "checkpoint": tmp_path / "run.zarr", "resume": True}
    refusal(lambda: scale.compare_cohort(scale.read_cohort(bad_file, sample_key="sample"), **options))
    bad_file.write_bytes(file.read_bytes())
    mended = scale.read_cohort(bad_file, sample_key="sample")
    first = scale.compare_cohort(mended, **options)
    again = scale.compare_cohort(mended, **options)
    np.testing.assert_array_equal(first.distances, scale.compare_cohort(cohort, landmarks=60).distances)
    np.testing.assert_array_equal(again.distances, first.distances)


def test_a_store_that_was_begun_for_a_file_with_bad_values_is_removed(bad_file, tmp_path):
    place = tmp_path / "run.zarr"
    place.mkdir()
    cohort = scale.read_cohort(bad_file, sample_key="sample")
    refusal(lambda: scale.compare_cohort(cohort, landmarks=60, checkpoint=place, resume=True))
    assert not place.exists()


def test_cells_drawn_while_values_are_looked_at_are_kept(file, tmp_path, monkeypatch):
    """A run that ends after the draw does not draw again."""
    cohort = scale.read_cohort(file, sample_key="sample")
    options = {"landmarks": 60, "checkpoint": tmp_path / "run.zarr", "resume": True}
    expected = scale.compare_cohort(cohort, landmarks=60).distances
    scale.compare_cohort(cohort, **options)
    monkeypatch.setattr(landmarks, "draw_from_piece", lambda *_, **__: 1 / 0)
    np.testing.assert_array_equal(scale.compare_cohort(cohort, **options).distances, expected)


def test_a_file_that_changes_after_the_first_pass_is_told_so(bad_file, monkeypatch):
    """Its values were finite when they were looked at."""
    cohort = scale.read_cohort(bad_file, sample_key="sample")
    assert "changed" in refusal(lambda: scale.compare_cohort(replace(cohort, unchecked=False), landmarks=60))
    monkeypatch.setattr(Cohort, "checked", lambda self, *_: self)  # as if it had been mended meanwhile
    assert "changed" in refusal(lambda: scale.compare_cohort(cohort, landmarks=60))
    assert "changed" in refusal(cohort.points)
