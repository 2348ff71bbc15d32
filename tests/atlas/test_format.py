"""A reader that knows `docs/atlas_format.md` and nothing of heatmover reads an atlas and maps samples onto it.

Its functions use the standard library, NumPy for numbers and SciPy for a gamma law; they are what a reader in another
language would be.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import gammaincc

import heatmover as hm

pandas = pytest.importorskip("pandas")

FEATURES = ["CD3", "CD4 µ", "CD8"]


def checked(content: bytes, expected: str) -> bytes:
    assert hashlib.sha256(content).hexdigest() == expected
    return content


def read_chunk(folder: Path, dtype: str, shape: list[int], expected: str) -> np.ndarray:
    about = json.loads((folder / "zarr.json").read_text("ascii"))
    assert (about["data_type"], about["shape"], about["node_type"]) == (dtype, shape, "array")
    (codec,) = about["codecs"]
    assert (codec["name"], codec.get("configuration", {"endian": "little"})) == ("bytes", {"endian": "little"})
    chunk = folder.joinpath("c", *["0"] * len(shape))
    content = checked(chunk.read_bytes() if 0 not in shape else b"", expected)
    return np.frombuffer(content, dtype=np.dtype(dtype).newbyteorder("<")).reshape(shape)


def read_manifest(path: Path) -> dict:
    """What the manifest of a store says."""
    text = (path / "manifest.json").read_bytes()
    assert text.startswith(b'{"content":')
    assert text.endswith(b'"}\n')
    manifest = json.loads(checked(text[len(b'{"content":') : -(len(b',"sha256":""}\n') + 64)], text[-67:-3].decode()))
    assert (manifest["format"], manifest["layout"]) == ("heatmover", 4)
    assert (manifest["kind"], manifest["version"]) == ("heatmover-atlas", 3)
    return manifest


def read_part(path: Path, number: int) -> tuple[dict, dict[str, np.ndarray]]:
    """The values of a part of a store, and all its arrays by their paths."""
    manifest = read_manifest(path)
    part, arrays = manifest["parts"][number], {}
    for name in part["arrays"]:
        folder = f"{part['folder']}/{name}"
        size, digest = manifest["files"][f"{folder}/zarr.json"]
        about = json.loads(checked((path / folder / "zarr.json").read_bytes(), digest))
        chunk = "/".join([folder, "c", *["0"] * len(about["shape"])])
        size, digest = manifest["files"].get(chunk, (0, hashlib.sha256().hexdigest()))
        arrays[name] = read_chunk(path / folder, about["data_type"], about["shape"], digest)
        assert arrays[name].nbytes == size
    return part["values"], arrays


def read_store(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """The document of a store, and the arrays of its record."""
    values, arrays = read_part(path, 0)
    return values["record"], arrays


def read_samples(path: Path) -> tuple[dict, list[dict[str, np.ndarray]]]:
    """What the samples of a store are, and the arrays of each part of them."""
    manifest, parts = read_manifest(path), []
    samples = manifest["values"]["samples"]
    for number in range(1, len(manifest["parts"])):
        values, arrays = read_part(path, number)
        assert arrays["rows"].shape == (values["n_rows"], samples["n_features"])
        parts.append(arrays)
    return samples, parts


def embed(document: dict, arrays: dict[str, np.ndarray], masses: np.ndarray) -> np.ndarray:
    """The embedding of masses on the nodes of an atlas, `(n_samples, n_features)`, by dense powers."""
    model = document["parts"]["model"]["parts"]
    prepared = model["prepared"]
    operator = "model/prepared/operator"
    size = prepared["parts"]["operator"]["parts"]["symmetric"]["values"]["rows"]
    S = np.zeros((size, size))
    starts, columns = arrays[f"{operator}/symmetric/indptr"], arrays[f"{operator}/symmetric/indices"]
    S[np.repeat(np.arange(size), np.diff(starts)), columns] = arrays[f"{operator}/symmetric/data"]
    order, root = arrays[f"{operator}/order"], np.sqrt(arrays[f"{operator}/degree"])
    # From points of the graph to its nodes.
    if "model/graph/place" in arrays:
        at_nodes = np.zeros((len(masses), size))
        for point, node in enumerate(arrays["model/graph/place"]):
            at_nodes[:, node] += masses[:, point]
        masses = at_nodes
    assert prepared["values"]["adjoint"]
    layout = prepared["parts"]["layout"]["values"]
    values, vectors = np.linalg.eigh(S)
    densities = []
    for scale in range(layout["first"], layout["stop"]):
        power = (vectors * values ** (2**scale)) @ vectors.T
        density = np.empty_like(masses)
        density[:, order] = masses[:, order] / root @ power * root
        densities.append(density)
    blocks = []
    for block, row in enumerate(arrays["model/prepared/layout/matrix"]):
        density = sum(factor * each for factor, each in zip(row, densities, strict=True))
        if layout["compact"]:
            labels = arrays[f"model/prepared/layout/block_{block}/labels"]
            count = arrays[f"model/prepared/layout/block_{block}/centers"].size
            density = np.array([density[:, labels == region].sum(axis=1) for region in range(count)]).T
        blocks.append(density)
    return np.hstack(blocks)


def fingerprint(document: dict, arrays: dict[str, np.ndarray]) -> str:
    prepared = document["parts"]["model"]["parts"]["prepared"]
    layout, values = prepared["parts"]["layout"]["values"], prepared["values"]
    scales = list(range(layout["first"], layout["stop"]))
    size = arrays["model/prepared/operator/order"].size
    names = [f"model/graph/affinity/{name}" for name in ("data", "indices", "indptr")]
    names += ["model/graph/place", "model/prepared/layout/matrix"]
    widths = [size] * len(scales)
    if layout["compact"]:
        blocks = [f"model/prepared/layout/block_{block}" for block in range(len(scales))]
        names += [f"{block}/{name}" for block in blocks for name in ("labels", "centers")]
        widths = [arrays[f"{block}/centers"].size for block in blocks]
    total = json.dumps([scales, size, sum(widths), values["precision"], values["adjoint"]]).encode()
    for name in names:
        if name not in arrays:
            total += b"none"
            continue
        plain = arrays[name].astype("<i8" if arrays[name].dtype.kind == "i" else "<f8")
        total += str(plain.shape).encode() + plain.tobytes()
    return hashlib.sha256(total).hexdigest()


def points_of(arrays: dict[str, np.ndarray], values: np.ndarray) -> np.ndarray:
    if "features/projection/mean" not in arrays:
        return values
    standard = (values - arrays["features/projection/mean"]) / arrays["features/projection/scale"]
    return standard @ arrays.get("features/projection/components", np.eye(values.shape[1]))


def nearest(centers: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    squares = ((points[:, None] - centers) ** 2).sum(axis=2)
    return squares.argmin(axis=1), np.sqrt(squares.min(axis=1))


def ranked(cells: np.ndarray, widths: np.ndarray, known: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, float]:
    """The p-value of each point among known scores, and the evidence in all of them."""
    places, distances = nearest(cells, points)
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.where(distances > 0, distances / widths[places], 0.0)
    p = np.array([(1 + np.count_nonzero(known >= score)) / (1 + known.size) for score in scores])
    return p, np.maximum(np.log(0.05 / p), 0).mean()


def chance(n: np.ndarray, e: np.ndarray, spread: float, count: int, evidence: float) -> float:
    mean = max((n * e).sum() / n.sum(), np.log(5) / n.sum())
    between = np.mean((e - mean) ** 2 * n.size / (n.size - 1) - spread / n)
    variance = spread / count + max(between, 0) * (1 + 1 / n.size) + spread / n.sum()
    return gammaincc(mean**2 / variance, evidence * mean / variance)


def covered(document: dict, arrays: dict[str, np.ndarray], points: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """The p-value of each cell of one sample, the evidence in cells and in local means, and the chance of so much."""
    support = document["parts"]["support"]
    cells = arrays["support/cells"]
    p, evidence = ranked(cells, arrays["support/widths"], arrays["support/scores"], points)
    n, e = arrays["support/n_cells"], arrays["support/evidence"]
    of_cells = chance(n, e, support["values"]["spread"], len(points), evidence)
    sizes, ends = arrays["support/means/sizes"], arrays["support/means/ends"]
    level = np.flatnonzero(sizes <= len(points))[-1]
    # Only samples that have one of the sizes are looked at here: others are thinned by a hash that is not part of this.
    assert sizes[level] == len(points)
    near = np.argsort(((points[:, None] - points) ** 2).sum(axis=2), axis=1, kind="stable")[:, :6]
    known = arrays["support/means/scores"][ends[level - 1] if level else 0 : ends[level]]
    means = arrays["support/means/cells"], arrays["support/means/widths"]
    _, of_means = ranked(*means, known, points[near].mean(axis=1))
    some = arrays["support/means/n_means"] > 0
    n, e = arrays["support/means/n_means"][some], arrays["support/means/evidence"][some]
    spread = support["parts"]["means"]["values"]["spread"]
    smaller = min(of_cells, chance(n, e, spread, len(points), of_means))
    return p, [evidence, of_means, min(1, 2 * smaller)]


@pytest.fixture(scope="module", params=[None, 120])
def written(request, tmp_path_factory) -> tuple[Path, hm.Atlas]:
    folder, rng = tmp_path_factory.mktemp("format"), np.random.default_rng(0)
    labels = np.repeat([f"s{i}" for i in range(7)], 40)
    values = rng.normal(size=(280, 3)) * [1, 20, 0.1] + 3
    frame = pandas.DataFrame(values, columns=FEATURES).assign(sample=labels, age=[50 + int(name[1]) for name in labels])
    frame.to_csv(folder / "cells.csv", index=False)
    cohort = hm.read_cohort(
        folder / "cells.csv", sample_key="sample", representation=FEATURES, standardize=True, n_components=2
    )
    atlas = hm.build_atlas(cohort, landmarks=request.param, n_neighbors=12, model=hm.DiffusionEMD(max_scale=4))
    path = folder / "it.atlas"
    atlas.save(path)
    more = atlas.map(pandas.DataFrame(values[:30] + 0.01, columns=FEATURES), "new ☃")
    return path, atlas.add(more, {"age": [None]}, path=path)


def test_samples_are_read(written):
    path, atlas = written
    document, arrays = read_store(path)
    about, parts = read_samples(path)
    assert about["model"] == document["values"]["fingerprint"] == fingerprint(document, arrays)
    assert about["n_nodes"] == len(arrays["nodes/centers"])
    tables = [json.loads(one["table"].tobytes()) for one in parts]
    assert [name for table in tables for name in table["names"]] == list(atlas.names)
    rows = np.vstack([one["rows"] for one in parts])
    assert (rows.dtype, rows.tobytes()) == (atlas.embedding.dtype, atlas.embedding.tobytes())
    found = {}
    for number, name in enumerate(about["variables"]):
        found[name] = tuple(value for table in tables for value in table["variables"][number])
    assert found == dict(atlas.variables)
    counts = np.zeros((len(atlas.names), about["n_nodes"]))
    row = 0
    for one in parts:
        for first, last in zip([0, *one["count_ends"][:-1]], one["count_ends"], strict=True):
            counts[row, one["count_nodes"][first:last]] = one["count_cells"][first:last]
            row += 1
    np.testing.assert_array_equal(counts, atlas.counts.toarray())


def test_new_cells_are_mapped(written):
    path, atlas = written
    document, arrays = read_store(path)
    assert document["parts"]["features"]["parts"]["names"]["values"]["texts"] == FEATURES
    values = np.random.default_rng(5).normal(size=(28, 3)) * [1, 20, 0.1] + 3
    values[0] += 9
    mapped = atlas.map(pandas.DataFrame(values, columns=FEATURES), "it")
    points = points_of(arrays, values)
    places, _ = nearest(arrays["nodes/centers"], points)
    masses = np.bincount(places, minlength=len(arrays["nodes/centers"]))[None] / len(values)
    np.testing.assert_allclose(masses, mapped.measures.toarray(), atol=1e-15)
    embedding = embed(document, arrays, masses)
    assert embedding.shape == mapped.embedding.shape
    np.testing.assert_allclose(embedding, mapped.embedding, atol=2e-3 * np.abs(embedding).max())
    rows = np.vstack([one["rows"] for one in read_samples(path)[1]])
    np.testing.assert_allclose(np.abs(embedding - rows).sum(axis=1), mapped.distances[0], rtol=2e-3)
    p, told = covered(document, arrays, points)
    found = mapped.coverage
    np.testing.assert_allclose(p, found.cell_p_values)
    np.testing.assert_allclose(told, [found.evidence[0], found.means_evidence[0], found.p_values[0]])


def test_the_reader_finds_damage(written, tmp_path):
    import shutil

    shutil.copytree(written[0], tmp_path / "it")
    chunk = tmp_path / "it" / "part000001" / "nodes" / "centers" / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[3] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(AssertionError):
        read_store(tmp_path / "it")
