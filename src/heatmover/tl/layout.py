"""`samples`, and how a comparison lies in an AnnData: in ``.uns`` of the cells, and as an AnnData of the samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64, Int32, Int64, Intp
from heatmover._base.validation import check_integer, check_option, import_extra
from heatmover._base.version import __version__
from heatmover._base.words import counted, distinct, find, quoted
from heatmover.cohort.samples import SampleTable
from heatmover.errors import InvalidInputError, argument
from heatmover.statistics.manifold import classical_scaling, diffusion_map, phate, sample_graph, umap
from heatmover.study.cell_types import SampleComposition, annotate, shares_of
from heatmover.study.comparison import Comparison

__all__ = [
    "KEY",
    "MAPS",
    "Labels",
    "assemble",
    "check_anndata",
    "check_stored",
    "check_target",
    "composed",
    "names_to_store",
    "pack",
    "read_labels",
    "samples",
    "scale_summary",
    "unpack",
    "write",
]

# Under this name the samples know what they are.
KEY = "heatmover"
MAPS = ("mds", "diffusion", "phate", "umap")
# An embedding that takes more would swell a file beyond what its cells take: 100 samples on a graph over 100,000 cells
# and ten scales come to 400 MB, on 4,000 landmarks to 16 MB.
LARGEST_EMBEDDING = 64_000_000


@final
@dataclass(frozen=True, eq=False)
class Labels:
    """The sample of each cell.

    Attributes
    ----------
    names
        Of the samples, sorted.
    codes
        ``(n_cells,)``: position in ``names``.
    varying
        Columns that vary within samples.
    """

    names: tuple[str, ...]
    codes: Int32
    varying: tuple[str, ...]

    @cached_property
    def sizes(self) -> Int64:
        """``(n_samples,)``: number of cells."""
        return np.bincount(self.codes, minlength=len(self.names)).astype(np.int64)

    @cached_property
    def first(self) -> Intp:
        """``(n_samples,)``: row of the first cell."""
        return np.unique(self.codes, return_index=True)[1]


def check_anndata(adata: Any, copy: bool = False) -> None:
    """Raise unless this is an AnnData object and, if asked, one that can be copied."""
    anndata = import_extra("anndata", package="anndata", extra="cohort")
    if isinstance(adata, anndata.AnnData):
        if copy and adata.isbacked:
            raise InvalidInputError("an AnnData in memory to copy", "one backed by a file", "use copy=False")
        return
    advice = "read the file first, anndata.read_h5ad(path)" if hasattr(adata, "__fspath__") else ""
    if isinstance(adata, str):
        advice = "read the file first, anndata.read_h5ad(path)"
    elif hasattr(adata, "mod"):
        advice = "pass one modality, such as data.mod['rna']"
    raise InvalidInputError("an AnnData object", type(adata).__name__, advice)


def read_labels(adata: Any, sample_key: str, columns: Sequence[str]) -> Labels:
    """Return the sample of each cell, and which of some columns vary within samples."""
    known = list(adata.obs.columns)
    distinct([str(name) for name in known], "columns of obs")
    table = SampleTable(find(sample_key, known, f"{argument('sample_key')} to be a column of obs"))
    table.add(adata.obs[sample_key], {name: adata.obs[name] for name in columns})
    names, codes = table.finish()
    return Labels(names, codes, tuple(table.varying))


def check_target(adata: Any, key_added: object, copy: bool) -> None:
    """Raise unless results can be written to an AnnData under a key, or to a copy of it."""
    check_anndata(adata, copy)
    if not isinstance(key_added, str) or not key_added or "/" in key_added:
        raise InvalidInputError("key_added to be a name without '/'", repr(key_added))


def pack(result: Comparison, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison, and what was asked for, as a dictionary to store."""
    settings = result.model.get_params(deep=False)
    model = {name: value for name, value in settings.items() if name not in ("graph", "n_jobs")}
    if model["weights"] is not None:  # anndata stores arrays, not tuples
        model["weights"] = np.asarray(model["weights"], dtype=np.float64)
    packed: dict[str, Any] = {
        "params": _without_none({**asked, "model": _without_none(model), "version": __version__}),
        "names": np.array(result.names, dtype=object),
        "sizes": np.array(result.sizes if result.drawn is None else result.drawn.sizes),
        "distances": result.distances.copy(),
        "scales": scale_summary(result),
    }
    if result.embedding.nbytes <= LARGEST_EMBEDDING:
        packed["embedding"] = result.embedding.copy()
    limits = result.intervals
    if limits is not None:
        bounds = {"lower": limits.lower.copy(), "upper": limits.upper.copy()}
        packed["intervals"] = {**bounds, "confidence": limits.confidence}
    if result.calibration is not None:
        curve = result.calibration.curve
        packed["units"] = {**result.calibration.plain(), "knots": curve.knots.copy(), "values": curve.values.copy()}
    if result.drawn is not None:
        packed["drawn"] = result.drawn.plain()
    if result.landmark_agreement is not None:
        packed["landmarks"] = asdict(result.landmark_agreement)
    return packed


