"""Stores: the same bits after a round trip, and not one changed bit that goes unnoticed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from heatmover.errors import InvalidInputError
from heatmover.storage import Record, peek_store, read_store, store, verify_store, write_store
from heatmover.storage.record import matrix_record, texts_record

KIND = {"test": 1}
TYPES = sorted(store.TYPES)


def example() -> Record:
    rng = np.random.default_rng(0)
    matrix = sp.random_array((6, 5), density=0.4, format="csr", rng=rng)
    return Record(
        {"alpha": 0.1, "count": 3, "words": "µ and \ud800", "nothing": None, "list": [1, 2.5, "x"]},
        {"points": rng.normal(size=(4, 3)), "none": np.empty((0, 2), np.float32), "truths": np.array([True, False])},
        {
            "deep": Record(parts={"matrix": matrix_record(matrix)}),
            "names": texts_record(["a", "", "ü"]),
            "bare": Record(),
        },
    )


def saved(folder: Path, record: Record | None = None) -> Path:
    path = folder / "it.store"
    write_store(path, example() if record is None else record, schema="test", version=1)
    return path


def everything(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def forge(path: Path, change) -> None:
    """Change what the root says, and make its checksum fit."""
    root = json.loads((path / "zarr.json").read_bytes())
    head = root["attributes"]["heatmover"]
    del head["sha256"]
    change(head)
    text = json.dumps(head, sort_keys=True, separators=(",", ":"))
    head["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (path / "zarr.json").write_text(json.dumps(root, sort_keys=True, separators=(",", ":")))


def test_a_record_comes_back_to_the_bit(tmp_path):
    before = example()
    found = read_store(saved(tmp_path), KIND)
    assert (found.schema, found.version) == ("test", 1)
    assert dict(found.record.values) == dict(before.values)
    for name, array in before.arrays.items():
        there = found.record.arrays[name]
        assert (there.dtype, there.shape, there.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert there.flags.writeable
    matrix, there = before.part("deep").matrix("matrix"), found.record.part("deep").matrix("matrix")
    assert there.indices.dtype == matrix.indices.dtype
    assert (there != matrix).nnz == 0
    assert found.record.texts("names") == ("a", "", "ü")
    assert found.record.part("bare").values == {}


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_survives_special_values_included(tmp_path, dtype):
    kind = np.dtype(dtype)
    bits = np.random.default_rng(1).integers(0, 256, size=8 * 6, dtype=np.uint8)
    array = (bits % 2 if dtype == "bool" else bits).view(kind)[:6].reshape(2, 3)
    if kind.kind == "f":
        array = array.copy()
        array[0] = np.nan, -0.0, np.inf
    path = saved(tmp_path, Record(arrays={"values": array, "mirror": array.T, "big": array.astype(f">{kind.str[1:]}")}))
    found = read_store(path, KIND).record.arrays
    assert found["values"].tobytes() == array.tobytes()
    assert found["mirror"].tobytes() == array.T.tobytes()
    assert found["big"].dtype == kind
    assert found["big"].tobytes() == array.tobytes()


def test_the_same_record_gives_the_same_files(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    digests = {write_store(path, example(), schema="test", version=1) for path in (first, second)}
    assert len(digests) == 1
    assert everything(first) == everything(second)


def test_the_zarr_package_reads_a_store(tmp_path):
    zarr = pytest.importorskip("zarr")
    path = saved(tmp_path)
    group = zarr.open_group(path, mode="r")
    np.testing.assert_array_equal(group["points"][:], example().arrays["points"])
    np.testing.assert_array_equal(group["truths"][:], [True, False])
    assert group["none"].shape == (0, 2)
    np.testing.assert_array_equal(group["deep/matrix/data"][:], example().part("deep").matrix("matrix").data)
    assert group.attrs["heatmover"]["schema"] == "test"
    assert sorted(group.group_keys()) == ["bare", "deep", "names"]


def test_a_flipped_bit_of_a_small_store_is_found(tmp_path):
    path = saved(tmp_path, Record({"a": 1}, {"x": np.arange(2.0)}, {"p": Record({"b": "c"})}))
    for file in [file for file in path.rglob("*") if file.is_file()]:
        content = file.read_bytes()
        for place in range(0, len(content), 5):  # 5 and 8 have no common divisor: every bit of a byte takes its turn
            changed = bytearray(content)
            changed[place] ^= 1 << (place % 8)
            file.write_bytes(changed)
            with pytest.raises(InvalidInputError):
                read_store(path, KIND)
        file.write_bytes(content)
    read_store(path, KIND)


@pytest.mark.parametrize("look", [lambda path: read_store(path, KIND), lambda path: list(verify_store(path))])
def test_lost_cut_longer_swapped_and_foreign_files_are_found(tmp_path, look):
    path = saved(tmp_path)
    names = sorted(everything(path))
    for name in names:
        file = path / name
        content = file.read_bytes()
        for damage in (content[:-1], b"", content + b"\0"):
            file.write_bytes(damage)
            with pytest.raises(InvalidInputError):
                look(path)
        file.unlink()
        with pytest.raises(InvalidInputError):
            look(path)
        file.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_bytes(content)
        with pytest.raises(InvalidInputError):
            look(path)
        file.unlink()
        file.write_bytes(content)
    for first, second in pairwise(names):
        contents = (path / first).read_bytes(), (path / second).read_bytes()
        if contents[0] == contents[1]:
            continue
        (path / first).write_bytes(contents[1])
        (path / second).write_bytes(contents[0])
        with pytest.raises(InvalidInputError):
            look(path)
        (path / first).write_bytes(contents[0])
        (path / second).write_bytes(contents[1])
    (path / "points" / "extra").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="'points/extra' does not belong there"):
        look(path)
    (path / "points" / "extra").unlink()
    (path / "extra").mkdir()
    with pytest.raises(InvalidInputError, match="'extra' does not belong there"):
        look(path)
    (path / "extra").rmdir()
    look(path)


def test_random_corruptions_are_found(tmp_path):
    path, rng = saved(tmp_path), np.random.default_rng(0)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    for number in range(200):
        file = files[rng.integers(len(files))]
        before = file.read_bytes()
        first, last = sorted(rng.integers(0, len(before) + 1, size=2).tolist())
        part = before[first:last]
        new = [b"", part + part, bytes(len(part)), part[::-1]][number % 4]
        content = before[:first] + new + before[last:]
        file.write_bytes(content)
        if content != before:
            with pytest.raises(InvalidInputError):
                read_store(path, KIND)
        file.write_bytes(before)
    read_store(path, KIND)


def test_what_is_damaged_is_named(tmp_path):
    path = saved(tmp_path)
    chunk = path / "points" / "c" / "0" / "0"
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-8])
    with pytest.raises(InvalidInputError, match=r"Expected 96 bytes of the array 'points' in .*it.store', found 88; "):
        read_store(path, KIND)
    chunk.write_bytes(content[:-1] + b"\xff")
    with pytest.raises(
        InvalidInputError, match=r"fit the SHA-256 of the array 'points' in .*, found others; the store"
    ):
        read_store(path, KIND)
    chunk.unlink()
    with pytest.raises(InvalidInputError, match="found that 'points/c/0/0' is missing"):
        read_store(path, KIND)


def test_a_newer_version_and_another_kind_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "new"
    write_store(path, example(), schema="test", version=2)
    with pytest.raises(
        InvalidInputError, match=r"test in version 1 or older .*found version 2, written by heatmover .*"
    ):
        read_store(path, KIND)
    with pytest.raises(InvalidInputError, match=r"a store of kind other at .*, found 'test'"):
        read_store(path, {"other": 1})
    assert peek_store(path).version == 2


def test_what_is_no_store_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="found nothing there"):
        read_store(tmp_path / "nowhere", KIND)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInputError, match="found a file"):
        read_store(tmp_path / "file", KIND)
    with pytest.raises(InvalidInputError, match=r"a folder without zarr.json"):
        read_store(tmp_path, KIND)
    (tmp_path / "zarr.json").write_text('{"attributes":{},"node_type":"group","zarr_format":3}')
    with pytest.raises(InvalidInputError, match="something else"):
        read_store(tmp_path, KIND)
    for path in ("", "\0"):
        with pytest.raises(InvalidInputError, match="the path of a store"):
            read_store(path, KIND)


@pytest.mark.parametrize("name", ["..", "../x", "/etc", "a/b", "", "A", "zarr.json", "c\0", "x" * 64, "ü", "."])
def test_hostile_names_are_not_written(tmp_path, name):
    for record in (Record(arrays={name: np.ones(1)}), Record(parts={name: Record()})):
        with pytest.raises(InvalidInputError, match="names of lower-case letters"):
            write_store(tmp_path / "s", record, schema="test", version=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "", "points/", "a\0b", "/".join("abcdefghi")])
def test_hostile_names_in_a_store_whose_checksum_fits_are_refused(tmp_path, name):
    path = saved(tmp_path)

    def rename(head):
        head["arrays"][name] = head["arrays"].pop("points")

    forge(path, rename)
    with pytest.raises(InvalidInputError, match="names of arrays"):
        read_store(path, KIND)


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["arrays"]["points"].update(shape=[2**40, 2**7]),
        lambda head: head["arrays"]["points"].update(shape=[-1]),
        lambda head: head["arrays"]["points"].update(shape=[]),
        lambda head: head["arrays"]["points"].update(shape=[3, 4]),
        lambda head: head["arrays"]["points"].update(dtype="object"),
        lambda head: head["arrays"]["points"].update(dtype="int64"),
        lambda head: head["arrays"].update(points=7),
        lambda head: head.update(arrays=[]),
        lambda head: head.update(version=0),
        lambda head: head.update(version="1"),
        lambda head: head.pop("schema"),
        lambda head: head.update(document={"values": {}, "parts": {"../up": {"values": {}, "parts": {}}}}),
        lambda head: head.update(document={"values": [], "parts": {}}),
        lambda head: head["document"].pop("values"),
    ],
)
def test_a_forged_store_is_refused_before_its_arrays_are_made(tmp_path, change):
    path = saved(tmp_path)
    forge(path, change)
    with pytest.raises(InvalidInputError):
        read_store(path, KIND)


def test_deep_and_strange_json_is_refused(tmp_path):
    path = saved(tmp_path)
    for text in ('{"heatmover":' + "[" * 100_000, '"heatmover"', '{"attributes":{"heatmover":{"sha256":NaN}}}'):
        (path / "zarr.json").write_text(text)
        with pytest.raises(InvalidInputError):
            read_store(path, KIND)


@pytest.mark.parametrize(
    "record",
    [
        Record({"x": object()}),
        Record({"x": float("nan")}),
        Record(arrays={"x": np.array(["a", None], dtype=object)}),
        Record(arrays={"x": np.array(1.0)}),
        Record(arrays={"x": np.array(["text"])}),
        Record({"x": 1}, {"x": np.ones(1)}),
    ],
)
def test_what_a_store_cannot_hold_is_refused_and_nothing_is_left(tmp_path, record):
    with pytest.raises(InvalidInputError):
        write_store(tmp_path / "s", record, schema="test", version=1)
    assert list(tmp_path.iterdir()) == []


def test_only_stores_are_overwritten_and_only_when_asked(tmp_path):
    path = saved(tmp_path)
    before = everything(path)
    with pytest.raises(InvalidInputError, match="overwrite=True replaces it"):
        write_store(path, Record(), schema="test", version=1)
    assert everything(path) == before
    write_store(path, Record({"new": 1}), schema="test", version=1, overwrite=True)
    assert read_store(path, KIND).record.values == {"new": 1}
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "work.txt").write_text("dear")
    link = tmp_path / "link"
    link.symlink_to(path)
    for other in (folder, folder / "work.txt", link):
        with pytest.raises(InvalidInputError, match="something else"):
            write_store(other, Record(), schema="test", version=1, overwrite=True)
    assert (folder / "work.txt").read_text() == "dear"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["it.store", "link", "mine"]


def test_a_full_disk_leaves_nothing_and_the_old_store_as_it_was(tmp_path, monkeypatch):
    path = saved(tmp_path)
    before = everything(path)
    calls = iter(range(100))

    def full(descriptor: int) -> None:
        if next(calls) > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInputError, match="No space left on device; free some space"):
        write_store(path, example(), schema="test", version=1, overwrite=True)
    monkeypatch.undo()
    assert everything(path) == before
    assert [file.name for file in tmp_path.iterdir()] == ["it.store"]


@pytest.mark.parametrize("exchanging", [True, False])
def test_a_death_at_any_step_of_an_overwrite_leaves_the_old_store_or_the_new(tmp_path, deaths, monkeypatch, exchanging):
    path = saved(tmp_path)
    if not exchanging:  # as on Windows and on some network disks
        monkeypatch.setattr(store, "exchange", lambda one, other: False)

    def overwrite() -> None:
        write_store(path, Record({"new": 1}), schema="test", version=1, overwrite=True)

    steps = deaths(overwrite, (os, "fsync"), (store, "exchange"))
    found = [read_store(path, KIND).record.values.get("new") for _ in steps]
    assert len(found) > 3
    # The old one until the last step but one brings the new one.
    assert found == sorted(found, key=bool)
    assert found[0] is None
    assert found[-1] == 1
    assert read_store(path, KIND).record.values == {"new": 1}
    assert not list(tmp_path.glob("*.old"))


def test_a_store_that_was_moved_aside_is_not_lost_to_a_save_that_follows(tmp_path, monkeypatch):
    path = saved(tmp_path)
    monkeypatch.setattr(store, "exchange", lambda one, other: False)
    path.rename(store._kept(path))
    with pytest.raises(InvalidInputError, match="overwrite=True replaces it"):
        write_store(path, Record(), schema="test", version=1)
    read_store(path, KIND)


def test_a_rename_that_fails_brings_the_old_store_back(tmp_path, monkeypatch):
    path = saved(tmp_path)
    monkeypatch.setattr(store, "exchange", lambda one, other: False)
    before = everything(path)
    rename = Path.rename

    def broken(self, target):
        if self.name.endswith(".tmp"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(InvalidInputError, match="Input/output error"):
        write_store(path, Record(), schema="test", version=1, overwrite=True)
    monkeypatch.undo()
    assert everything(path) == before
    assert [file.name for file in tmp_path.iterdir()] == ["it.store"]


def test_an_exchange_that_fails_leaves_the_old_store(tmp_path, monkeypatch):
    path = saved(tmp_path)
    before = everything(path)

    def broken(one, other):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(store, "exchange", broken)
    with pytest.raises(InvalidInputError, match="Input/output error"):
        write_store(path, Record(), schema="test", version=1, overwrite=True)
    assert everything(path) == before
    assert [file.name for file in tmp_path.iterdir()] == ["it.store"]


def test_names_of_others_at_the_root_are_left_alone_if_told(tmp_path):
    path = saved(tmp_path)
    (path / "shards").mkdir()
    (path / "shards" / "manifest.json").write_text("{}")
    (path / ".lock").write_text("")
    with pytest.raises(InvalidInputError, match="does not belong"):
        read_store(path, KIND)
    assert read_store(path, KIND, beside={"shards", ".lock"}).record.number("alpha") == 0.1
    assert dict(verify_store(path, beside={"shards", ".lock"}))["points"] == 96
