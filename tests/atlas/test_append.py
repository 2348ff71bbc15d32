"""Samples that are appended to a saved atlas: all of them or none, whatever happens on the way."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import heatmover as hm
from heatmover._base.storage import Samples, Store, sealed, writing
from heatmover.errors import InvalidInputError

CELLS = 20
# Each value keeps its own type.
VARIABLES = {"group": ["a", "b", None, "\u2603", ""], "mixed": [1, 2.5, True, "1", None], "patient": [1, 2, 3, 4, 5]}


def drawn(n_samples: int, seed: int, prefix: str = "s") -> tuple[np.ndarray, np.ndarray]:
    points = np.random.default_rng(seed).normal(size=(n_samples * CELLS, 2))
    return points, np.repeat([f"{prefix}{number}" for number in range(n_samples)], CELLS)


@cache
def built() -> hm.Atlas:
    return hm.build_atlas(*drawn(5, 0), variables=VARIABLES, n_neighbors=8, model=hm.DiffusionEMD(max_scale=3))


@cache
def more() -> hm.atlas.Mapped:
    return built().map(*drawn(3, 1, "new"))


@pytest.fixture
def path(tmp_path) -> Path:
    built().save(tmp_path / "it.atlas")
    return tmp_path / "it.atlas"


def same(one: hm.Atlas, other: hm.Atlas) -> bool:
    counts = [
        (each.counts.data.tolist(), each.counts.indices.tolist(), each.counts.indptr.tolist()) for each in (one, other)
    ]
    return (
        one.names == other.names
        and repr(one.variables) == repr(other.variables)
        and one.embedding.tobytes() == other.embedding.tobytes()
        and counts[0] == counts[1]
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_what_is_added_is_what_is_loaded_and_nothing_else_is_written(path):
    before = contents(path)
    larger = built().add(more(), {"mixed": [False, 3, None]}, path=path)
    assert same(larger, built().add(more(), {"mixed": [False, 3, None]}))
    assert same(larger, hm.load(path))
    assert larger.variables["mixed"][-3:] == (False, 3, None)
    assert [type(value) for value in larger.variables["mixed"][:3]] == [int, float, bool]
    after = contents(path)
    assert {name for name in before if before[name] != after[name]} == {"manifest.json"}
    assert len(hm.atlas.verify(path)) == len([name for name in after if name not in ("manifest.json", ".lock")])
    assert hm.MeasureIndex.open(path, model=larger.model).variables([1])["group"].tolist() == ["b"]


def test_all_writers_samples_are_there(path):
    first, second = hm.load(path), hm.load(path)
    first.add(first.map(*drawn(1, 2, "x")), path=path)
    both = second.add(second.map(*drawn(2, 3, "y")), path=path)
    assert both.names == (*built().names, "x0", "y0", "y1")
    assert first.names == built().names  # a value
    with pytest.raises(InvalidInputError, match="new sample names, found 'x0'"):
        second.add(second.map(*drawn(1, 2, "x")), path=path)
    assert same(hm.load(path), both)


def test_a_new_sample_takes_a_part_and_an_overwrite_makes_them_one(path):
    built().add(more(), path=path)
    grown = hm.load(path)
    grown.save(path, overwrite=True)
    assert len(list(path.glob("part*"))) == 2
    assert same(hm.load(path), grown)


def test_a_second_writer_is_refused_at_once(path):
    with writing(path):
        for write in (lambda: built().add(more(), path=path), lambda: built().save(path, overwrite=True)):
            with pytest.raises(InvalidInputError, match="one writer at a time"):
                write()
        assert same(hm.load(path), built())  # readers do not wait


def test_a_full_disk_changes_nothing(path, monkeypatch):
    left = [9]

    def full(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InvalidInputError, match=r"space to write to .*everything written before is kept"):
            built().add(more(), path=path)
        with pytest.raises(InvalidInputError, match=r"No space left on device; free some"):
            built().save(path.with_name("other"))
    assert same(hm.load(path), built())
    assert [each.name for each in path.parent.iterdir()] == ["it.atlas"]
    assert sorted(each.name for each in path.glob("part*")) == ["part000001", "part000002"]


def test_a_read_only_atlas_is_read_and_not_added_to(path, monkeypatch):
    real = os.open

    def read_only(place, flags, *args, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", place)
        return real(place, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert same(hm.load(path), built())
    with pytest.raises(InvalidInputError, match="permission to write to"):
        built().add(more(), path=path)


@pytest.mark.parametrize(
    ("change", "said"), [({"version": 4}, "install a newer"), ({"layout": 9}, "build the store again")]
)
def test_another_version_is_refused(path, change, said):
    manifest = path / "manifest.json"
    content = json.loads(manifest.read_text())["content"]
    manifest.write_bytes(sealed({**content, **change}))
    for look in (hm.load, lambda place: built().add(more(), path=place)):
        with pytest.raises(InvalidInputError, match=said):
            look(path)


def test_another_atlas_at_the_place_is_refused(path):
    other = hm.build_atlas(*drawn(5, 7), variables=VARIABLES, n_neighbors=8, model=hm.DiffusionEMD(max_scale=3))
    with pytest.raises(InvalidInputError, match=r"this atlas at .*found another atlas"):
        other.add(other.map(*drawn(1, 8, "x")), path=path)
    built().model.save(path, overwrite=True)
    with pytest.raises(InvalidInputError, match=r"a store of kind heatmover-atlas .*found 'heatmover-model'"):
        built().add(more(), path=path)
    with pytest.raises(InvalidInputError, match="nothing there"):
        built().add(more(), path=path.with_name("nowhere"))


def test_an_index_on_the_folder_does_not_add_samples_without_cells(path):
    index = hm.MeasureIndex.open(path, model=built().model)
    # Where an index keeps its graph.
    (path / "search.npz").touch()
    assert same(hm.load(path), built())
    assert index.nearest("s0", k=1, method="exact").names == built().index.nearest("s0", k=1).names
    with pytest.raises(
        InvalidInputError,
        match=r"samples with cell counts at 100 nodes, .*found samples without cell counts; use the methods",
    ):
        index.add(more().embedding, names=more().names, variables=dict.fromkeys(VARIABLES, [None] * 3))


@pytest.mark.parametrize("name", ["no" * 501, "half \ud800"])
def test_what_cannot_be_saved_is_not_built(name):
    points, labels = drawn(3, 0)
    with pytest.raises(InvalidInputError, match=r"the name of a sample|unpaired surrogates"):
        hm.build_atlas(points, np.where(labels == "s0", name, labels.astype(object)), n_neighbors=8)
    with pytest.raises(InvalidInputError, match="unpaired surrogates"):
        hm.build_atlas(points, labels, variables={"group": ["a", "b", "\ud800"]}, n_neighbors=8)


def test_damage_is_found(path):
    built().add(more(), path=path)
    for number, (name, content) in enumerate(contents(path).items()):
        if name == ".lock":
            continue
        (path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        for look in (hm.atlas.verify, hm.load)[: 1 if number % 3 else 2]:
            with pytest.raises(InvalidInputError, match=r"as it was written|a heatmover manifest"):
                look(path)
        (path / name).write_bytes(content)
    assert len(hm.load(path).names) == 8


def forge(path: Path, part: str, **arrays: bytes) -> None:
    """Write other bytes for arrays of a part, with metadata and checksums that fit them."""
    manifest = path / "manifest.json"
    content = json.loads(manifest.read_text())["content"]
    for array, data in arrays.items():
        about = path / part / array / "zarr.json"
        told = json.loads(about.read_text())
        length = len(data) // np.dtype(told["data_type"]).itemsize
        told["shape"] = told["chunk_grid"]["configuration"]["chunk_shape"] = [length]
        about.write_text(json.dumps(told))
        (path / part / array / "c" / "0").write_bytes(data)
        for name in (f"{part}/{array}/zarr.json", f"{part}/{array}/c/0"):
            whole = (path / name).read_bytes()
            content["files"][name] = [len(whole), hashlib.sha256(whole).hexdigest()]
    manifest.write_bytes(sealed(content))


def test_a_forged_size_asks_for_no_memory(path):
    """All that describes an array agrees on terabytes, which its file does not have."""
    about = path / "part000002" / "rows" / "zarr.json"
    told = json.loads(about.read_text())
    told["shape"][0] = told["chunk_grid"]["configuration"]["chunk_shape"][0] = 2**34
    about.write_text(json.dumps(told))
    manifest = path / "manifest.json"
    content = json.loads(manifest.read_text())["content"]
    content["parts"][1]["values"]["n_rows"] = 2**34
    whole = about.read_bytes()
    content["files"]["part000002/rows/zarr.json"] = [len(whole), hashlib.sha256(whole).hexdigest()]
    manifest.write_bytes(sealed(content))
    with pytest.raises(InvalidInputError, match="not a single uncompressed chunk"):
        list(Samples(Store.open(path)).blocks())


BAD_COUNTS = {
    "out of range": ("count_nodes", lambda values: values.__setitem__(0, 10**9)),
    "before the first": ("count_nodes", lambda values: values.__setitem__(0, -1)),
    "twice": ("count_nodes", lambda values: values.__setitem__(1, values[0])),
    "none": ("count_cells", lambda values: values.__setitem__(0, 0)),
    "beyond": ("count_ends", lambda values: values.__setitem__(0, 2**62)),
    "backwards": ("count_ends", lambda values: values.__setitem__(0, values[1])),
    "short": ("count_ends", lambda values: values.__setitem__(-1, values[-1] - 1)),
}


@pytest.mark.parametrize("case", BAD_COUNTS)
def test_forged_counts_are_refused(path, case):
    array, change = BAD_COUNTS[case]
    values = np.frombuffer((path / "part000002" / array / "c" / "0").read_bytes(), dtype="<i8").copy()
    change(values)
    forge(path, "part000002", **{array: values.tobytes()})
    with pytest.raises(InvalidInputError, match="'part000002/count_nodes' cannot be used"):
        hm.load(path)


@pytest.mark.parametrize("forged", ["[1]", "{}", "1e999", "NaN", "\udcff", "", "[" * 10_000, "9" * 5_000])
def test_forged_values_are_refused(path, forged):
    """The last value of a variable is what no writer wrote; all checksums are right."""
    text = (path / "part000002" / "table" / "c" / "0").read_bytes().decode()
    assert text.endswith(", 5]]}")
    forge(path, "part000002", table=(text[:-4] + forged + text[-3:]).encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidInputError, match="something other than names and sample metadata"):
        _ = Samples(Store.open(path)).variables


def test_a_death_at_any_step_of_an_addition_loses_nothing(path, deaths):
    larger = built().add(more())
    # Every third step: tests/storage takes every one.
    unchanged = [same(hm.load(path), built()) for _ in deaths(lambda: built().add(more(), path=path), every=3)]
    assert len(unchanged) > 5
    assert all(unchanged)
    assert same(hm.load(path), larger)
    hm.atlas.verify(path)


def test_a_death_at_any_step_of_an_overwrite_leaves_one_of_the_two(path, deaths):
    larger, there = built().add(more()), []
    for _ in deaths(lambda: larger.save(path, overwrite=True), every=20):
        found = hm.load(path)
        there.append(same(found, larger if len(found.names) == 8 else built()))
    assert len(there) > 5
    assert all(there)
    assert same(hm.load(path), larger)


APPEND = """
import os, pathlib, signal, sys
import numpy as np, scipy.sparse as sp
from heatmover._base.storage import Samples, Store, Table