def write(adata: Any, key: str, packed: dict[str, Any], columns: Mapping[str, Any] | None = None) -> None:
    """Write the results, and columns of cells; a view becomes an object of its own, as scverse tools let it."""
    with warnings.catch_warnings():
        if adata.is_view:
            warnings.filterwarnings("ignore", message="Trying to modify attribute")
        if columns is not None:
            adata.obs = adata.obs.assign(**columns)
        adata.uns[key] = packed


def unpack(adata: Any, key: str) -> Mapping[str, Any]:
    """Return the stored results, or say what is not there."""
    ours = [name for name, value in adata.uns.items() if _is_result(value)]
    if not ours:
        raise InvalidInputError(
            "an AnnData with distances between samples", "none in uns", "call hm.tl.sample_distances(adata, ...) first"
        )
    stored: Mapping[str, Any] = adata.uns[find(key, ours, "key to be where hm.tl.sample_distances wrote")]
    return stored


def _is_result(value: Any) -> bool:
    return hasattr(value, "keys") and {"params", "names", "sizes", "distances", "scales"} <= set(value)


def scale_summary(result: Comparison) -> dict[str, Any]:
    """Return the scales compared, what each has of the mean distance, and why the largest is the largest."""
    model = result.model
    return {
        "scale": np.asarray(model.scales_, dtype=np.int64),
        "share": result.scale_shares.copy(),
        "max_scale": int(model.max_scale_),
        "reason": result.max_scale_reason,
        "decay": np.asarray(model.decay_, dtype=np.float64),
    }


def names_to_store(value: Any) -> Any:
    """Return a value that h5ad and zarr can store: lists of names become arrays."""
    return value if isinstance(value, str) else np.array(list(value), dtype=object)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    # None is not a value that every version of anndata can store; what is not there was not set.
    return {name: value for name, value in values.items() if value is not None}


def check_stored(stored: Mapping[str, Any], names: tuple[str, ...], sizes: Int64) -> list[int]:
    """Return where the samples of today's cells are in the stored results, or raise if those are out of date."""
    place = {str(name): i for i, name in enumerate(stored["names"])}
    changed = [n for n, size in zip(names, sizes, strict=True) if n not in place or stored["sizes"][place[n]] != size]
    if changed:
        raise InvalidInputError(
            "the cells from which the distances were computed",
            f"other cells in {counted(len(changed), 'sample')} (first: {quoted(changed[0])})",
            "call hm.tl.sample_distances again",
        )
    return [place[name] for name in names]


def composed(adata: Any, key: str, annotation: str) -> SampleComposition:
    """Return the shares of cell types in the samples of an AnnData of cells, in the order of `samples`.

    Parameters
    ----------
    adata
        Cells, after `sample_distances`.
    key
        Where that wrote.
    annotation
        Column of ``.obs`` with the type of each cell.
    """
    stored = unpack(adata, key)
    name = find(annotation, list(adata.obs.columns), "cells to be a column of obs")
    labels = read_labels(adata, str(stored["params"]["sample_key"]), [])
    check_stored(stored, labels.names, labels.sizes)
    shape = (len(labels.names), adata.n_obs)
    masses = sp.csr_array((np.ones(adata.n_obs), (labels.codes, np.arange(adata.n_obs))), shape=shape)
    return shares_of(annotate(name, adata.obs[name], adata.n_obs), masses)


