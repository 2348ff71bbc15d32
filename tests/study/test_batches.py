"""Aligned batches: known shifts are found, kept differences stay, and what cannot be estimated is rejected."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError
from heatmover.statistics.tests import separate
from heatmover.study import InMemory
from heatmover.study.batches import align_batches
from heatmover.study.scale import InPieces
from heatmover.study.scale.out_of_core import describe_input

IN_PIECES = partial(hm.study_cohort, comparer=InPieces())

KINDS = np.array([[0.0, 0.0, 0.0], [1.6, 0.0, 0.0], [0.0, 1.8, 0.4]])
SHIFT = np.array([0.6, -0.8, 0.5])


def cells(n_samples=16, n_cells=40, shift=SHIFT, *, balanced=True, seed=0):
    """Samples of three kinds of cells in any shares; cases have their first kind elsewhere; a batch is moved."""
    rng = np.random.default_rng(seed)
    condition = np.arange(n_samples) % 2
    batch = (
        (np.arange(n_samples) // 2) % 2
        if balanced
        else np.where(np.arange(n_samples) % 8 < 2, 1 - condition, condition)
    )
    samples = np.repeat(np.arange(n_samples), n_cells)
    kind = np.concatenate([rng.choice(3, n_cells, p=rng.dirichlet([2, 2, 2])) for _ in range(n_samples)])
    points = KINDS[kind] + 0.3 * rng.normal(size=(len(samples), 3))
    points += np.array([0.0, 0.0, 0.9]) * ((condition[samples] == 1) & (kind == 0))[:, None]
    return points, points + np.asarray(shift) * batch[samples][:, None], samples, batch, condition


@pytest.mark.parametrize("balanced", [True, False])
def test_a_shift_is_found_whatever_the_shares_of_kinds(balanced):
    clean, moved, samples, batch, condition = cells(balanced=balanced)
    points, found = align_batches(moved, samples, batch, keep={"condition": condition.astype(str)})
    np.testing.assert_allclose(found.shifts[1] - found.shifts[0], SHIFT, atol=0.1)
    left = points - clean
    np.testing.assert_allclose(left - left.mean(axis=0), 0, atol=0.1)
    assert np.abs(np.bincount(batch) @ found.shifts).max() < 1e-9
    assert "Batch shifts of 2 batches ('batch') were subtracted from the cells" in found.describe("batch")


def test_a_difference_that_is_not_kept_may_be_taken_for_one_of_batches():
    _, moved, samples, batch, condition = cells(balanced=False)
    _, kept = align_batches(moved, samples, batch, keep={"condition": condition.astype(str)})
    _, lost = align_batches(moved, samples, batch)
    assert abs(lost.shifts[1, 2] - lost.shifts[0, 2] - 0.5) > 2 * abs(kept.shifts[1, 2] - kept.shifts[0, 2] - 0.5)


def test_anchors_alone_tell_the_shift_of_confounded_batches():
    _, moved, samples, _, condition = cells()
    moved = moved - SHIFT * ((np.arange(16) // 2) % 2)[samples][:, None]
    moved = moved + np.array([2.0, 0.0, 0.0]) * condition[samples][:, None]  # all cases in one batch
    anchors: list[str | None] = [None] * 16
    anchors[0] = anchors[1] = "pool"
    moved[samples == 1] = moved[samples == 0] + [2.0, 0.0, 0.0]  # the same material in both
    batch = condition.astype(str)
    with pytest.raises(InvalidInputError, match=r"batches that can be separated from 'condition'.*alignment needs"):
        align_batches(moved, samples, batch, keep={"condition": batch})
    _, found = align_batches(moved, samples, batch, anchors=anchors)
    np.testing.assert_allclose(found.shifts[1] - found.shifts[0], [2.0, 0.0, 0.0], atol=1e-6)


def test_the_nearest_sample_is_no_longer_of_the_same_batch():
    clean, moved, samples, batch, condition = cells(n_samples=24)
    points, _ = align_batches(moved, samples, batch, keep={"condition": condition.astype(str)})
    before, after, ideal = (hm.compare(x, samples, n_neighbors=10).distances for x in (moved, points, clean))
    assert separate(before, batch).agreement > separate(before, batch).chance + 0.2
    assert abs(separate(after, batch).agreement - separate(ideal, batch).agreement) < 0.1
    assert abs(separate(after, condition).agreement - separate(ideal, condition).agreement) < 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": ["x"] * 16}, "at least two batches for align_batch, found one, 'x'"),
        ({"batch": [None, *"xyxyxyxyxyxyxyx"]}, "batch: a label for every sample"),
        ({"anchors": ["pool", *[None] * 15]}, "an anchor sample in every batch, found none in '1'"),
        ({"keep": {"condition": [None, *"ababababababab", "a"]}}, "a value of 'condition' for every sample"),
        ({"samples": np.full(640, 16)}, "argument samples to hold a number from 0 to 15 for each of the 640 points"),
        ({"samples": np.zeros(3, dtype=int)}, "the argument samples to hold a number from 0 to 15"),
    ],
)
def test_what_cannot_be_aligned_is_refused(change, message):
    _, moved, samples, batch, _ = cells()
    given = {"samples": samples, "batch": batch} | change
    with pytest.raises(InvalidInputError, match=message):
        align_batches(moved, given.pop("samples"), given.pop("batch"), **given)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    _, moved, samples, batch, condition = cells()
    frame = pd.DataFrame(moved, columns=["u", "v", "w"]).assign(
        sample=[f"s{i:02d}" for i in samples],
        condition=np.array(["control", "case"])[condition][samples],
        batch=np.array(["b1", "b2"])[batch][samples],
        kit=np.array(["k1", "k2"])[condition][samples],
        pool=np.array(["p", "p", "p", "p"] + [None] * 12, dtype=object)[samples],
    )
    path = tmp_path_factory.mktemp("batches") / "cells.csv"
    frame.to_csv(path, index=False)
    return read_cohort(path, sample_key="sample", representation=["u", "v", "w"])


@pytest.mark.parametrize("study", [hm.study_cohort, IN_PIECES], ids=["memory", "pieces"])
def test_a_study_aligns(cohort, study):
    asked = {"variables": ["condition"], "landmarks": 150, "n_permutations": 19, "allow_components": True}
    plain = study(cohort, **asked)
    aligned = study(cohort, align_batch="batch", **asked)
    batch = np.unique(cohort.samples["batch"], return_inverse=True)[1]
    before, after = (separate(found.comparison.distances, batch) for found in (plain, aligned))
    assert before.agreement > 0.9
    assert after.agreement < 0.7
    assert aligned.findings[0].adjusted == ("batch",)
    assert any(note.startswith("Batch shifts of 2 batches ('batch') were subtracted") for note in aligned.notes)
    assert aligned.plain()["parameters"]["align_batch"] == "batch"
    assert aligned.design.names == ("batch", "condition")


def test_numbers_of_batches_are_names(tmp_path):
    _, moved, samples, _, condition = cells(n_samples=16, n_cells=10)
    frame = pd.DataFrame(moved, columns=["u", "v", "w"]).assign(
        sample=[f"s{i:02d}" for i in samples],
        run=samples // 2 + 100,
        condition=np.array(["a", "b"])[condition][samples],
    )
    frame.to_csv(tmp_path / "cells.csv", index=False)
    cohort = read_cohort(tmp_path / "cells.csv", sample_key="sample", representation=["u", "v", "w"])
    asked = {"variables": ["condition"], "n_permutations": 9, "allow_components": True}
    found = hm.study_cohort(cohort, align_batch="run", **asked)
    assert found.design["run"].degrees_of_freedom == 7


def test_a_number_of_few_values_is_kept_as_a_number_where_it_is_called_one(tmp_path):
    """As groups the doses could not be told from the batches: each batch has its own."""
    _, moved, samples, _, _ = cells()
    dose = np.array([0, 1, 2, 3]).repeat(4)[samples]
    frame = pd.DataFrame(moved, columns=["x", "y", "z"]).assign(sample=samples, dose=dose, batch=dose // 2)
    frame.to_csv(tmp_path / "cells.csv", index=False)
    cohort = read_cohort(tmp_path / "cells.csv", sample_key="sample")
    asked = {"variables": ["dose"], "align_batch": "batch", "n_permutations": 19}
    study = hm.study_cohort(cohort, numeric=["dose"], **asked)
    assert any("were subtracted from the cells" in note for note in study.notes)
    with pytest.raises(InvalidInputError, match="batches that can be separated from 'dose'"):
        hm.study_cohort(cohort, categorical=["dose"], **asked)


def test_moved_cells_are_those_of_align_batches(cohort):
    asked = {"variables": ["condition"], "bias": "raw", "n_permutations": 9, "allow_components": True}
    found = hm.study_cohort(cohort, align_batch="batch", **asked)
    keep = {"condition": cohort.samples["condition"].tolist()}
    points, _ = align_batches(cohort.points(), cohort.codes, cohort.samples["batch"].tolist(), keep=keep)
    np.testing.assert_allclose(found.comparison.distances, hm.compare(points, cohort.labels()).distances, rtol=1e-4)


def test_anchors_and_equal_cells_in_pieces(cohort):
    found = IN_PIECES(
        cohort, variables=["condition"], align_batch="batch", anchors="pool", equal_cells=30, landmarks=100,
        n_permutations=9, allow_components=True,
    )  # fmt: skip
    assert found.comparison.drawn is not None


def test_a_checkpoint_knows_what_was_moved(cohort):
    from heatmover.study.batches import align_cohort

    kept, keep = np.arange(16), {"condition": cohort.samples["condition"].tolist()}
    moved, _ = align_cohort(cohort, kept, cohort.samples["batch"].tolist(), keep, None)
    again, _ = align_cohort(cohort, kept, cohort.samples["batch"].tolist(), keep, None)
    assert describe_input(moved) == describe_input(again)
    assert describe_input(moved)["projection"] != describe_input(cohort)["projection"]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"variables": ["kit"], "align_batch": "condition"}, "'kit' not to be determined by 'condition'"),
        ({"variables": ["condition"], "align_batch": "btach"}, r"found 'btach' \(did you mean 'batch'\?\)"),
        (
            {"align_batch": "batch"},
            "the argument variables to name variables whose differences align_batch keeps, such as the condition, "
            "found none",
        ),
        ({"anchors": "pool"}, "align_batch together with the argument anchors, found none"),
        ({"align_batch": 3}, "align_batch to be a name, found 3"),
        ({"variables": ["condition"], "align_batch": "batch", "anchors": "nobody"}, "found 'nobody'"),
    ],
)
@pytest.mark.parametrize("study", [hm.study_cohort, IN_PIECES], ids=["memory", "pieces"])
def test_bad_alignments_are_refused_before_anything_is_compared(cohort, asked, sentence, study, monkeypatch):
    for comparer in (InMemory, InPieces):
        monkeypatch.setattr(comparer, "compare", lambda *_: pytest.fail("compared"))
    with pytest.raises(InvalidInputError, match=sentence):
        study(cohort, **asked)
