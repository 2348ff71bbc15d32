"""Distances and nearest rows in tiles beside those in memory: the same to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import heatmover as hm
from heatmover.errors import InvalidInputError
from heatmover.study.scale import distances, embed, nearest, tiles


@pytest.fixture
def embedding():
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(53, 37)).astype(np.float32)
    rows[17] = rows[40]  # a tie at distance zero
    return rows


@pytest.fixture(params=["array", "zarr", "path", "in a group"])
def given(request, embedding, tmp_path):
    if request.param == "array":
        return embedding
    if request.param == "in a group":
        return zarr.open_group(tmp_path / "group.zarr").create_array("e", data=embedding, chunks=(7, 37))
    array = zarr.create_array(tmp_path / "e.zarr", data=embedding, chunks=(10, 37))
    return array if request.param == "zarr" else tmp_path / "e.zarr"


@pytest.mark.parametrize("rows", [2048, 16, 7])
def test_tiles_are_parts_of_the_whole(given, embedding, tmp_path, monkeypatch, rows):
    monkeypatch.setattr(tiles, "TILE_ROWS", rows)
    expected = hm.pairwise_distances(embedding)
    found = distances(given, tmp_path / "d.zarr", dtype="float64", n_jobs=2)
    np.testing.assert_array_equal(found[:], expected)
    assert found.attrs["complete"]
    apart, indices = nearest(given, 5, n_jobs=2)
    want = hm.nearest(embedding, 5)
    np.testing.assert_array_equal(indices, want[1])
    np.testing.assert_array_equal(apart, want[0])


def test_the_budget_decides_the_tiles(embedding):
    rows = tiles.EmbeddingRows.of(embedding)
    sizes = [tiles.tile_rows(rows, memory, 2) for memory in (100_000, 1_000_000, 10**9)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 64
    assert sizes[-1] == tiles.TILE_ROWS
    with pytest.raises(InvalidInputError, match="memory of at least"):
        tiles.tile_rows(rows, 1000, 2)


def test_tiles_that_are_there_are_not_computed_again(embedding, tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 16)
    place = tmp_path / "d.zarr"
    expected = distances(embedding, place)[:]
    (place / "c" / "1" / "2").unlink()

    calls, original = [], tiles.pairwise_distances

    def counted(*rows, **options):
        calls.append(1)
        return original(*rows, **options)

    monkeypatch.setattr(tiles, "pairwise_distances", counted)
    np.testing.assert_array_equal(distances(embedding, place, resume=True)[:], expected)
    assert len(calls) == 1


@pytest.mark.parametrize("damage", ["cut", "other bytes", "one bit"])
def test_tiles_that_are_not_what_they_were_are_computed_again(embedding, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(tiles, "TILE_ROWS", 16)
    place = tmp_path / "d.zarr"
    expected = distances(embedding, place)[:]
    content = bytearray((place / "c/0/1").read_bytes())
    damaged = {
        "cut": content[:-9],
        "other bytes": bytes(len(content)),
        "one bit": bytes([content[0] ^ 1]) + content[1:],
    }
    (place / "c/0/1").write_bytes(damaged[damage])
    np.testing.assert_array_equal(distances(embedding, place, resume=True)[:], expected)


def test_rows_that_are_damaged_are_embedded_again(tmp_path):
    data = hm.datasets.ring(40, points_per_measure=25)
    measures = data.measures()
    model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10)).fit(measures)
    place = tmp_path / "embedding.zarr"
    expected = embed(model, measures, place)[:]
    (place / "c/1/0").unlink()
    with pytest.raises(InvalidInputError, match=r"an embedding without NaN or infinity, .*resume=True"):
        nearest(place, 3)
    chunk = place / "c/0/0"
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    np.testing.assert_array_equal(embed(model, measures, place, resume=True)[:], expected)
    (place / "zarr.json").write_text("null")
    with pytest.raises(InvalidInputError, match="the path of a zarr array, found none"):
        embed(model, measures, place, resume=True)
    with pytest.raises(InvalidInputError, match="the path of an array, found the current folder"):
        embed(model, measures, "")


def test_an_array_of_something_else_is_refused(embedding, tmp_path):
    place = tmp_path / "d.zarr"
    distances(embedding, place)
    with pytest.raises(InvalidInputError, match="does not exist yet"):
        distances(embedding, place)
    with pytest.raises(InvalidInputError, match="the same embedding, found a different array"):
        distances(embedding + 1, place, resume=True)
    with pytest.raises(InvalidInputError, match="the same dtype"):
        distances(embedding, place, resume=True, dtype="float64")


def test_nearest_resumes(embedding, tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 16)
    place = tmp_path / "n.zarr"
    first = nearest(embedding, 3, checkpoint=place)
    monkeypatch.setattr(tiles, "pairwise_distances", lambda *_, **__: pytest.fail("computed again"))
    again = nearest(embedding, 3, checkpoint=place, resume=True)
    np.testing.assert_array_equal(again[1], first[1])
    with pytest.raises(InvalidInputError, match="settings k: 3 then, 4 now"):
        nearest(embedding, 4, checkpoint=place, resume=True)


@pytest.mark.parametrize(
    ("bad", "message"),
    [("no.zarr", "the path of a zarr array, found none"), (np.ones(3), "2-d"), (np.ones((3, 2)), "k of at most 2")],
)
def test_bad_embeddings_are_refused(bad, message):
    with pytest.raises(InvalidInputError, match=message):
        nearest(bad, 3)