def samples(
    adata: Any,
    key: str = KEY,
    *,
    k: int = 10,
    n_components: int = 10,
    maps: Sequence[str] = ("diffusion",),
    random_state: int = 0,
) -> Any:
    """Return an AnnData whose observations are samples, ready for scanpy's own tools and plots.

    Parameters
    ----------
    adata
        Cells, after `sample_distances`. It may have lost whole samples since, which are then left out; if single cells
        came or went, the distances are out of date and an error says so.
    key
        Where `sample_distances` wrote.
    k
        Neighbours of each sample in its graph; with fewer samples, all others.
    n_components
        Columns of the maps, as far as there are samples; PHATE and UMAP have two.
    maps
        Which to compute besides ``"mds"`` (classical multidimensional scaling): ``"diffusion"`` (diffusion map),
        ``"phate"`` and ``"umap"``, which need the extras of these names.
    random_state
        Seed of PHATE and UMAP.

    Returns
    -------
    AnnData
        One row for each sample, in the order of their names:

        - ``.obs``: every column that is constant within samples, with its type, categories and colours, and
          ``n_cells``;
        - ``.obsm``: ``"X_mds"``, ``"X_diffusion"``, ... and, if it was stored, ``"X_heatmover"``, the embedding whose
          L1 distances are the distances. For methods that take Euclidean distances ``"X_mds"`` is the right one;
        - ``.obsp``: ``"distances"``, all of them, and ``"connectivities"``, the graph of `manifold.sample_graph`;
        - ``.uns``: ``"neighbors"`` as `scanpy.pp.neighbors` writes it, ``"mds"`` with the share of the variation of
          each axis, and ``"heatmover"`` with parameters, scales, and in ``"varying"`` the columns that vary within
          samples and were therefore left out.

        There is no ``.X``: a sample is a distribution, not a row of variables.

    Examples
    --------
    >>> import anndata
    >>> import pandas as pd
    >>> import heatmover as hm
    >>> from heatmover.tl import sample_distances, samples
    >>> data = hm.datasets.cohort(8, cells_per_sample=50)
    >>> obs = pd.DataFrame({"sample": data.labels}, index=[f"cell-{i}" for i in range(400)])
    >>> obs["condition"] = obs["sample"].str.split("-").str[0]
    >>> adata = anndata.AnnData(data.points, obs=obs)
    >>> sample_distances(adata, "sample")
    >>> cohort = samples(adata)
    >>> cohort.obs.head(2)
             sample condition  n_cells
    case-01  case-01      case       50
    case-02  case-02      case       50
    """
    check_anndata(adata)
    stored = unpack(adata, key)
    wanted = _check_maps(maps)
    count = check_integer("n_components", n_components, minimum=2)
    sample_key = str(stored["params"]["sample_key"])
    labels = read_labels(adata, sample_key, [name for name in adata.obs.columns if name != sample_key])
    rows = check_stored(stored, labels.names, labels.sizes)
    if len(rows) < 2:
        raise InvalidInputError("cells of at least two samples", f"those of {labels.names[0]!r} only")
    obs = _table(adata, labels)
    packed = {
        **stored,
        "distances": np.asarray(stored["distances"], dtype=np.float64)[np.ix_(rows, rows)],
        **({"embedding": np.asarray(stored["embedding"])[rows]} if "embedding" in stored else {}),
        **({"intervals": _of_rows(stored["intervals"], rows)} if "intervals" in stored else {}),
    }
    made = assemble(packed, obs, labels.varying, k=k, n_components=count, maps=wanted, random_state=random_state)
    made.uns.update(_colors(adata, obs))
    return made


