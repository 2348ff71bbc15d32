"""The graph beside the samples: read if it is whole and of these rows, made again if not, and never trusted before."""

from __future__ import annotations

import numpy as np
import pytest

import heatmover as hm
from heatmover._base.files import load_arrays, save_arrays
from heatmover._base.storage import Samples, Store, writing
from heatmover.atlas.index import index as module
from heatmover.atlas.index.search import CACHE, SEAL, CandidateGraph, read_cache, write_cache

pytest.importorskip("faiss")

RNG = np.random.default_rng(0)
ROWS = np.cos(RNG.normal(size=(1500, 2)) @ RNG.normal(size=(2, 40))).astype(np.float32)


@pytest.fixture
def place(tmp_path):
    index = hm.MeasureIndex.from_embedding(ROWS, path=tmp_path / "i")
    index.build()
    return tmp_path / "i"


def found(index: hm.MeasureIndex) -> list:
    return index.nearest(ROWS[:20] + 0.01, 5, method="approximate").rows.tolist()


def no_build(monkeypatch) -> None:
    def build(*args):
        raise AssertionError("was built again")

    monkeypatch.setattr(CandidateGraph, "build", build)


def test_what_was_built_is_read(place, monkeypatch):
    expected = found(hm.MeasureIndex.open(place))
    no_build(monkeypatch)
    assert found(hm.MeasureIndex.open(place)) == expected
    more = hm.MeasureIndex.open(place)
    more.add(ROWS[:3] + 1, names="xyz")
    assert more.nearest(ROWS[:3] + 1, 1, method="approximate").names == (("x",), ("y",), ("z",))
    assert hm.MeasureIndex.open(place).nearest(ROWS[:1] + 1, 1, method="approximate").names == (("x",),)


def test_it_is_written_again_when_it_lacks_much(place):
    index = hm.MeasureIndex.open(place)
    index.add(ROWS[:200] + 1, names=[f"x{row}" for row in range(200)])
    found(index)
    again = hm.MeasureIndex.open(place)
    found(again)
    assert read_cache(Samples(Store.open(place))).n_rows == 1700


def test_damage_is_noticed_before_faiss_reads_it(place, monkeypatch):
    rng = np.random.default_rng(1)
    path = place / CACHE
    whole = path.read_bytes()
    monkeypatch.setattr(CandidateGraph, "restored", lambda arrays: pytest.fail("was trusted"))
    for _ in range(20):
        flipped = bytearray(whole)
        flipped[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        assert read_cache(Samples(Store.open(place))) is None
    for damaged in (whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        assert read_cache(Samples(Store.open(place))) is None
    path.unlink()
    assert read_cache(Samples(Store.open(place))) is None


def test_damage_is_fixed_by_building_again(place):
    expected = found(hm.MeasureIndex.open(place))
    (place / CACHE).write_bytes(b"nonsense")
    assert found(hm.MeasureIndex.open(place)) == expected
    assert read_cache(Samples(Store.open(place))) is not None


@pytest.mark.parametrize("change", [{"lineage": np.array("0")}, {"rows": np.arange(10**6)}], ids=str)
def test_what_it_says_of_itself_is_checked(place, change):
    arrays = load_arrays(place / CACHE, SEAL)
    save_arrays(place / CACHE, SEAL, arrays | change)
    assert read_cache(Samples(Store.open(place))) is None
    save_arrays(place / CACHE, "heatmover search 1", arrays)
    assert read_cache(Samples(Store.open(place))) is None
    save_arrays(place / CACHE, SEAL, arrays)
    assert read_cache(Samples(Store.open(place))) is not None


def test_the_graph_of_other_rows_is_not_used(place, tmp_path):
    other = hm.MeasureIndex.from_embedding(ROWS[::-1], path=tmp_path / "o")
    other.build()
    (tmp_path / "o" / CACHE).replace(place / CACHE)
    assert read_cache(Samples(Store.open(place))) is None


def test_what_cannot_be_written_is_left_out(place):
    samples = Samples(Store.open(place))
    made = read_cache(samples)
    before = (place / CACHE).read_bytes()
    with writing(place):  # by another
        assert not write_cache(samples, made)
    assert (place / CACHE).read_bytes() == before


def test_an_interrupted_extension_leaves_no_half_graph(place, monkeypatch):
    index = hm.MeasureIndex.open(place)
    expected = found(index)
    index.add(ROWS[:2] + 1, names="xy")
    with monkeypatch.context() as patch:
        patch.setattr(module.CandidateGraph, "extend", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            found(index)
    assert found(index) == expected
    assert index.nearest(ROWS[:1] + 1, 1, method="approximate").names == (("x",),)


def test_whatever_another_version_of_faiss_raises_the_graph_is_made_again(place, monkeypatch):
    expected = found(hm.MeasureIndex.open(place))

    def unreadable(arrays):
        raise RuntimeError("Index type 0x12345678 not recognized")

    monkeypatch.setattr(CandidateGraph, "restored", unreadable)
    assert found(hm.MeasureIndex.open(place)) == expected