step, folder, given = sys.argv[1], pathlib.Path(sys.argv[2]), np.load(sys.argv[3])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

real, number = pathlib.Path.replace, [0]

def replace(self, target):
    if target.name == "manifest.json" and step == "manifest complete aside":
        die()
    found = real(self, target)
    if target.name == "manifest.json" and step == "manifest in its place":
        die()
    return found

def fsync(descriptor):
    number[0] += 1
    if step == "in the middle of the arrays" and number[0] == 8:
        die()

pathlib.Path.replace, os.fsync = replace, fsync
counts = sp.csr_array((given["data"], given["indices"], given["indptr"]), shape=tuple(given["shape"]))
variables = dict.fromkeys(("group", "mixed", "patient"), [None] * 3)
table = Table.checked(given["rows"], list(given["names"]), variables, counts=counts)
Samples(Store.open(folder)).append(table)
"""


@pytest.mark.parametrize(
    ("step", "committed"),
    [("in the middle of the arrays", False), ("manifest complete aside", False), ("manifest in its place", True)],
)
def test_a_killed_process_leaves_an_atlas_that_loads(path, tmp_path, step, committed):
    larger = built().add(more())
    counts = larger.counts[-3:]
    np.savez(
        tmp_path / "new.npz", rows=more().embedding, names=np.array(more().names), data=counts.data,
        indices=counts.indices, indptr=counts.indptr, shape=counts.shape,
    )  # fmt: skip
    arguments = [sys.executable, "-c", APPEND, step, str(path), str(tmp_path / "new.npz")]
    killed = subprocess.run(arguments, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    hm.atlas.verify(path)
    assert same(hm.load(path), larger if committed else built())
    if not committed:  # nobody is locked out, and what was left is cleared up
        assert same(built().add(more(), path=path), larger)
        assert sorted(each.name for each in path.glob("part*")) == ["part000001", "part000002", "part000003"]
