"""Samples in a store: what was appended is there, to the bit, or an error says what is wrong with it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from heatmover._base.storage import Samples, Store, Table, samples, sealed
from heatmover.errors import InvalidInputError

ROWS = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
NAMES = ["a", "b", "ä ☃", "../../etc", "e" * 1000, "line\nbreak", "0"]
VARIABLES = {"age": [1, 2.5, None, float("nan"), -3, 0, 2**40], "sex": ["m", None, "", "f", "☃", "m", "m"]}


def table(part: slice = slice(None)) -> Table:
    columns = {name: values[part] for name, values in VARIABLES.items()}
    return Table.checked(ROWS[part], NAMES[part], columns)


def create(folder: Path, given: Table, model: str | None = None) -> Samples:
    schema = given.schema(model)
    return Samples(Store.create(folder, "rows", 1, given.parts(schema), values=schema.values()))


def opened(folder: Path) -> Samples:
    return Samples(Store.open(folder, {"rows": 1}))


@pytest.fixture
def store(tmp_path) -> Samples:
    """Two generations of four and three samples."""
    return create(tmp_path / "s", table(slice(0, 4)), "model").append(table(slice(4, 7)))


def all_rows(found: Samples) -> np.ndarray:
    return np.vstack([block for _, block in found.blocks()])


def all_of(folder: Path) -> tuple:
    found = opened(folder)
    found.store.check()
    return everything(found)


def everything(found: Samples) -> tuple:
    """All that a reader can see, in values that compare."""
    columns = {name: [None if v != v else v for v in values] for name, values in found.variables.items()}
    return found.schema, found.store.manifest.generation, list(found.names), columns, all_rows(found).tobytes()


def test_what_was_written_is_read(store):
    found = opened(store.store.folder)
    assert (found.n_rows, found.store.manifest.generation, found.schema.model) == (7, 2, "model")
    assert list(found.names) == NAMES
    assert found.variables == {"age": (1, 2.5, None, None, -3, 0, 2**40), "sex": tuple(VARIABLES["sex"])}
    assert all_rows(found).tobytes() == found.rows().tobytes() == ROWS.tobytes()
    np.testing.assert_array_equal(found.take(np.array([6, 0, 4, 0])), ROWS[[6, 0, 4, 0]])
    assert [first for first, _ in found.blocks(start=4)] == [4]
    found.store.verify()


def test_double_precision_keeps_its_bits(tmp_path):
    rows = np.random.default_rng(1).normal(size=(4, 2))
    create(tmp_path / "s", Table.checked(rows, "abcd"))
    assert all_rows(opened(tmp_path / "s")).tobytes() == rows.tobytes()


def test_any_reader_of_zarr_reads_it(store):
    group = zarr.open_group(store.store.folder, mode="r")
    np.testing.assert_array_equal(group["part000001/rows"][:], ROWS[:4])
    table = json.loads(group["part000002/table"][:].tobytes())
    assert table["names"] == NAMES[4:]
    assert table["variables"] == [VARIABLES["age"][4:], VARIABLES["sex"][4:]]


def test_many_rows_make_several_parts_and_one_generation(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "PART_BYTES", 24)  # two rows
    made = create(tmp_path / "s", table())
    assert made.store.manifest.generation == 1
    assert len(list((tmp_path / "s").glob("part*"))) == 4
    assert all_rows(made).tobytes() == ROWS.tobytes()
    assert list(made.names) == NAMES


def test_a_snapshot_does_not_see_what_came_later(tmp_path):
    one = create(tmp_path / "s", table(slice(0, 4)))
    two = one.append(table(slice(4, 7)))
    assert (one.n_rows, two.n_rows) == (4, 7)
    assert list(one.names) == NAMES[:4]
    assert all_rows(one).tobytes() == ROWS[:4].tobytes()
    assert one.refresh().n_rows == 7
    assert two.refresh() is two


def test_an_older_handle_appends_to_the_latest(tmp_path):
    one = create(tmp_path / "s", table(slice(0, 2)))
    other = opened(tmp_path / "s")
    one.append(table(slice(2, 4)))
    assert list(other.append(table(slice(4, 7))).names) == NAMES


def test_what_does_not_fit_is_refused_and_nothing_changes(store):
    before = everything(opened(store.store.folder))
    wrong = [
        ("distinct names", lambda: Table.checked(ROWS[:2], ["x", "x"], {"age": [1, 2], "sex": [None, "m"]})),
        ("new sample names", lambda: table(slice(0, 1))),
        ("one name per row", lambda: Table.checked(ROWS[:2], ["x"])),
        ("a name for a sample, found an empty", lambda: Table.checked(ROWS[:1], [""])),
        ("at most 1,000 characters, found 1,001", lambda: Table.checked(ROWS[:1], ["x" * 1001])),
        ("without NUL", lambda: Table.checked(ROWS[:1], ["x\0"])),
        ("unpaired surrogates", lambda: Table.checked(ROWS[:1], ["\ud800"])),
        ("unpaired surrogates", lambda: Table.checked(ROWS[:1], ["x"], {"age": [1], "sex": ["\ud800"]})),
        ("3 features", lambda: Table.checked(ROWS[:1, :2], ["x"], {"age": [1], "sex": ["m"]})),
        ("sample metadata of the store", lambda: Table.checked(ROWS[:1], ["x"], {"age": [1]})),
        ("'age': one value per sample", lambda: Table.checked(ROWS[:1], ["x"], {"age": [1, 2], "sex": ["m"]})),
        ("NaN", lambda: Table.checked(ROWS[:1] * np.nan, ["x"], {"age": [1], "sex": ["m"]})),
    ]
    for said, made in wrong:
        with pytest.raises(InvalidInputError, match=said):
            store.append(made())
    assert everything(opened(store.store.folder)) == before
    assert len(list(store.store.folder.glob("part*"))) == 2


def test_values_become_what_json_keeps():
    given = [2**53 + 1, np.float32(0.5), np.bool_(True), np.datetime64("2024-01-02", "ns"), date(2024, 1, 2), np.nan]
    plain = Table.checked(np.zeros((6, 1)), "abcdef", {"x": given}).variables["x"]
    assert plain == (2**53 + 1, 0.5, True, "2024-01-02T00:00:00.000000000", "2024-01-02", None)


def test_values_and_counts_come_back_as_they_were(tmp_path):
    dense = np.array([[0, 2, 0, 1], [3, 0, 0, 0], [1, 1, 1, 2**52]], dtype=float)
    given = {"mixed": (True, 1, None), "odd": ("1", 1.0, "\u2603")}
    tables = [
        Table.checked(
            ROWS[part], NAMES[part], {name: values[part] for name, values in given.items()},
            counts=sp.csr_array(dense[part]),
        )
        for part in (slice(0, 2), slice(2, 3))
    ]  # fmt: skip
    made = create(tmp_path / "s", tables[0]).append(tables[1])
    for found in (made, opened(tmp_path / "s")):
        assert repr(found.variables) == repr(
            {name: tuple(values) for name, values in given.items()}
        )  # a truth is a truth, and 1.0 is not 1
        np.testing.assert_array_equal(found.table().counts.toarray(), dense)
    sizes = made.store.verify()
    assert sizes["part000001/count_cells/c/0"] == 8 * 3


@pytest.mark.parametrize(
    ("values", "counts", "said"),
    [
        ([[1]], [[1, 0]], "booleans, finite numbers, text or dates"),
        ([float("inf")], [[1, 0]], "booleans, finite numbers, text or dates"),
        (["a", "b"], [[1, 0]], "'x': one value per sample"),
        (["\ud800"], [[1, 0]], "unpaired surrogates"),
        ([1], [[0, 0]], "whole numbers of cells"),
        ([1], [[0.5, 1]], "whole numbers of cells"),
        ([1], [[-1, 1]], "whole numbers of cells"),
        ([1], [[1, np.nan]], "whole numbers of cells"),
        ([1], [[1, 0], [1, 0]], "whole numbers of cells"),
    ],
)
def test_what_is_no_value_or_count_is_refused(values, counts, said):
    with pytest.raises(InvalidInputError, match=said):
        Table.checked(ROWS[:1], ["a"], {"x": values}, counts=sp.csr_array(np.array(counts, dtype=float)))


def test_counts_belong_to_a_store_of_counts(store, tmp_path):
    counts = sp.csr_array(np.ones((1, 2)))
    with pytest.raises(
        InvalidInputError, match="samples without cell counts, as in the store, found cell counts at 2 nodes"
    ):
        store.append(Table.checked(ROWS[:1], ["x"], {"age": [1], "sex": ["m"]}, counts=counts))
    of_three = create(tmp_path / "t", Table.checked(ROWS[1:2], ["y"], counts=sp.csr_array(np.ones((1, 3)))))
    with pytest.raises(
        InvalidInputError, match="cell counts at 3 nodes, as in the store, found cell counts at 2 nodes"
    ):
        of_three.append(Table.checked(ROWS[:1], ["x"], counts=counts))


def test_a_place_that_is_taken(tmp_path, store):
    with pytest.raises(InvalidInputError, match="an unused path"):
        create(store.store.folder, table())
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="an unused path"):
        create(tmp_path / "file", table())


def test_no_store_there(tmp_path):
    with pytest.raises(InvalidInputError, match=r"a heatmover store, .*, found no manifest\.json"):
        opened(tmp_path)


def test_another_store_in_its_place(store):
    shutil.rmtree(store.store.folder)
    create(store.store.folder, table(slice(1, 7)))
    with pytest.raises(InvalidInputError, match=r"a later generation of the store at .*, found a different store"):
        store.refresh()


def test_a_death_at_any_step_of_an_append_loses_nothing(tmp_path, deaths):
    first = create(tmp_path / "s", table(slice(0, 4)))
    before, survived = everything(first), 0
    for _ in deaths(lambda: first.append(table(slice(4, 7))), (os, "fsync")):
        found = opened(first.store.folder)
        found.store.verify()
        if found.store.manifest.generation == 2:
            break
        assert everything(found) == before
        survived += 1
    # It died after the manifest had taken its place: the append is there, all of it.
    assert survived >= 20
    assert list(found.names) == NAMES
    assert all_rows(found).tobytes() == ROWS.tobytes()
    found.append(Table.checked(ROWS[:1], ["next"], {"age": [1], "sex": ["m"]}))
    left = sorted(path.name for path in first.store.folder.glob("part*"))
    assert left == ["part000001", "part000002", "part000003"]  # the next writer cleared up


APPEND = """
import sys
import numpy as np
from heatmover._base.storage import Samples, Store, Table
store = Samples(Store.open(sys.argv[1]))
while True:
    first = store.n_rows
    names = [f"n{row}" for row in range(first, first + 5)]
    store = store.append(Table.checked(np.full((5, 2), first, dtype=np.float32), names))
    print(store.n_rows, flush=True)
