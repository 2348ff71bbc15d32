"""Atlases: new samples land where the reference's own would, by name, in its units, and say when they do not belong."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import heatmover as hm
from heatmover._base.storage import Samples, Store
from heatmover.errors import InvalidInputError

pandas = pytest.importorskip("pandas")

N_SAMPLES, CELLS = 20, 40
FEATURES = ["CD3", "CD4", "CD8"]


@cache
def cells() -> tuple[np.ndarray, np.ndarray]:
    """Samples of three populations, those of group a with more of the first."""
    rng = np.random.default_rng(0)
    centers = np.array([[0.0, 0, 0], [6, 0, 0], [0, 6, 0]])
    points, labels = [], []
    for sample in range(N_SAMPLES):
        shares = [0.6, 0.2, 0.2] if sample % 2 else [0.2, 0.2, 0.6]
        kind = rng.choice(3, CELLS, p=shares)
        points.append(centers[kind] + rng.normal(size=(CELLS, 3)))
        labels += [f"s{sample:02d}"] * CELLS
    return np.vstack(points), np.array(labels)


@cache
def fresh() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    centers = np.array([[0.0, 0, 0], [6, 0, 0], [0, 6, 0]])
    kinds = [rng.choice(3, CELLS, p=shares) for shares in ([0.6, 0.2, 0.2], [0.2, 0.2, 0.6])]
    points = np.vstack([centers[kind] + rng.normal(size=(CELLS, 3)) for kind in kinds])
    return points, np.repeat(["new odd", "new even"], CELLS)


@cache
def atlas(landmarks: int | None = None) -> hm.Atlas:
    points, labels = cells()
    variables = {
        "group": ["odd" if i % 2 else "even" for i in range(N_SAMPLES)],
        "age": [None if i == 3 else 40.0 + (i % 2) for i in range(N_SAMPLES)],
        "patient": [i // 2 for i in range(N_SAMPLES)],
    }
    return hm.build_atlas(
        points, labels, features=FEATURES, variables=variables, landmarks=landmarks, n_neighbors=15,
        model=hm.DiffusionEMD(max_scale=5),
    )  # fmt: skip


@pytest.mark.parametrize("landmarks", [None, 100])
def test_cells_of_the_reference_come_to_their_own_place_to_the_bit(landmarks):
    points, labels = cells()
    order = np.random.default_rng(2).permutation(len(points))
    again = atlas(landmarks).map(points[order], labels[order])
    assert again.names == atlas(landmarks).names
    np.testing.assert_array_equal(again.embedding, atlas(landmarks).embedding)
    np.testing.assert_array_equal(again.distances.diagonal(), 0)
    np.testing.assert_allclose(again.coordinates(), atlas(landmarks).coordinates, atol=1e-9)
    # Mapped alone, a sample is where it is among the others.
    own = labels == "s04"
    np.testing.assert_array_equal(atlas(landmarks).map(points[own], "s04").embedding[0], atlas(landmarks).embedding[4])


def test_the_embedding_is_that_of_a_comparison():
    points, labels = cells()
    found = hm.compare(points, labels, n_neighbors=15, landmarks=None, model=hm.DiffusionEMD(max_scale=5))
    np.testing.assert_array_equal(found.embedding, atlas().embedding)
    np.testing.assert_array_equal(found.distances, atlas().distances)


def test_equal_cells_are_one_node():
    points, labels = cells()
    doubled, twice = np.vstack([points, points[:100]]), np.r_[labels, labels[:100]]
    found = hm.build_atlas(doubled, twice, n_neighbors=15, model=hm.DiffusionEMD(max_scale=3))
    assert found.nodes.n_landmarks == len(points)
    assert found.sizes.sum() == len(doubled)
    np.testing.assert_array_equal(found.map(doubled, twice).embedding, found.embedding)


@pytest.mark.parametrize("landmarks", [None, 100])
def test_a_saved_atlas_gives_the_same_answers(tmp_path, landmarks):
    before = atlas(landmarks)
    before.save(tmp_path / "it.atlas")
    after = hm.load(tmp_path / "it.atlas")
    assert isinstance(after, hm.Atlas)
    assert repr(after) == repr(before)
    assert after.variables == before.variables
    one, two = before.map(*fresh()), after.map(*fresh())
    np.testing.assert_array_equal(one.embedding, two.embedding)
    np.testing.assert_array_equal(one.coverage.cell_p_values, two.coverage.cell_p_values)
    np.testing.assert_array_equal(one.coverage.p_values, two.coverage.p_values)
    assert one.coverage.means_evidence.any()
    assert repr(one) == repr(two)
    after.save(tmp_path / "again.atlas")
    first, second = (tmp_path / name / "manifest.json" for name in ("it.atlas", "again.atlas"))
    assert first.read_bytes() == second.read_bytes()


def test_the_order_of_cells_does_not_change_coverage():
    points, labels = fresh()
    order = np.random.default_rng(0).permutation(len(points))
    one, two = atlas().map(points, labels).coverage, atlas().map(points[order], np.asarray(labels)[order]).coverage
    np.testing.assert_allclose(one.p_values, two.p_values, rtol=1e-12)
    np.testing.assert_array_equal(one.n_means, two.n_means)


def test_threads_change_nothing():
    one, two = (atlas(100).map(*fresh(), n_jobs=n_jobs) for n_jobs in (1, 3))
    np.testing.assert_array_equal(one.embedding, two.embedding)
    np.testing.assert_array_equal(one.coverage.cell_p_values, two.coverage.cell_p_values)


def test_features_are_found_by_name_in_any_order():
    points, labels = fresh()
    frame = pandas.DataFrame(points, columns=FEATURES)
    frame["further"] = 7.0
    truth = atlas().map(points, labels).embedding
    np.testing.assert_array_equal(atlas().map(frame[["further", "CD8", "CD3", "CD4"]], labels).embedding, truth)
    with pytest.raises(InvalidInputError, match=r"every feature of the atlas .*found 'CD8' \(did you mean 'CD88'\?\)"):
        atlas().map(frame.rename(columns={"CD8": "CD88"}), labels)
    with pytest.raises(InvalidInputError, match="every feature of the atlas"):
        atlas().map(frame[["CD3", "CD4"]], labels)
    with pytest.raises(InvalidInputError, match="distinct columns"):
        atlas().map(pandas.concat([frame, frame], axis=1), labels)


def test_files_and_anndata_are_scaled_and_projected_as_the_reference_was(tmp_path):
    anndata = pytest.importorskip("anndata")
    points, labels = cells()
    frame = pandas.DataFrame(points * [1, 10, 100], columns=FEATURES)
    frame.insert(1, "sample", labels)
    frame["group"] = ["odd" if int(label[1:]) % 2 else "even" for label in labels]
    frame.to_csv(tmp_path / "cells.csv", index=False)
    cohort = hm.read_cohort(tmp_path / "cells.csv", sample_key="sample", standardize=True, n_components=2)
    found = hm.build_atlas(cohort, n_neighbors=15, model=hm.DiffusionEMD(max_scale=3))
    assert found.features.names == tuple(FEATURES)
    assert found.variables["group"] == tuple(atlas().variables["group"])
    assert found.nodes.centers.shape[1] == 2
    np.testing.assert_array_equal(found.map(tmp_path / "cells.csv").embedding, found.embedding)
    found.save(tmp_path / "it.atlas")
    again = hm.load(tmp_path / "it.atlas")
    part = frame[labels == "s07"]
    columns = ["CD8", "CD3", "CD4"]
    new = anndata.AnnData(
        part[columns].to_numpy(), obs=part[["sample"]].rename(str), var=pandas.DataFrame(index=columns)
    )
    mapped = again.map(new)
    assert mapped.names == ("s07",)
    np.testing.assert_allclose(mapped.embedding[0], found.embedding[7], atol=1e-7)
    renamed = new.copy()
    renamed.var_names = ["CD8", "CD3", "CD4b"]
    with pytest.raises(InvalidInputError, match="CD4"):
        again.map(renamed)
    with pytest.raises(InvalidInputError, match="sample_key"):
        again.map(new, sample_key="patient")
    with pytest.raises(InvalidInputError, match="pass the file or object from which the Cohort was read"):
        again.map(cohort)


def test_a_cohort_of_shifted_batches_is_refused(tmp_path):
    from heatmover.cohort.cohort import shifted_cohort

    points, labels = cells()
    frame = pandas.DataFrame(points, columns=FEATURES).assign(sample=labels)
    frame.to_csv(tmp_path / "cells.csv", index=False)
    cohort = hm.read_cohort(tmp_path / "cells.csv", sample_key="sample")
    moved = shifted_cohort(cohort, np.zeros(N_SAMPLES, dtype=np.int16), np.ones((1, 3)))
    with pytest.raises(InvalidInputError, match="a Cohort without batch alignment, found one with aligned batches"):
        hm.build_atlas(moved)


def test_other_units_are_told():
    points, labels = fresh()
    assert atlas().map(points, labels).warnings == ()
    large, twice = atlas().map(points * [1, 1000, -500], labels).warnings
    assert "Values of 'CD4' range from" in large
    assert "check the units" in large
    assert "Values of 'CD8' range from" in twice
    (small,) = atlas().map(points / 100, labels).warnings
    assert "3 of 3 features have a standard deviation below 20% of the standard deviation in the reference" in small
    (one,) = atlas().map(points / [1, 1, 100], labels).warnings
    assert (
        one
        == "The standard deviation of 'CD8' is below 2% of the standard deviation in the reference: check the units."
    )
    assert atlas().map(points * [1, 1, 0], labels).warnings == ()  # not there at all, as a gene may be


def test_many_features_of_other_units_are_counted():
    points, labels = np.random.default_rng(0).normal(size=(200, 14)), np.repeat(["a", "b", "c", "d"], 50)
    found = hm.build_atlas(points, labels, n_neighbors=8, model=hm.DiffusionEMD(max_scale=2))
    told = found.map(points * 100, labels).warnings
    assert len(told) == 11
    assert told[-1] == "Values of 4 further features are also far outside the range of the reference."


def test_errors_of_a_file_speak_of_the_atlas(tmp_path):
    points, labels = fresh()
    frame = pandas.DataFrame(points, columns=FEATURES).assign(sample=labels)
    frame.drop(columns="CD8").to_csv(tmp_path / "missing.csv", index=False)
    with pytest.raises(InvalidInputError, match=r"every feature of the atlas to be a column .*found no 'CD8'"):
        atlas().map(tmp_path / "missing.csv", sample_key="sample")
    frame.iloc[3, 0] = np.nan
    frame.to_csv(tmp_path / "nan.csv", index=False)
    with pytest.raises(InvalidInputError, match="on_missing='drop'"):
        atlas().map(tmp_path / "nan.csv", sample_key="sample")
    mapped = atlas().map(tmp_path / "nan.csv", sample_key="sample", on_missing="drop")
    assert mapped.sizes.sum() == len(points) - 1


def test_nearest_and_predictions_follow_the_distances():
    mapped = atlas().map(*fresh())
    distances, indices = mapped.nearest(5)
    assert (np.diff(distances, axis=1) >= 0).all()
    np.testing.assert_array_equal(indices[:, 0], mapped.distances.argmin(axis=1))
    found = mapped.predict("group", k=5)
    assert mapped.names == ("new even", "new odd")
    assert found.values == ("even", "odd")
    assert found.accuracy > 0.9
    assert ((found.chances > 0.5) & (found.chances < 1)).all()
    tied = mapped.predict("group", k=5, blocks="patient")
    assert tied.values == found.values
    age = mapped.predict("age", k=3)
    assert age.is_number
    np.testing.assert_allclose(age.values, [40, 41])
    assert np.isnan(age.votes).all()
    with pytest.raises(InvalidInputError, match=r"found 'grup' \(did you mean 'group'\?\)"):
        mapped.predict("grup")
    with pytest.raises(InvalidInputError, match="more than k=19 reference samples"):
        mapped.predict("age", k=19)
    with pytest.raises(InvalidInputError, match="k to be at most 20"):
        mapped.nearest(21)


def test_few_reference_samples_vote_all_but_one(tmp_path):
    points, labels = cells()
    few = np.isin(labels, ["s00", "s01", "s02", "s03", "s04"])
    found = hm.build_atlas(
        points[few], labels[few], variables={"group": ["a", "b", "a", "b", None]}, n_neighbors=15,
        model=hm.DiffusionEMD(max_scale=3),
    )  # fmt: skip
    mapped = found.map(*fresh())
    assert mapped.predict("group").values == mapped.predict("group", k=3).values
    mapped.to_csv(tmp_path / "x.csv", predict=["group"])
    assert "nearest 5" in (tmp_path / "x.csv").read_text()
    with pytest.raises(InvalidInputError, match="more than k=4 reference samples"):
        mapped.predict("group", k=4)


def test_votes_by_hand():
    from heatmover.atlas.prediction import _calibrated, _votes

    codes = np.array([0, 1, 1, 0])
    winners, votes = _votes(codes, np.array([[1.0, 2, 3, 4], [4, 3, 2, 1], [2, 1, np.inf, np.inf]]), 2, 2)
    # 0 and 1 tie, and the nearer wins; 0 and 1 again; 1 before 0.
    assert winners.tolist() == [0, 0, 1]
    assert votes.tolist() == [0.5, 0.5, 0.5]
    votes, right = np.array([0.5, 0.5, 1, 1, 1, 1]), np.array([True, False, True, True, True, True])
    # Held at (5 + 1) / (6 + 2) = 3/4 by two: (1 + 3/2) / 4, and (4 + 3/2) / 6, which is above the most of (6 + 1) / 8.
    np.testing.assert_allclose(_calibrated(votes, right, np.array([0.5, 0.75, 1])), [5 / 8, 3 / 4, 7 / 8])


def test_intervals_and_explanations():
    mapped = atlas().map(*fresh())
    lower, upper, apart = mapped.intervals(n_bootstrap=20)
    assert lower.shape == upper.shape == apart.shape == (2, N_SAMPLES)
    assert (lower <= upper).all()
    nearest = mapped.explain("new odd")
    assert nearest.witness.shape == (atlas().nodes.n_landmarks,)
    group = mapped.explain("new odd", "even", variable="group")
    # Odd samples have more cells of the population around zero than even ones.
    near_zero = np.linalg.norm(atlas().nodes.centers, axis=1) < 2
    assert group.contributions[near_zero].sum() > 0
    assert (group.masses[0] - group.masses[1])[near_zero].sum() > 0.2
    with pytest.raises(InvalidInputError, match="reference samples with group=none"):
        mapped.explain("new odd", "none", variable="group")
    with pytest.raises(InvalidInputError, match="a mapped sample"):
        mapped.explain("s01")


def test_samples_are_added_and_everything_else_stays():
    mapped = atlas().map(*fresh())
    larger = atlas().add(mapped, {"group": ["even", "odd"]})
    assert len(larger.names) == N_SAMPLES + 2
    np.testing.assert_array_equal(larger.embedding[:N_SAMPLES], atlas().embedding)
    np.testing.assert_array_equal(larger.map(*fresh()).distances.min(axis=1), 0)
    assert larger.sizes[-1] == CELLS
    assert larger.variables["group"][-2:] == ("even", "odd")
    assert larger.variables["age"][-2:] == (None, None)
    with pytest.raises(InvalidInputError, match="new sample names, found 'new even', 'new odd', already in the atlas"):
        larger.add(larger.map(*fresh()))
    with pytest.raises(InvalidInputError, match="mapped onto this atlas, found samples mapped onto another atlas"):
        larger.add(mapped)
    with pytest.raises(InvalidInputError, match="sample metadata of the atlas"):
        atlas().add(mapped, {"colour": [1, 2]})
    with pytest.raises(InvalidInputError, match=r"one value per sample \(2\), found 1"):
        atlas().add(mapped, {"group": ["even"]})


def test_units_are_kept(tmp_path):
    pytest.importorskip("ot")
    points, labels = cells()
    found = hm.build_atlas(points, labels, n_neighbors=15, units="euclidean", model=hm.DiffusionEMD(max_scale=4))
    exact = hm.compare(points, labels, n_neighbors=15, units="euclidean", model=hm.DiffusionEMD(max_scale=4))
    np.testing.assert_allclose(found.distances, exact.distances, rtol=1e-12)
    found.save(tmp_path / "it.atlas")
    np.testing.assert_array_equal(hm.load(tmp_path / "it.atlas").map(*fresh()).distances, found.map(*fresh()).distances)


@pytest.mark.parametrize(
    ("points", "labels", "match"),
    [
        (np.ones((3, 2)), "x", "3 features of the atlas"),
        (np.full((2, 3), np.nan), "x", "NaN"),
        (np.empty((0, 3)), "x", "at least one row"),
        (np.ones((3, 3)), ["a", "b"], "one label for each of the 3 points"),
        (np.ones((3, 3)), None, "labels: a sample name for each point, or one name for all, found none"),
        ("nowhere.csv", None, "a file that exists"),
    ],
)
def test_bad_queries_are_refused(points, labels, match):
    with pytest.raises(InvalidInputError, match=match):
        atlas().map(points, labels)


def test_a_single_cell_can_be_mapped():
    mapped = atlas().map(np.zeros((1, 3)), "one")
    assert mapped.sizes.tolist() == [1]
    assert mapped.coverage.covered == (True,)


def test_bad_references_are_refused():
    points, labels = cells()
    with pytest.raises(InvalidInputError, match="at least two reference samples"):
        hm.build_atlas(points[:30], labels[:30])
    with pytest.raises(InvalidInputError, match="points and labels"):
        hm.build_atlas(points)
    with pytest.raises(InvalidInputError, match="a name for each of the 3 features"):
        hm.build_atlas(points, labels, features=["a"])
    with pytest.raises(InvalidInputError, match="distinct names of features"):
        hm.build_atlas(points, labels, features=["a", "a", "b"])
    with pytest.raises(InvalidInputError, match=r"one value per sample \(20\)"):
        hm.build_atlas(points, labels, variables={"group": ["a"]})
    unnamed = hm.build_atlas(points, labels, n_neighbors=15, model=hm.DiffusionEMD(max_scale=5))
    with pytest.raises(InvalidInputError, match="build the atlas with features"):
        unnamed.map("cells.csv")


@pytest.mark.parametrize("name", ["model", "nodes"])
def test_parts_that_do_not_belong_together_are_refused(tmp_path, name):
    mine, other = atlas(), atlas(100)
    record = mine.to_record()
    mixed = replace(record, parts={**record.parts, name: other.to_record().parts[name]})
    mine.save(tmp_path / "mine")
    samples = Samples(Store.open(tmp_path / "mine"))
    with pytest.raises(InvalidInputError, match="stored"):
        hm.Atlas.from_record(mixed, samples)


def test_samples_of_another_atlas_are_refused(tmp_path):
    atlas(100).save(tmp_path / "other")
    with pytest.raises(InvalidInputError, match="samples that belong to the stored model, found samples of another"):
        hm.Atlas.from_record(atlas().to_record(), Samples(Store.open(tmp_path / "other")))


def test_the_nearest_come_from_an_index():
    mapped = atlas().map(*fresh())
    distances, indices = mapped.nearest(7)
    order = np.argsort(mapped.distances, axis=1, kind="stable")[:, :7]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(distances, np.take_along_axis(mapped.distances, order, axis=1))
    found = atlas().index.nearest(mapped.measures, k=7)
    np.testing.assert_array_equal(found.rows, indices)
    assert atlas().index.variables(found.rows[0, :1])["group"][0] == atlas().variables["group"][indices[0, 0]]
    atlas().index.add(mapped.embedding, names=mapped.names, variables=dict.fromkeys(atlas().variables, [None] * 2))
    assert atlas().map(*fresh()).nearest(20)[1].max() < N_SAMPLES


def test_a_loaded_model_works_in_a_pipeline_of_scikit_learn(tmp_path):
    from sklearn.base import clone
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import cross_val_score
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline

    atlas().model.save(tmp_path / "it.model")
    classifier = make_pipeline(
        FrozenEstimator(hm.load(tmp_path / "it.model")), KNeighborsClassifier(5, metric="manhattan")
    )
    # Before version 1.9 these neighbors need numbers as classes.
    masses, (names, group) = atlas().measures.masses, np.unique(atlas().variables["group"], return_inverse=True)
    assert cross_val_score(classifier, masses, group, cv=4).mean() > 0.9
    mapped = atlas().map(*fresh())
    fitted = clone(classifier).fit(masses, group)
    assert names[fitted.predict(mapped.measures.masses)].tolist() == list(mapped.predict("group", k=5).values)
    # It was not fitted again: what it sees are the distances of the atlas.
    distances, _ = fitted[-1].kneighbors(fitted[0].transform(mapped.measures.masses))
    np.testing.assert_allclose(distances, mapped.nearest(5)[0], rtol=1e-5)


def metadata(names):
    return pandas.DataFrame({"group": [f"of {name}" for name in names]}, index=list(names))


@pytest.mark.parametrize(
    "form",
    [
        lambda frame: frame,
        lambda frame: {"group": frame["group"]},
        lambda frame: {"group": frame["group"].to_dict()},
        lambda frame: {"group": frame["group"].tolist()[::-1]},
        lambda frame: pandas.DataFrame({"group": frame["group"].tolist()[::-1]}),
    ],
    ids=["frame", "series", "mapping", "list in order", "frame with an index that counts"],
)
def test_metadata_goes_to_its_own_sample_at_every_door(form, tmp_path):
    points, labels = cells()
    names = sorted(set(labels))
    expected = [f"of {name}" for name in names]
    given = form(metadata(names[::-1]))
    built = hm.build_atlas(points, labels, variables=given)
    assert list(built.variables["group"]) == expected
    rows = np.arange(float(len(names)))[:, None]
    index = hm.MeasureIndex.from_embedding(rows, names=names, variables=given, path=tmp_path / "index")
    assert index.variables()["group"].tolist() == expected
    empty = hm.MeasureIndex.from_embedding([[1.0]], names=["first"], variables={"group": ["x"]})
    empty.add(rows, names=names, variables=given)
    assert empty.variables()["group"].tolist() == ["x", *expected]


def test_metadata_of_added_samples_is_aligned_too():
    built = hm.build_atlas(*cells(), variables={"group": ["x"] * 20})
    mapped = built.map(*fresh())
    larger = built.add(mapped, metadata(mapped.names[::-1]))
    assert list(larger.variables["group"][-2:]) == [f"of {name}" for name in mapped.names]
    for wrong in (metadata([*mapped.names, "nobody"]), metadata(mapped.names[:1]), metadata([mapped.names[0]] * 2)):
        with pytest.raises(InvalidInputError, match="'group' for each of the 2 samples, found"):
            built.add(mapped, wrong)


@pytest.mark.parametrize(
    "value", [b"x", [1], {"a": 1}, object(), 1j], ids=["bytes", "list", "dict", "object", "complex"]
)
def test_values_that_text_would_not_show_are_rejected(value):
    with pytest.raises(InvalidInputError, match="values of 'age'"):
        hm.build_atlas(*cells(), variables={"age": [value, *range(19)]})
    with pytest.raises(InvalidInputError, match="values of 'age'"):
        hm.MeasureIndex.from_embedding([[1.0]], variables={"age": [value]})


@pytest.mark.parametrize(
    "variables", [{1: [0] * 20, "1": [1] * 20}, {None: [0] * 20}, {np.nan: [0] * 20}, {"": [0] * 20}]
)
def test_names_of_variables_are_distinct_text(variables):
    with pytest.raises(InvalidInputError, match="name"):
        hm.build_atlas(*cells(), variables=variables)
    with pytest.raises(InvalidInputError, match="name"):
        hm.MeasureIndex.from_embedding(np.arange(20.0)[:, None], variables=variables)


def test_a_variable_that_is_missing_everywhere_takes_what_comes_later(tmp_path):
    built = hm.build_atlas(*cells(), variables={"age": [None] * 20})
    assert built.add(built.map(*fresh()), {"age": [41.5, 3]}).variables["age"][-2:] == (41.5, 3)
    for path in (None, tmp_path / "index"):
        index = hm.MeasureIndex.from_embedding([[1.0]], variables={"age": [None]}, path=path)
        index.add([[2.0]], variables={"age": [41.5]})
        with pytest.raises(hm.InvalidInputError, match="numbers for the variable 'age'"):
            index.add([[3.0]], variables={"age": ["old"]})
        np.testing.assert_array_equal(index.variables()["age"], [np.nan, 41.5])


@pytest.mark.parametrize("kind", ["float16", "longdouble", ">f8", "int8"])
def test_points_of_any_real_type_are_mapped_alike(kind):
    points, labels = cells()
    points = np.rint(points * 4).astype(kind)
    plain = points.astype(np.float64)
    one, other = hm.build_atlas(points, labels), hm.build_atlas(plain, labels)
    np.testing.assert_array_equal(one.embedding, other.embedding)
    np.testing.assert_array_equal(one.map(points, labels).embedding, other.map(plain, labels).embedding)


@pytest.mark.parametrize("name", [".DS_Store", ".nfs000123", "._data", "Thumbs.db"])
def test_files_that_a_system_leaves_are_no_damage(name, tmp_path):
    built = hm.build_atlas(*cells())
    built.save(tmp_path / "it.atlas")
    for folder in [path for path in (tmp_path / "it.atlas").rglob("*") if path.is_dir()] + [tmp_path / "it.atlas"]:
        (folder / name).write_text("left by a system")
    np.testing.assert_array_equal(hm.load(tmp_path / "it.atlas").embedding, built.embedding)
    hm.atlas.verify(tmp_path / "it.atlas")
    built.add(built.map(*fresh()), path=tmp_path / "it.atlas")


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800"])
def test_paths_that_name_no_place(path):
    built = hm.build_atlas(*cells())
    for door in (built.save, hm.load, hm.MeasureIndex.open, built.model.save):
        with pytest.raises(InvalidInputError, match="the path of"):
            door(path)
    with pytest.raises(InvalidInputError, match="the path of"):
        hm.MeasureIndex.from_embedding([[1.0]], path=path)