def _of_rows(intervals: Mapping[str, Any], rows: list[int]) -> dict[str, Any]:
    bounds = {name: np.asarray(intervals[name])[np.ix_(rows, rows)] for name in ("lower", "upper")}
    return {**bounds, "confidence": float(intervals["confidence"])}


def _check_maps(maps: Sequence[str]) -> list[str]:
    if isinstance(maps, str):
        raise InvalidInputError("maps to be a list of names", repr(maps), f"write [{maps!r}]")
    for name in maps:
        check_option("every map", name, MAPS)
    # Scanpy starts its UMAP from this one.
    return list(dict.fromkeys(["mds", *maps]))


def _table(adata: Any, labels: Labels) -> Any:
    """Return what is constant within samples, in the types it has among the cells."""
    constant = [name for name in adata.obs.columns if name not in labels.varying]
    table = adata.obs[constant].iloc[labels.first].copy()
    table.index = list(labels.names)
    table["n_cells"] = labels.sizes
    return table


def _colors(adata: Any, table: Any) -> dict[str, Any]:
    """Return scanpy's colours of the categories."""
    names = [f"{column}_colors" for column in table.columns]
    return {name: deepcopy(adata.uns[name]) for name in names if name in adata.uns}


def assemble(
    packed: Mapping[str, Any],
    table: Any,
    varying: Sequence[str],
    *,
    k: int = 10,
    n_components: int = 10,
    maps: Sequence[str] = ("mds", "diffusion"),
    random_state: int = 0,
) -> Any:
    """Return the AnnData of samples that `samples` describes.

    Parameters
    ----------
    packed
        A comparison as `pack` makes it.
    table
        DataFrame with a row for each sample, in the order of the distances.
    varying
        Columns that were left out of it.
    k, n_components, maps, random_state
        As in `samples`, checked.
    """
    anndata = import_extra("anndata", package="anndata", extra="cohort")
    distances = packed["distances"]
    neighbors = min(check_integer("k", k, minimum=1), len(distances) - 1)
    scaling, shares = classical_scaling(distances, min(n_components, len(distances)))
    obsm = {
        f"X_{name}": scaling if name == "mds" else _MAKERS[name](distances, n_components, neighbors, random_state)
        for name in maps
    }
    if "embedding" in packed:
        obsm["X_heatmover"] = packed["embedding"]
    return anndata.AnnData(
        obs=table,
        obsm=obsm,
        obsp={"distances": distances, "connectivities": sp.csr_matrix(sample_graph(distances, k=neighbors))},
        uns=_notes(packed, varying, shares, neighbors),
    )


def _notes(packed: Mapping[str, Any], varying: Sequence[str], shares: Float64, neighbors: int) -> dict[str, Any]:
    names = ("params", "scales", "landmarks", "drawn", "intervals", "units")
    carried = {name: deepcopy(packed[name]) for name in names if name in packed}
    return {
        KEY: {**carried, "varying": np.array(varying, dtype=object)},
        "mds": {"variance_ratio": shares},
        "neighbors": {
            "connectivities_key": "connectivities",
            "distances_key": "distances",
            # Scanpy looks at the representation to start a UMAP, and wants a metric that it knows for it.
            "params": {
                "n_neighbors": neighbors,
                "method": "umap",
                "metric": "euclidean",
                "use_rep": "X_mds",
                "random_state": 0,
            },
        },
    }


def _diffusion(distances: Float64, count: int, neighbors: int, _: int) -> Float64:
    return diffusion_map(distances, min(count, len(distances) - 1), k=neighbors)


def _phate(distances: Float64, _: int, neighbors: int, random_state: int) -> Float64:
    return phate(distances, k=max(1, min(neighbors, 5, len(distances) - 2)), random_state=random_state)


def _umap(distances: Float64, _: int, neighbors: int, random_state: int) -> Float64:
    return umap(distances, k=max(1, min(neighbors, len(distances) - 2)), random_state=random_state)


_MAKERS: dict[str, Callable[[Float64, int, int, int], Float64]] = {
    "diffusion": _diffusion,
    "phate": _phate,
    "umap": _umap,
}
