"""`compare_cohort` beside the plain way through all cells in memory, and the same for any division of the work."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import heatmover as hm
from heatmover.cohort import read_cohort
from heatmover.cohort.subsample import drawn_cohort
from heatmover.errors import InvalidInputError
from heatmover.study.scale import compare_cohort, landmarks

LANDMARKS = 60


@pytest.fixture(scope="module")
def whole(cohort):
    return compare_cohort(cohort, landmarks=LANDMARKS, n_jobs=1)


def test_histograms_are_those_of_brute_force(cohort, whole):
    nearest = cdist(cohort.points().astype(float), whole.landmarks.centers).argmin(axis=1)
    counts = np.zeros(whole.measures.shape)
    np.add.at(counts, (cohort.codes, nearest), 1)
    np.testing.assert_array_equal(whole.landmarks.counts, counts.sum(axis=0))
    np.testing.assert_allclose(whole.measures.toarray(), counts / counts.sum(axis=1, keepdims=True), rtol=1e-12)


def test_distances_are_those_of_compare_on_the_same_landmarks(whole):
    plain = hm.compare(whole.landmarks.graph(), whole.measures, n_jobs=1)
    np.testing.assert_array_equal(whole.distances, plain.distances)
    np.testing.assert_array_equal(whole.embedding, plain.embedding)


def test_distortion_is_the_mean_squared_distance(cohort, whole):
    squares = cdist(cohort.points().astype(float), whole.landmarks.centers).min(axis=1) ** 2
    assert whole.landmarks.distortion == pytest.approx(squares.mean(), rel=1e-6)
    assert whole.landmarks.how["distortion_of_drawn"] == pytest.approx(squares.mean(), rel=0.1)


def test_landmarks_cost_little_here_and_the_loss_says_so(cohort):
    result = compare_cohort(cohort, landmarks=400)
    full = hm.compare(cohort.points(), cohort.labels(), landmarks=None)
    assert hm.metrics.spearman(full.distances, result.distances) > 0.9
    assert result.landmark_agreement.spearman > 0.9
    assert result.landmark_agreement.n_points == cohort.n_cells


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize(("piece_rows", "block_rows", "n_jobs"), [(4000, 4000, 1), (977, 100, 2), (333, 16, 3)])
def test_the_result_does_not_depend_on_pieces_blocks_or_threads(
    cohort, whole, small_pieces, piece_rows, block_rows, n_jobs
):
    small_pieces(piece_rows, block_rows)
    result = compare_cohort(cohort, landmarks=LANDMARKS, n_jobs=n_jobs)
    np.testing.assert_array_equal(result.landmarks.centers, whole.landmarks.centers)
    np.testing.assert_array_equal(result.measures.masses.indices, whole.measures.masses.indices)
    np.testing.assert_array_equal(result.distances, whole.distances)
    assert result.landmarks.distortion == pytest.approx(whole.landmarks.distortion, rel=1e-12)
    assert result.landmark_agreement == whole.landmark_agreement


def test_another_seed_gives_other_landmarks(cohort, whole):
    other = compare_cohort(cohort, landmarks=LANDMARKS, random_state=1)
    assert not np.array_equal(other.landmarks.centers, whole.landmarks.centers)


def test_min_cells_leaves_samples_out(tmp_path, data, write):
    kept = np.flatnonzero((data.labels != "case-02") | (np.arange(data.labels.size) % 100 == 0))
    part = SimpleNamespace(points=data.points[kept], labels=data.labels[kept])
    cohort = read_cohort(write(tmp_path / "few.parquet", part, [1000]), sample_key="sample")
    result = compare_cohort(cohort, landmarks=LANDMARKS, min_cells=6)
    assert result.names == tuple(name for name in cohort.names if name != "case-02")
    assert result.sizes.tolist() == [500] * 7
    assert result.landmarks.counts.sum() == cohort.n_cells


def test_samples_with_few_cells_are_left_out_on_request(cohort):
    with pytest.raises(InvalidInputError, match="at least two samples to compare, found 0 samples with at least 501"):
        compare_cohort(cohort, min_cells=501)


def test_standardized_and_reduced_cohorts_are_read_as_points(file):
    cohort = read_cohort(file, sample_key="sample", standardize=True, n_components=3)
    result = compare_cohort(cohort, landmarks=LANDMARKS)
    nearest = cdist(cohort.points().astype(float), result.landmarks.centers).argmin(axis=1)
    np.testing.assert_array_equal(np.bincount(nearest), result.landmarks.counts)


def test_progress_counts_cells(cohort, small_pieces):
    class Watcher:
        def __init__(self):
            self.stages = {}

        def stage(self, name, total):
            self.now, self.stages[name] = name, [total, 0]

        def advance(self, steps=1):
            self.stages[self.now][1] += steps

    small_pieces(500)
    watcher = Watcher()
    compare_cohort(cohort, landmarks=LANDMARKS, progress=watcher)
    assert watcher.stages["count cells"] == [4000, 4000]
    assert watcher.stages["draw cells"] == [4000, 4000]
    assert all(total == done for total, done in watcher.stages.values())
    assert list(watcher.stages)[-2:] == ["measure the agreement", "compare"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"landmarks": 4001}, "at least as many cells as landmarks=4001, found 4,000 cells"),
        ({"landmarks": 30}, "more landmarks than n_neighbors=30, found 30 landmarks for 4,000 cells"),
        ({"landmarks": "many"}, "'auto' or none, found 'many'"),
        ({"landmarks": LANDMARKS, "memory": "20 MB"}, "memory of at least .* MB .*, found 20 MB"),
        ({"random_state": None}, "random_state to be a whole number"),
        ({"resume": True}, "a checkpoint to resume, found none"),
        ({"client": 7}, "client to be a distributed.Client"),
        ({"model": hm.DiffusionEMD(hm.Graph.from_grid((3,)))}, "model without a graph"),
    ],
)
def test_bad_options_are_refused_before_any_cell_is_read(cohort, monkeypatch, options, message):
    monkeypatch.setattr(landmarks.Piece, "blocks", lambda self: pytest.fail("read cells"))
    with pytest.raises(InvalidInputError, match=message):
        compare_cohort(cohort, n_jobs=1, **options)


def test_points_in_place_of_a_cohort_are_refused(data):
    with pytest.raises(InvalidInputError, match=r"a Cohort, found ndarray; .*read_cohort"):
        compare_cohort(data.points)


def test_too_many_samples_for_all_pairs_are_sent_to_nearest(cohort, monkeypatch):
    monkeypatch.setattr("heatmover.study.comparison.MOST_SAMPLES", 7)
    with pytest.raises(InvalidInputError, match=r"at most 7 samples .*hm.scale.nearest find the nearest"):
        compare_cohort(cohort)


def test_a_file_that_changed_is_told(cohort, monkeypatch):
    reader = cohort.reader
    original = type(reader).blocks

    def spoilt(self, start, stop, size):
        for number, block in enumerate(original(self, start, stop, size)):
            block = block.copy()
            if number == 0:
                block[0, 0] = np.nan
            yield block

    monkeypatch.setattr(type(reader), "blocks", spoilt)
    with pytest.raises(InvalidInputError, match=r"without NaN or infinity, found 1 cell .*row 0 of .*changed since"):
        compare_cohort(cohort, landmarks=LANDMARKS, n_jobs=1)


def test_a_shorter_file_is_told(cohort, monkeypatch):
    reader = cohort.reader
    original = type(reader).blocks
    monkeypatch.setattr(
        type(reader), "blocks", lambda self, start, stop, size: original(self, start, min(stop, 3999), size)
    )
    with pytest.raises(InvalidInputError, match=r"cells from row .*changed since"):
        compare_cohort(cohort, landmarks=LANDMARKS, n_jobs=1)


def test_a_read_that_fails_for_good_is_told(cohort, monkeypatch):
    def broken(self, start, stop, size):
        raise OSError("the drive is gone")

    monkeypatch.setattr(type(cohort.reader), "blocks", broken)
    with pytest.raises(InvalidInputError, match="the drive is gone"):
        compare_cohort(cohort, landmarks=LANDMARKS, n_jobs=1)


def test_cells_are_drawn_by_their_values_and_in_proportion():
    rng = np.random.default_rng(0)
    block, codes = rng.normal(size=(20_000, 4)), rng.integers(0, 3, 20_000).astype(np.int32)
    shares = np.array([0.0, 0.1, 1.0])
    rows, counts = landmarks.drawn_rows(block, codes, 5, shares)
    sizes = np.bincount(codes)
    found = np.bincount(codes[rows], minlength=3)
    assert (found[0], found[2], counts.max()) == (0, sizes[2], 1)
    assert abs(found[1] - 0.1 * sizes[1]) < 4 * np.sqrt(0.09 * sizes[1])
    # Those of another half are drawn as if it were alone, and copies with the first of them.
    half, _ = landmarks.drawn_rows(block[10_000:], codes[10_000:], 5, shares)
    assert set(half + 10_000) == set(rows[rows >= 10_000])
    twice, counts = landmarks.drawn_rows(np.vstack([block, block]), np.r_[codes, codes], 5, shares)
    assert set(twice % 20_000) == set(rows)
    assert (counts == 2).all()
    other, _ = landmarks.drawn_rows(block, codes, 6, shares)
    assert set(other[codes[other] == 1]) != set(rows[codes[rows] == 1])


def test_the_draw_for_the_loss_takes_as_many_cells_of_each_sample(cohort, monkeypatch):
    monkeypatch.setattr(landmarks, "AGREEMENT_POINTS", 160)
    shares = landmarks.shares_by_sample(cohort, np.random.default_rng(0))
    expected = shares * cohort.sizes
    np.testing.assert_allclose(expected[expected > 0], 53, atol=1)
    assert np.count_nonzero(shares) == 3


def test_a_table_of_text_is_copied_once_and_gives_the_same(cohort, whole, data, tmp_path, monkeypatch, small_pieces):
    from heatmover.cohort.formats.tables import DelimitedReader

    points = cohort.points()
    lines = ["sample,x0,x1,x2,x3,x4"]
    lines += [",".join([name, *map(repr, row.tolist())]) for name, row in zip(cohort.labels(), points, strict=True)]
    (tmp_path / "cells.csv").write_text("\n".join(lines))
    table = read_cohort(tmp_path / "cells.csv", sample_key="sample")
    passes, original = [], DelimitedReader.blocks

    def counted(self, start, stop, size):
        passes.append((start, stop))
        return original(self, start, stop, size)

    monkeypatch.setattr(DelimitedReader, "blocks", counted)
    small_pieces(500)
    result = compare_cohort(table, landmarks=LANDMARKS, checkpoint=tmp_path / "checkpoint.zarr")
    np.testing.assert_array_equal(result.distances, whole.distances)
    assert passes == [(0, 4000)]
    assert not list((tmp_path / "checkpoint.zarr").glob(".heatmover-*"))


def test_cells_without_a_value_are_left_out(cohort, tmp_path):
    lines = ["sample,x,y", *(f"s{i % 4},{i % 7 + 0.5},{i % 11 if i % 50 else 'NA'}" for i in range(400))]
    (tmp_path / "cells.csv").write_text("\n".join(lines))
    table = read_cohort(tmp_path / "cells.csv", sample_key="sample", representation=["x", "y"], on_missing="drop")
    result = compare_cohort(table, landmarks=40, n_neighbors=5)
    assert result.sizes.sum() == 392
    assert result.landmarks.counts.sum() == 392


def test_a_study_is_that_of_the_comparison(cohort):
    from heatmover.study.scale import study_cohort

    found = study_cohort(cohort, landmarks=LANDMARKS, min_cells=3)
    expected = compare_cohort(cohort, landmarks=LANDMARKS, bias="corrected").distances
    np.testing.assert_array_equal(found.comparison.distances, expected)
    assert found.record.input["cells"] == 4000
    assert any("Landmarks approximate the cells" in note for note in found.notes)
    assert "count cells" in found.record.seconds


def test_histograms_and_their_embedding_on_disk_are_those_of_the_comparison(cohort, whole, tmp_path, small_pieces):
    from heatmover.study.scale import embed, histograms

    small_pieces(700)
    landmarks, measures = histograms(cohort, landmarks=LANDMARKS)
    np.testing.assert_array_equal(measures.toarray(), whole.measures.toarray())
    model = hm.DiffusionEMD(landmarks.graph()).fit(measures)
    found = embed(model, measures, tmp_path / "embedding.zarr")
    np.testing.assert_array_equal(found[:], whole.embedding)
    with pytest.raises(InvalidInputError, match="does not exist yet"):
        embed(model, measures, tmp_path / "embedding.zarr")
    next((tmp_path / "embedding.zarr" / "c").rglob("0/0")).unlink()
    again = embed(model, measures, tmp_path / "embedding.zarr", resume=True)
    np.testing.assert_array_equal(again[:], whole.embedding)
    other = hm.DiffusionEMD(landmarks.graph(), alpha=0.4).fit(measures)
    with pytest.raises(InvalidInputError, match="same model and measures"):
        embed(other, measures, tmp_path / "embedding.zarr", resume=True)


def test_workers_get_paths_that_do_not_depend_on_their_folder(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    piece = landmarks.Piece.of(read_cohort(file.name, sample_key="sample"), 0, 4000, 1000)
    monkeypatch.chdir("/")
    assert sum(len(points) for _, _, points in piece.blocks()) == 4000


def test_an_object_in_memory_is_compared_here_but_not_sent_to_a_cluster(data, whole, cohort):
    import anndata
    import pandas as pd

    obs = pd.DataFrame({"sample": cohort.labels()}, index=[f"c{i}" for i in range(4000)])
    adata = anndata.AnnData(obs=obs, obsm={"X_pca": cohort.points()})
    known = read_cohort(adata, sample_key="sample")
    np.testing.assert_array_equal(compare_cohort(known, landmarks=LANDMARKS).distances, whole.distances)
    with pytest.raises(InvalidInputError, match="which workers can read, found an AnnData object in memory"):
        compare_cohort(known, client="tcp://127.0.0.1:1")


@pytest.fixture(scope="module")
def unequal(data, write, tmp_path_factory):
    """Samples of 125 to 500 cells."""
    kept = np.concatenate(
        [np.flatnonzero(data.labels == name)[: 500 - 125 * (i % 4)] for i, name in enumerate(np.unique(data.labels))]
    )
    part = SimpleNamespace(points=data.points[np.sort(kept)], labels=data.labels[np.sort(kept)])
    return read_cohort(write(tmp_path_factory.mktemp("unequal") / "cells.parquet", part, [100]), sample_key="sample")


@pytest.mark.parametrize(("piece_rows", "block_rows"), [(2000, 2000), (97, 16)])
def test_equal_cells_are_those_drawn_in_memory(unequal, small_pieces, piece_rows, block_rows):
    drawn, _ = drawn_cohort(unequal, np.arange(8), 125, random_state=0)
    expected = compare_cohort(drawn, landmarks=LANDMARKS)
    small_pieces(piece_rows, block_rows)
    result = compare_cohort(unequal, landmarks=LANDMARKS, equal_cells=True)
    assert result.sizes.tolist() == [125] * 8
    assert result.landmarks.counts.sum() == 1000
    assert result.drawn.sizes.tolist() == unequal.sizes.tolist()
    np.testing.assert_array_equal(result.distances, expected.distances)
    in_memory = hm.compare(unequal.points(), unequal.labels(), equal_cells=True, landmarks=None)
    np.testing.assert_array_equal(unequal.points()[in_memory.drawn.rows], drawn.points())


def test_equal_cells_need_a_hash_of_every_cell(unequal):
    with pytest.raises(InvalidInputError, match=r"memory of at least .* MB for equal_cells, to draw from 2,500 cells"):
        compare_cohort(unequal, landmarks=LANDMARKS, equal_cells=True, memory=50_000)


def test_equal_cells_are_part_of_a_checkpoint(unequal, tmp_path):
    pytest.importorskip("zarr")
    place = tmp_path / "run.zarr"
    first = compare_cohort(unequal, landmarks=LANDMARKS, equal_cells=100, checkpoint=place)
    again = compare_cohort(unequal, landmarks=LANDMARKS, equal_cells=100, checkpoint=place, resume=True)
    np.testing.assert_array_equal(first.distances, again.distances)
    with pytest.raises(InvalidInputError, match="checkpoint"):
        compare_cohort(unequal, landmarks=LANDMARKS, equal_cells=90, checkpoint=place, resume=True)


def test_units_and_noise_are_those_of_compare_on_the_same_landmarks(unequal):
    asked = {"units": "euclidean", "bias": "corrected", "n_bootstrap": 20}
    result = compare_cohort(unequal, landmarks=LANDMARKS, n_neighbors=8, **asked)
    model = hm.DiffusionEMD(result.landmarks.graph(8), random_state=0)
    expected = hm.calibrate(model, result.measures, result.landmarks.centers, n_pairs=28)
    assert result.calibration.plain() == expected.plain()
    found = hm.uncertainty(expected.model, result.measures, unequal.sizes, n_bootstrap=20)
    linear = hm.pairwise_distances(found.correct(expected.model.transform(result.measures)))
    np.testing.assert_allclose(result.distances, expected.distances(linear), rtol=1e-5)
    np.testing.assert_allclose(result.intervals.upper, expected.curve(found.upper), rtol=1e-5)


def test_units_are_part_of_a_checkpoint(unequal, tmp_path):
    pytest.importorskip("zarr")
    asked = {"landmarks": LANDMARKS, "n_neighbors": 8, "checkpoint": tmp_path / "run.zarr"}
    first = compare_cohort(unequal, units="euclidean", **asked)
    again = compare_cohort(unequal, units="euclidean", resume=True, **asked)
    np.testing.assert_array_equal(first.distances, again.distances)
    with pytest.raises(InvalidInputError, match="checkpoint"):
        compare_cohort(unequal, units="geodesic", resume=True, **asked)


def test_stages_count_noise_and_units(unequal):
    seen = []

    class Seen:
        def stage(self, name, total):
            seen.append([name, total, 0])

        def advance(self, steps=1):
            seen[-1][2] += steps

    compare_cohort(
        unequal,
        landmarks=LANDMARKS,
        n_neighbors=8,
        units="euclidean",
        n_bootstrap=10,
        equal_cells=True,
        progress=Seen(),
    )
    names = [name for name, _, _ in seen]
    assert names[0] == "draw equally many"
    assert names.index("choose scales") < names.index("calibrate units") < names.index("diffuse measures")
    assert names[-2:] == ["assess noise", "compare"]
    assert all(total == done for _, total, done in seen)