"""


def test_killed_processes_lose_nothing_that_was_committed(tmp_path):
    rows = np.zeros((5, 2), dtype=np.float32)
    create(tmp_path / "s", Table.checked(rows, [f"n{row}" for row in range(5)]))
    for kill in range(5):
        child = subprocess.Popen([sys.executable, "-c", APPEND, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        told = [int(child.stdout.readline()) for _ in range(1 + kill % 2)]
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
        told += [int(line) for line in rest.splitlines()]
        found = opened(tmp_path / "s")
        found.store.verify()
        assert found.n_rows >= told[-1]
        assert list(found.names) == [f"n{row}" for row in range(found.n_rows)]
        expected = np.repeat(np.arange(0, found.n_rows, 5), 5).astype(np.float32)
        np.testing.assert_array_equal(all_rows(found), np.column_stack([expected, expected]))


def test_a_full_disk_changes_nothing(store, monkeypatch):
    before = everything(opened(store.store.folder))
    left = [7]

    def full(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInputError, match=r"space to write to .*everything written before is kept"):
        store.append(Table.checked(ROWS[:1], ["x"], {"age": [1], "sex": ["m"]}))
    with pytest.raises(InvalidInputError, match="No space left"):
        create(store.store.folder.with_name("t"), table())
    assert everything(opened(store.store.folder)) == before
    assert sorted(path.name for path in store.store.folder.glob("part*")) == ["part000001", "part000002"]
    assert sorted(path.name for path in store.store.folder.parent.iterdir()) == ["s"]


def test_a_read_only_store_is_read_and_not_written(store, monkeypatch):
    real = os.open

    def read_only(path, flags, *args, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    found = opened(store.store.folder)
    assert everything(found)[2] == NAMES
    with pytest.raises(InvalidInputError, match="permission to write to"):
        found.append(Table.checked(ROWS[:1], ["x"], {"age": [1], "sex": ["m"]}))


def damaged_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


@pytest.mark.parametrize("how", ["flip", "cut", "longer", "delete", "swap", "link", "folder", "empty"])
def test_no_damage_is_read_silently(store, how):
    rng = np.random.default_rng(2)
    before, files = everything(opened(store.store.folder)), damaged_files(store.store.folder)
    elsewhere = store.store.folder.with_name("elsewhere")
    elsewhere.write_bytes(b"secret")
    for path in files:
        whole = path.read_bytes()
        damaged = damage(path, whole, how, files, rng, elsewhere)
        if damaged == whole:
            continue
        with pytest.raises(InvalidInputError, match=r"as it was written|a heatmover manifest|a store"):
            all_of(store.store.folder)
        with pytest.raises(InvalidInputError, match=r"as it was written|a heatmover manifest|a store"):
            opened(store.store.folder).store.verify()
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(whole)
    assert everything(opened(store.store.folder)) == before


def damage(path, whole, how, files, rng, elsewhere) -> bytes:
    new = bytearray(whole)
    if how == "flip":
        new[rng.integers(len(new))] ^= 1 << int(rng.integers(8))
    elif how == "cut":
        new = new[: rng.integers(len(new))]
    elif how == "longer":
        new += b"\0"
    elif how == "swap":
        new = bytearray(files[rng.integers(len(files))].read_bytes())
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to(elsewhere)
    elif how == "empty":
        path.touch()
    elif how != "delete":
        path.write_bytes(bytes(new))
    return bytes(new) if how in ("flip", "cut", "longer", "swap") else b""


def test_a_pipe_in_place_of_a_file_does_not_wait(store):
    path = store.store.folder / "part000001" / "rows" / "c" / "0" / "0"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InvalidInputError, match="not a regular file"):
        all_rows(opened(store.store.folder))


def rewritten(store: Samples, change) -> None:
    """Put a manifest of bad content but with a right checksum in place."""
    path = store.store.folder / "manifest.json"
    content = json.loads(path.read_text())["content"]
    change(content)
    path.write_bytes(sealed(content))


HOSTILE = {
    "newer": (lambda c: c.update(version=2), "version 2, written by heatmover .* install a newer"),
    "another format": (lambda c: c.update(format="x"), "another program"),
    "another layout": (lambda c: c.update(layout=2), "layout 4 .* found layout 2, written by another version"),
    "a path as folder": (lambda c: c["parts"][0].update(folder="../.."), "a part has unexpected entries"),
    "a path as array": (lambda c: c["parts"][0]["arrays"].append("../x"), "an invalid path"),
    "a file elsewhere": (lambda c: c["files"].update({"../../x": [1, "0"]}), "an invalid path, size"),
    "no list": (lambda c: c.update(parts={}), "wrong type"),
    "a field more": (lambda c: c.update(code="x"), "cannot be used"),
    "endless": (lambda c: c["parts"][0]["values"].update(n_rows=10**30), "type or shape"),
    "other rows": (lambda c: c["parts"][0]["values"].update(n_rows=5), "type or shape"),
    "true": (lambda c: c["values"]["samples"].update(n_features=True), "does not describe samples"),
    "a type": (lambda c: c["values"]["samples"].update(dtype="object"), "does not describe samples"),
    "a variable": (lambda c: c["values"]["samples"]["variables"].append(1), "does not describe samples"),
    "one more": (lambda c: c["values"]["samples"]["variables"].append("x"), "something other than"),
    "no samples": (lambda c: c["values"].clear(), "does not describe samples"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_is_refused(store, case):
    change, said = HOSTILE[case]
    rewritten(store, change)
    with pytest.raises(InvalidInputError, match=said):
        _ = list(opened(store.store.folder).blocks()), opened(store.store.folder).variables


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", '{"content": 1, "sha256": 2}', "\xff"])
def test_what_is_no_manifest(store, text):
    (store.store.folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInputError, match="a heatmover manifest"):
        opened(store.store.folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"names": ["a"], "variables": []}', "[" * 100_000])
def test_a_table_that_somebody_else_made_is_refused(store, text):
    """Its checksums fit, in the manifest too."""
    folder = store.store.folder / "part000001" / "table"
    shutil.rmtree(folder)
    zarr.save_array(folder, np.frombuffer(text.encode(), dtype=np.uint8), zarr_format=3)
    files = [path for path in folder.rglob("*") if path.is_file()]

    def forge(content):
        for name in [name for name in content["files"] if name.startswith("part000001/table/")]:
            del content["files"][name]
        for path in files:
            about = [path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
            content["files"][path.relative_to(store.store.folder).as_posix()] = about

    rewritten(store, forge)
    with pytest.raises(InvalidInputError, match="something other than names and sample metadata"):
        _ = opened(store.store.folder).names


def test_lineage_tells_rows_apart(store):
    one = opened(store.store.folder)
    more = one.append(Table.checked(ROWS[:1], ["x"], {"age": [1], "sex": ["m"]}))
    assert more.lineage(7) == one.lineage(7)
    assert more.lineage(8) != one.lineage(7)
    assert one.lineage(4) != one.lineage(5)
