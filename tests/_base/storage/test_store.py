"""Stores: the same bits after a round trip, and not one changed bit that goes unnoticed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import heatmover as hm
from heatmover._base.storage import Record, Store, sealed, unsealed, writing
from heatmover._base.storage.record import matrix_record, texts_record
from heatmover._base.storage.store import explained
from heatmover.errors import InvalidInputError

KIND = {"test": 1}
TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


def write(path: Path | str, record: Record, *, version: int = 1, overwrite: bool = False) -> Store:
    return Store.create(path, "test", version, [record.part_of_store()], overwrite=overwrite)


def read(path: Path | str) -> Record:
    return Record.from_store(Store.open(path, KIND))


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
    write(path, example() if record is None else record)
    return path


def everything(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != ".lock"
    }


def forge(path: Path, change) -> None:
    """Change what the manifest says, and make its checksum fit."""
    content = json.loads((path / "manifest.json").read_bytes())["content"]
    change(content)
    (path / "manifest.json").write_bytes(sealed(content))


def test_a_record_comes_back_to_the_bit(tmp_path):
    before = example()
    found = read(saved(tmp_path))
    assert dict(found.values) == dict(before.values)
    for name, array in before.arrays.items():
        there = found.arrays[name]
        assert (there.dtype, there.shape, there.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert there.flags.writeable
    matrix, there = before.part("deep").matrix("matrix"), found.part("deep").matrix("matrix")
    assert there.indices.dtype == matrix.indices.dtype
    assert (there != matrix).nnz == 0
    assert found.texts("names") == ("a", "", "ü")
    assert found.part("bare").values == {}


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_survives_special_values_included(tmp_path, dtype):
    kind = np.dtype(dtype)
    bits = np.random.default_rng(1).integers(0, 256, size=8 * 6, dtype=np.uint8)
    array = (bits % 2 if dtype == "bool" else bits).view(kind)[:6].reshape(2, 3)
    if kind.kind == "f":
        array = array.copy()
        array[0] = np.nan, -0.0, np.inf
    path = saved(tmp_path, Record(arrays={"values": array, "mirror": array.T, "big": array.astype(f">{kind.str[1:]}")}))
    found = read(path).arrays
    assert found["values"].tobytes() == array.tobytes()
    assert found["mirror"].tobytes() == array.T.tobytes()
    assert found["big"].dtype == kind
    assert found["big"].tobytes() == array.tobytes()


def test_the_same_record_gives_the_same_files(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for path in (first, second):
        write(path, example())
    assert everything(first) == everything(second)


def test_the_zarr_package_reads_a_store(tmp_path):
    group = zarr.open_group(saved(tmp_path), mode="r")["part000001"]
    np.testing.assert_array_equal(group["points"][:], example().arrays["points"])
    np.testing.assert_array_equal(group["truths"][:], [True, False])
    assert group["none"].shape == (0, 2)
    np.testing.assert_array_equal(group["deep/matrix/data"][:], example().part("deep").matrix("matrix").data)


def test_a_flipped_bit_of_a_small_store_is_found(tmp_path):
    path = saved(tmp_path, Record({"a": 1}, {"x": np.arange(2.0)}, {"p": Record({"b": "c"})}))
    for file in [path / name for name in everything(path)]:
        content = file.read_bytes()
        for place in range(0, len(content), 5):  # 5 and 8 have no common divisor: every bit of a byte takes its turn
            changed = bytearray(content)
            changed[place] ^= 1 << (place % 8)
            file.write_bytes(changed)
            with pytest.raises(InvalidInputError):
                read(path)
        file.write_bytes(content)
    read(path)


@pytest.mark.parametrize("look", [read, lambda path: Store.open(path).verify()])
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
    (path / "part000001" / ".DS_Store").write_bytes(b"")  # as systems leave it
    look(path)
    for folder in (path / "part000001" / "points", path):
        (folder / "extra").write_bytes(b"")
        with pytest.raises(InvalidInputError, match="the manifest does not name it"):
            look(path)
        (folder / "extra").unlink()


def test_random_corruptions_are_found(tmp_path):
    path, rng = saved(tmp_path), np.random.default_rng(0)
    files = [path / name for name in sorted(everything(path))]
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
                read(path)
        file.write_bytes(before)
    read(path)


def test_what_is_damaged_is_named(tmp_path):
    path = saved(tmp_path)
    chunk = path / "part000001" / "points" / "c" / "0" / "0"
    content = chunk.read_bytes()
    for new, said in ((content[:-8], "88 bytes instead of 96"), (content[:-1] + b"\xff", "its SHA-256")):
        chunk.write_bytes(new)
        with pytest.raises(
            InvalidInputError, match=rf"'part000001/points/c/0/0' cannot be used \({said}.*; it is damag"
        ):
            read(path)
    chunk.unlink()
    with pytest.raises(InvalidInputError, match="No such file"):
        read(path)


def test_a_newer_version_and_another_kind_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "new"
    write(path, example(), version=2)
    with pytest.raises(
        InvalidInputError, match=r"test in version 1 or older .*found version 2, written by heatmover .*"
    ):
        read(path)
    with pytest.raises(InvalidInputError, match=r"a store of kind other at .*, found 'test'"):
        Store.open(path, {"other": 1})
    assert Store.open(path).manifest.version == 2


@pytest.mark.parametrize("layout", [3, 5])
@pytest.mark.parametrize("kind", ["model", "atlas", "index"])
def test_a_store_of_another_layout_is_built_again(tmp_path, kind, layout):
    """Not restored from a copy: it is intact."""
    path, data = tmp_path / kind, hm.datasets.cohort(4, cells_per_sample=20)
    atlas = hm.build_atlas(data.points, data.labels, n_neighbors=5)
    if kind == "index":
        hm.MeasureIndex.from_embedding(atlas.embedding, path=path)
    else:
        (atlas if kind == "atlas" else atlas.model).save(path)
    forge(path, lambda content: content.update(layout=layout, entries_of_that_version=[]))
    said = f"^Expected a store of layout 4 at .*, found layout {layout}, written by another version .*; save or build"
    with pytest.raises(InvalidInputError, match=said):
        hm.MeasureIndex.open(path) if kind == "index" else hm.load(path)


def test_what_is_no_store_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="found nothing there"):
        read(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInputError, match="found a file"):
        read(tmp_path / "file")
    with pytest.raises(InvalidInputError, match=r"no manifest\.json in it"):
        read(tmp_path)
    (tmp_path / "zarr.json").write_text('{"attributes":{},"node_type":"group","zarr_format":3}')
    with pytest.raises(InvalidInputError, match="a store from an older heatmover must be created again"):
        read(tmp_path)
    for path in ("", "\0"):
        with pytest.raises(InvalidInputError, match="the path of a store"):
            read(path)


@pytest.mark.parametrize("name", ["..", "../x", "/etc", "", "A", "zarr.json", "c\0", "x" * 64, "ü", "."])
def test_hostile_names_are_not_written(tmp_path, name):
    for record in (Record(arrays={name: np.ones(1)}), Record(parts={name: Record(arrays={"a": np.ones(1)})})):
        with pytest.raises(InvalidInputError, match="names of lower-case letters"):
            write(tmp_path / "s", record)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(version=0),
        lambda content: content.update(version="1"),
        lambda content: content.pop("kind"),
        lambda content: content["parts"][0]["values"].clear(),
        lambda content: content["parts"][0]["values"].update(record=7),
        lambda content: content["parts"][0]["values"]["record"].pop("values"),
        lambda content: content["parts"][0]["values"]["record"]["arrays"].append("nowhere"),
        lambda content: content["parts"][0]["arrays"].append("nowhere"),
        lambda content: content["parts"][0]["arrays"].append("/etc"),
    ],
)
def test_a_forged_store_is_refused(tmp_path, change):
    path = saved(tmp_path)
    forge(path, change)
    with pytest.raises(InvalidInputError):
        read(path)


def test_deep_and_strange_json_is_refused(tmp_path):
    path = saved(tmp_path)
    for text in ('{"heatmover":' + "[" * 100_000, '"heatmover"', '{"attributes":{"heatmover":{"sha256":NaN}}}'):
        (path / "manifest.json").write_text(text)
        with pytest.raises(InvalidInputError):
            read(path)


@pytest.mark.parametrize(
    "record",
    [
        Record({"x": object()}),
        Record({"x": float("nan")}),
        Record(arrays={"x": np.array(["a", None], dtype=object)}),
        Record(arrays={"x": np.array(1.0)}),
        Record(arrays={"x": np.array(["text"])}),
    ],
)
def test_what_a_store_cannot_hold_is_refused_and_nothing_is_left(tmp_path, record):
    with pytest.raises(InvalidInputError):
        write(tmp_path / "s", record)
    assert list(tmp_path.iterdir()) == []


def test_only_stores_are_overwritten_and_only_when_asked(tmp_path):
    path = saved(tmp_path)
    before = everything(path)
    with pytest.raises(InvalidInputError, match="overwrite=True replaces it"):
        write(path, Record())
    assert everything(path) == before
    write(path, Record({"new": 1}), overwrite=True)
    assert read(path).values == {"new": 1}
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "work.txt").write_text("dear")
    link = tmp_path / "link"
    link.symlink_to(path)
    for other in (folder, folder / "work.txt", link):
        with pytest.raises(InvalidInputError, match="something else"):
            write(other, Record(), overwrite=True)
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
    with pytest.raises(InvalidInputError, match="No space left on device; free some"):
        write(path, example(), overwrite=True)
    monkeypatch.undo()
    assert everything(path) == before
    assert [file.name for file in tmp_path.iterdir()] == ["it.store"]


def test_a_death_at_any_step_of_an_overwrite_leaves_the_old_store_or_the_new(tmp_path, deaths):
    path = saved(tmp_path)
    steps = deaths(lambda: write(path, Record({"new": 1}), overwrite=True), (os, "fsync"))
    found = [read(path).values.get("new") for _ in steps]
    assert len(found) > 3
    # The old one until the last step but one brings the new one.
    assert found == sorted(found, key=bool)
    assert found[0] is None
    assert found[-1] == 1
    write(path, Record({"new": 2}), overwrite=True)
    assert read(path).values == {"new": 2}
    assert len(list(path.glob("part*"))) == 1


def test_a_sealed_document_is_itself_or_nothing():
    content = {"a": [1, "☃"], "b": None}
    data = sealed(content)
    assert unsealed(data) == content
    for place in range(len(data)):
        with pytest.raises(ValueError):
            unsealed(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


HOLD = """
import pathlib, sys, time
from heatmover._base.storage import writing
with writing(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_told(tmp_path):
    with (
        writing(tmp_path),
        pytest.raises(InvalidInputError, match="one writer at a time, found that another"),
        writing(tmp_path),
    ):
        pass
    with writing(tmp_path):  # and afterwards it is free
        pass


def test_a_killed_writer_blocks_nobody(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InvalidInputError, match="another process is writing"), writing(tmp_path):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with writing(tmp_path):
        pass


def test_an_error_inside_lets_go(tmp_path):
    with pytest.raises(ZeroDivisionError), writing(tmp_path):
        raise ZeroDivisionError
    with writing(tmp_path):
        pass


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(InvalidInputError, match="to write to"), writing(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSPC, "as the system says; free some space"),
        (errno.EDQUOT, "space to write"),
        (errno.EROFS, "permission to write to"),
        (errno.EACCES, "ask for permission"),
        (errno.EIO, "choose another path"),
    ],
)
def test_why_something_cannot_be_written(code, said):
    with pytest.raises(InvalidInputError, match=said), explained(Path("place")):
        raise OSError(code, "as the system says")
