"""Checkpoints: whole or not there, resumed without computing again, refused if anything changed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import heatmover as hm
from heatmover._base.storage import sealed, unsealed
from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError
from heatmover.study.scale import compare_cohort, landmarks, out_of_core
from heatmover.study.scale.stages import open_checkpoint

MANIFEST = {"heatmover": {"version": "1"}, "input": {"cells": 10}, "settings": {"landmarks": 5}}
LANDMARKS = 60


def opened(path, manifest=MANIFEST, *, resume=False):
    return open_checkpoint(path, manifest, resume=resume)


def test_what_was_saved_is_loaded_to_the_bit(tmp_path):
    arrays = {"a": np.array([[1.5, -0.0], [np.nan, 3]]), "empty": np.empty((0, 3), dtype=np.int32)}
    with opened(tmp_path / "store") as store:
        store.save("stage", 0, arrays)
    with opened(tmp_path / "store", resume=True) as store:
        found = store.load("stage", 0)
        assert store.load("stage", 1) is None
    assert {key: (array.dtype, array.shape, array.tobytes()) for key, array in found.items()} == {
        key: (array.dtype, array.shape, array.tobytes()) for key, array in arrays.items()
    }


def test_a_torn_piece_counts_as_not_finished(tmp_path):
    with opened(tmp_path / "store") as store:
        store.save("stage", 0, {"a": np.arange(1000)})
        store.save("stage", 1, {"a": np.arange(1000)})
        torn = tmp_path / "store/stage/000000.npz"
        torn.write_bytes(torn.read_bytes()[:-3])
        (tmp_path / "store/stage/000001.npz").write_text("")
        assert store.load("stage", 0) is None
        assert store.load("stage", 1) is None
        store.save("stage", 0, {"a": np.arange(3)})
        assert store.load("stage", 0)["a"].tolist() == [0, 1, 2]


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    with opened(tmp_path / "store"):
        pass
    (tmp_path / "store/.heatmover-1.tmp").mkdir()
    (tmp_path / "store/stage").mkdir()
    (tmp_path / "store/stage/.heatmover-2.tmp").touch()
    with opened(tmp_path / "store", resume=True):
        assert sorted(path.name for path in (tmp_path / "store").rglob("*")) == [".lock", "manifest.json", "stage"]


def test_no_space_left_is_told_and_nothing_earlier_is_lost(tmp_path, monkeypatch):
    with opened(tmp_path / "store") as store:
        store.save("stage", 0, {"a": np.arange(3)})

        def full(file, **arrays):
            file.write(b"PK")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(np, "savez", full)
            with pytest.raises(InvalidInputError, match=r"space to write .*No space left .*resume=True"):
                store.save("stage", 1, {"a": np.arange(3)})
        assert store.load("stage", 1) is None
        assert [path.name for path in (tmp_path / "store/stage").iterdir()] == ["000000.npz"]
    with opened(tmp_path / "store", resume=True) as store:
        assert store.load("stage", 0)["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": {"cells": 11}}, "input cells: 10 then, 11 now"),
        ({"settings": {"landmarks": 6}}, "settings landmarks: 5 then, 6 now"),
        ({"heatmover": {"version": "2"}}, "heatmover version: '1' then, '2' now"),
        ({"settings": {"landmarks": 5, "units": "geodesic"}}, "settings units: None then, 'geodesic' now"),
        ({"settings": {}}, "settings landmarks: 5 then, None now"),
    ],
)
def test_what_changed_is_told(tmp_path, change, message):
    with opened(tmp_path / "store"):
        pass
    with pytest.raises(InvalidInputError, match=message), opened(tmp_path / "store", MANIFEST | change, resume=True):
        pass


def test_a_store_that_is_there_needs_resume(tmp_path):
    with opened(tmp_path / "store"):
        pass
    with pytest.raises(InvalidInputError, match=r"does not exist yet, found .*resume=True"), opened(tmp_path / "store"):
        pass


def test_resume_begins_a_store_that_is_not_there(tmp_path):
    with opened(tmp_path / "store", resume=True) as store:
        store.save("a", 0, {"a": np.ones(1)})
    assert (tmp_path / "store/a/000000.npz").is_file()


@pytest.mark.parametrize("layout", [2, 99])
def test_a_store_of_another_layout_is_refused(tmp_path, layout):
    with opened(tmp_path / "store"):
        pass
    path = tmp_path / "store/manifest.json"
    if layout == 2:  # a group of zarr
        path.rename(tmp_path / "store/zarr.json")
    else:
        path.write_bytes(sealed({**unsealed(path.read_bytes()), "checkpoint": {"layout": layout}}))
    message = "a checkpoint of this version of heatmover, found something else .*the version that started it"
    with pytest.raises(InvalidInputError, match=message), opened(tmp_path / "store", resume=True):
        pass


@pytest.mark.parametrize("kind", ["folder", "file", "broken", "link"])
def test_something_else_at_the_place_is_refused(tmp_path, kind):
    place = tmp_path / "store"
    if kind == "file":
        place.write_text("precious")
    elif kind == "link":
        place.symlink_to("nowhere")
    else:
        place.mkdir()
        (place / "manifest.json").write_text("{") if kind == "broken" else (place / "precious").touch()
    before = sorted(tmp_path.rglob("*"))
    with (
        pytest.raises(InvalidInputError, match="of this version of heatmover, found something else"),
        opened(place, resume=True),
    ):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_a_store_in_use_is_refused(tmp_path):
    with opened(tmp_path / "store") as store:
        with pytest.raises(InvalidInputError, match="one writer at a time"), opened(tmp_path / "store", resume=True):
            pass
        store.save("a", 0, {"a": np.ones(1)})


def test_no_folder_for_it_is_told_first(tmp_path):
    with pytest.raises(InvalidInputError, match="No such file or directory"), opened(tmp_path / "no" / "store"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def whole(cohort):
    return compare_cohort(cohort, landmarks=LANDMARKS)


class Interrupt(Exception):
    pass


class StopAt:
    """Progress that ends the run at some advance, as an interrupt would."""

    def __init__(self, count):
        self.left = count

    def stage(self, name, total):
        pass

    def advance(self, steps=1):
        self.left -= 1
        if self.left == 0:
            raise Interrupt


def count_calls(monkeypatch, calls):
    for name in ("draw_from_piece", "count_piece", "k_means"):
        original = getattr(landmarks, name)

        def counted(*args, original=original, name=name, **options):
            calls.append(name)
            return original(*args, **options)

        monkeypatch.setattr(landmarks, name, counted)


@pytest.mark.parametrize("stop", [1, 9, 14, 20])
def test_a_run_that_was_interrupted_goes_on_to_the_same_result(
    cohort, whole, tmp_path, small_pieces, monkeypatch, stop
):
    small_pieces(500)
    place = tmp_path / "checkpoint.zarr"
    calls = []
    count_calls(monkeypatch, calls)
    with pytest.raises(Interrupt):
        compare_cohort(cohort, landmarks=LANDMARKS, checkpoint=place, progress=StopAt(stop), n_jobs=1)
    small_pieces(500, 100)  # another budget of memory, and more threads
    result = compare_cohort(cohort, landmarks=LANDMARKS, checkpoint=place, resume=True, n_jobs=2)
    np.testing.assert_array_equal(result.distances, whole.distances)
    assert result.landmark_agreement == whole.landmark_agreement
    # Eight pieces, each read and counted once; a task that had begun when the other stopped may be done twice.
    assert 17 <= len(calls) <= 18
    calls.clear()
    again = compare_cohort(cohort, landmarks=LANDMARKS, checkpoint=place, resume=True)
    np.testing.assert_array_equal(again.distances, whole.distances)
    assert calls == []


def test_a_changed_input_or_setting_is_refused(file, cohort, tmp_path):
    copy = tmp_path / "cells.parquet"
    shutil.copy(file, copy)
    cohort = read_cohort(copy, sample_key="sample")
    place = tmp_path / "checkpoint.zarr"
    options = {"landmarks": LANDMARKS, "checkpoint": place, "resume": True}
    compare_cohort(cohort, **options)
    for change, message in [
        ({"landmarks": 61}, "settings landmarks: 60 then, 61 now"),
        ({"random_state": 1}, "settings random_state: 0 then, 1 now"),
        ({"model": hm.DiffusionEMD(alpha=0.4)}, "settings model alpha: 0.5 then, 0.4 now"),
        ({"n_neighbors": 20}, "settings n_neighbors"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            compare_cohort(cohort, **options | change)
    with pytest.raises(InvalidInputError, match="input projection"):
        compare_cohort(read_cohort(copy, sample_key="sample", standardize=True), **options)
    # As many bytes, another content.
    content = bytearray(copy.read_bytes())
    place_of_value = content.find(cohort.points()[2000, 2].tobytes())
    content[place_of_value] ^= 1
    copy.write_bytes(content)
    with pytest.raises(InvalidInputError, match="input content"):
        compare_cohort(read_cohort(copy, sample_key="sample"), **options)


def test_a_large_input_is_told_by_sizes_and_times(cohort, file, monkeypatch):

    monkeypatch.setattr(out_of_core, "CHECKSUM_UP_TO", 0)
    before = out_of_core.describe_input(cohort)["content"]
    assert before.startswith("sizes and times")
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + 1))
    assert out_of_core.describe_input(cohort)["content"] != before


def two_stores(tmp_path):
    """Two stores of equal manifests, with two pieces each, no two of them alike."""
    for number, name in enumerate(("store", "other")):
        with opened(tmp_path / name) as store:
            for place, piece in enumerate((("first", 0), ("first", 1), ("second", 0))):
                store.save(*piece, {"a": np.arange(3) + 10 * number + place})


@pytest.mark.parametrize("source", ["first/000001.npz", "second/000000.npz"])
def test_a_piece_that_belongs_elsewhere_counts_as_not_finished(tmp_path, source):
    two_stores(tmp_path)
    shutil.copy(tmp_path / "store" / source, tmp_path / "store/first/000000.npz")
    with opened(tmp_path / "store", resume=True) as store:
        assert store.load("first", 0) is None
        assert store.load(*(("first", 1) if "second" in source else ("second", 0))) is not None
        store.save("first", 0, {"a": np.arange(2)})
        assert store.load("first", 0)["a"].tolist() == [0, 1]


def test_pieces_of_another_run_are_found_though_all_of_them_moved(tmp_path):
    with opened(tmp_path / "other", MANIFEST | {"settings": {"landmarks": 6}}) as store:
        store.save("first", 0, {"a": np.arange(3)})
    with opened(tmp_path / "store"):
        pass
    shutil.move(tmp_path / "other/first", tmp_path / "store/first")
    with opened(tmp_path / "store", resume=True) as store:
        assert store.load("first", 0) is None


@pytest.mark.parametrize("text", ["null", "[]", '"x"', "{}", '{"content": null}', "[" * 100_000, "\x00"])
def test_a_description_that_says_nothing_is_refused(tmp_path, text):
    two_stores(tmp_path)
    (tmp_path / "store/manifest.json").write_text(text)
    with (
        pytest.raises(InvalidInputError, match="of this version of heatmover, found something else"),
        opened(tmp_path / "store", resume=True),
    ):
        pass


def test_a_damaged_shape_does_not_ask_for_all_memory(tmp_path):
    two_stores(tmp_path)
    path = tmp_path / "store/first/000000.npz"
    content = path.read_bytes()
    assert b"'shape': (3,), }      " in content
    path.write_bytes(content.replace(b"'shape': (3,), }             ", b"'shape': (3000000000000,), } "))
    with opened(tmp_path / "store", resume=True) as store:
        assert store.load("first", 0) is None


def test_any_byte_that_changes_is_noticed(tmp_path):
    """One value of one byte at a time, in every file of a piece and of the store."""
    rng = np.random.default_rng(0)
    with opened(tmp_path / "store") as store:
        store.save("first", 0, {"a": np.arange(40.0), "b": np.zeros((2, 3), np.int32)})
    files = [path for path in sorted((tmp_path / "store").rglob("*")) if path.is_file() and path.name != ".lock"]
    for number in range(40):
        path = files[number % len(files)]
        content = bytearray(path.read_bytes())
        place = int(rng.integers(len(content)))
        damaged = bytearray(content)
        damaged[place] = (damaged[place] + int(rng.integers(1, 256))) % 256
        path.write_bytes(damaged)
        try:
            with opened(tmp_path / "store", resume=True) as store:
                found = store.load("first", 0)
        except InvalidInputError:
            found = None
        path.parent.mkdir(parents=True, exist_ok=True)
        if found is not None:  # a space, or a word that says nothing of the values
            assert found["a"].tobytes() == np.arange(40.0).tobytes()
            assert found["b"].tobytes() == bytes(24)
        shutil.rmtree(tmp_path / "store")
        with opened(tmp_path / "store") as store:
            store.save("first", 0, {"a": np.arange(40.0), "b": np.zeros((2, 3), np.int32)})


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_something_else_with_the_name_of_the_lock(tmp_path, kind):
    two_stores(tmp_path)
    precious, lock = tmp_path / "precious", tmp_path / "store/.lock"
    precious.write_text("precious")
    lock.unlink()
    lock.mkdir() if kind == "folder" else lock.symlink_to(precious) if kind == "link" else os.mkfifo(lock)
    with (
        pytest.raises(InvalidInputError, match=r"to write to .*, found (Not a plain|Is a dir|Too many)"),
        opened(tmp_path / "store", resume=True),
    ):
        pass
    assert precious.read_text() == "precious"


def test_a_store_of_which_only_the_folder_was_made_is_begun(tmp_path):
    (tmp_path / "store/.heatmover-1.tmp").mkdir(parents=True)
    (tmp_path / "store/.lock").touch()
    with opened(tmp_path / "store", resume=True) as store:
        store.save("a", 0, {"a": np.ones(1)})
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [".lock", "a", "manifest.json"]


def test_paths_that_will_not_do(tmp_path):
    for path, message in [
        ("", "the path of a checkpoint, found ''"),
        (tmp_path / ("x" * 300), "to write to .*, found File name too long"),
    ]:
        with pytest.raises(InvalidInputError, match=message), opened(path, resume=True):
            pass


def test_a_run_in_this_process_imports_no_dask(file, tmp_path):
    code = (
        "import sys\n"
        "from heatmover import scale\n"
        "cohort = scale.read_cohort(sys.argv[1], sample_key='sample')\n"
        "scale.compare_cohort(cohort, landmarks=60, checkpoint=sys.argv[2])\n"
        "print(sorted({'dask', 'distributed'} & {name.split('.')[0] for name in sys.modules}))\n"
    )
    command = [sys.executable, "-c", code, str(file), str(tmp_path / "run")]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert run.stdout == "[]\n"
