"""Read samples of an AnnData, store comparisons in it, build AnnData of samples; for users, `tl`, `pl`, `report`.

Users call only `samples`. Only the AnnData that is passed is changed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import Float64, Int32, Int64, Intp
from heatmover._base.validation import check_integer, check_option, import_extra
from heatmover._base.version import __version__
from heatmover._base.words import counted, distinct, find, listed, quoted, verb
from heatmover.cohort import read_cohort
from heatmover.cohort.samples import SampleTable
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs.graph import Graph
from heatmover.measures import Measures, measures_from_labels
from heatmover.statistics.manifold import classical_scaling, diffusion_map, phate, sample_graph, umap
from heatmover.study.cell_types import SampleComposition, annotate, shares_of
from heatmover.study.comparison import Comparison

# Default key of ``.uns`` for results; an AnnData with samples as rows is recognized by this key.
KEY = "heatmover"
MAPS = ("mds", "diffusion", "phate", "umap")
# Size in bytes of the largest embedding that is stored. A larger embedding could take more space than the cells: for
# 100 samples and ten scales, an embedding takes 400 MB on a graph over 100,000 cells, and 16 MB on 4,000 landmarks.
LARGEST_EMBEDDING = 64_000_000


class Labels(NamedTuple):
    """The sample of each cell.

    Attributes
    ----------
    names
        Names of the samples, sorted.
    codes
        ``(n_cells,)``: sample of each cell, as an index into ``names``.
    varying
        Columns that vary within samples.
    sizes
        ``(n_samples,)``: number of cells of each sample.
    first
        ``(n_samples,)``: row number of the first cell of each sample.
    """

    names: tuple[str, ...]
    codes: Int32
    varying: tuple[str, ...]
    sizes: Int64
    first: Intp


def check_anndata(adata: Any, copy: bool = False) -> None:
    """Raise an error if this is not an AnnData, or if ``copy`` is requested for an AnnData backed by a file."""
    anndata = import_extra("anndata", package="anndata", extra="cohort")
    if isinstance(adata, anndata.AnnData):
        if copy and adata.isbacked:
            raise InvalidInputError("an AnnData in memory to copy", "an AnnData backed by a file", "use copy=False")
        return
    advice = ""
    if isinstance(adata, str | os.PathLike):
        advice = "read the file first, anndata.read_h5ad(path)"
    elif hasattr(adata, "mod"):
        advice = "pass one modality, such as data.mod['rna']"
    raise InvalidInputError("an AnnData object", type(adata).__name__, advice)


def read_labels(adata: Any, sample_key: str, columns: Sequence[str]) -> Labels:
    """Return the sample of each cell, and the names of the ``columns`` that vary within samples."""
    present = list(adata.obs.columns)
    distinct([str(name) for name in present], "columns of obs")
    table = SampleTable(find(sample_key, present, f"{argument('sample_key')} to be a column of obs"), columns)
    table.add(adata.obs[sample_key], {name: adata.obs[name] for name in columns})
    names, codes = table.finish()
    _, first, sizes = np.unique(codes, return_index=True, return_counts=True)
    return Labels(names, codes, tuple(table.varying), sizes.astype(np.int64), first)


def read_input(adata: Any, asked: Mapping[str, Any]) -> tuple[npt.NDArray[Any] | Graph, Measures]:
    """Return the cells (or the graph over them) and the samples that the parameters of `sample_distances` select."""
    sample_key = str(asked["sample_key"])
    places: npt.NDArray[Any] | Graph
    if "neighbors_key" in asked:
        labels = read_labels(adata, sample_key, [])
        names, codes = labels.names, labels.codes
        places = Graph.from_affinity(_connectivities(adata, str(asked["neighbors_key"])))
        single = [name for name, size in zip(names, labels.sizes, strict=True) if size == 1]
        subject = f"{counted(len(single), 'sample')} {verb(len(single), 'has', 'have')}"
        sentences = [f"{subject} a single cell: {listed(single)}."] if single else []
    else:
        used = asked["use_rep"]
        cohort = read_cohort(
            adata,
            sample_key=sample_key,
            representation=str(used) if isinstance(used, str) else [str(name) for name in used],
            annotations=[],
            standardize=bool(asked["standardize"]),
        )
        places, names, codes, sentences = cohort.points(), cohort.names, cohort.codes, list(cohort.warnings)
    for sentence in sentences:
        warnings.warn(sentence, UserWarning, stacklevel=3)
    # Use codes, which are already sorted like the names: sorting a million names would take seconds.
    return places, replace(measures_from_labels(codes), names=names)


def _connectivities(adata: Any, key: str) -> Any:
    """Return the affinity between cells from a key of obsp, or from the key of obsp that an entry of uns names."""
    settings = adata.uns.get(key)
    if hasattr(settings, "get"):
        target = settings.get("connectivities_key", "connectivities")
        return adata.obsp[find(target, list(adata.obsp), f"obsp to hold the graph to which uns[{quoted(key)}] refers")]
    of_scanpy = [name for name, value in adata.uns.items() if hasattr(value, "get") and "connectivities_key" in value]
    what = "neighbors_key to be a key of obsp, or a key that scanpy.pp.neighbors wrote to uns"
    return adata.obsp[find(key, [*adata.obsp, *of_scanpy], what)]


def check_target(adata: Any, key_added: object, copy: bool) -> None:
    """Raise an error if results cannot be written to an AnnData (or to its copy) under the key ``key_added``."""
    check_anndata(adata, copy)
    if not isinstance(key_added, str) or not key_added or "/" in key_added:
        raise InvalidInputError("key_added to be a name without '/'", repr(key_added))


def pack(result: Comparison, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison and its parameters as a dictionary that AnnData can store."""
    settings = result.model.get_params(deep=False)
    model = {name: value for name, value in settings.items() if name not in ("graph", "n_jobs")}
    if model["weights"] is not None:  # anndata cannot store tuples
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
    """Write results to ``.uns`` and columns to ``.obs``; a view is copied silently, as in other scverse tools."""
    with warnings.catch_warnings():
        if adata.is_view:
            warnings.filterwarnings("ignore", message="Trying to modify attribute")
        if columns is not None:
            adata.obs = adata.obs.assign(**columns)
        adata.uns[key] = packed


def unpack(adata: Any, key: str) -> Mapping[str, Any]:
    """Return the stored results, or raise an error that names what is missing."""
    parts = {"params", "names", "sizes", "distances", "scales"}
    ours = [name for name, value in adata.uns.items() if hasattr(value, "keys") and parts <= set(value)]
    if not ours:
        raise InvalidInputError(
            "an AnnData with distances between samples", "none in uns", "call hm.tl.sample_distances(adata, ...) first"
        )
    stored: Mapping[str, Any] = adata.uns[find(key, ours, "the argument key to name results of hm.tl.sample_distances")]
    return stored


def scale_summary(result: Comparison) -> dict[str, Any]:
    """Return the scales, the share of each scale in the mean distance, and the reason for the largest scale."""
    model = result.model
    return {
        "scale": np.asarray(model.scales_, dtype=np.int64),
        "share": result.scale_shares.copy(),
        "max_scale": int(model.max_scale_),
        "reason": result.max_scale_reason,
        "decay": np.asarray(model.decay_, dtype=np.float64),
    }


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    # Leave out None, which older versions of anndata cannot store.
    return {name: value for name, value in values.items() if value is not None}


def check_stored(stored: Mapping[str, Any], names: tuple[str, ...], sizes: Int64) -> list[int]:
    """Return the indices of the current samples in the stored results, or raise if their cells have changed."""
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
        AnnData of cells after `sample_distances`.
    key
        Key of ``.uns`` under which `sample_distances` stored its results.
    annotation
        Column of ``.obs`` with the type of each cell.
    """
    stored = unpack(adata, key)
    name = find(annotation, list(adata.obs.columns), "the argument cells to be the name of a column of obs")
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
    """Return an AnnData with one row per sample, for the tools and plots of scanpy.

    Parameters
    ----------
    adata
        AnnData of cells after `sample_distances`. If all cells of a sample were removed since, the sample is left out.
        If some cells of a sample were added or removed, the distances are out of date, and an error is raised.
    key
        Key of ``.uns`` under which `sample_distances` stored its results.
    k
        Number of neighbors of each sample in the graph of samples, at most all other samples.
    n_components
        Number of columns of the maps, or fewer if there are few samples; PHATE and UMAP have two columns.
    maps
        Maps to compute in addition to ``"mds"`` (classical multidimensional scaling): ``"diffusion"`` (diffusion map),
        ``"phate"`` and ``"umap"``, which need the extras ``phate`` and ``umap``.
    random_state
        Seed of PHATE and UMAP.

    Returns
    -------
    AnnData
        One row for each sample, in the order of the sample names:

        - ``.obs``: every column that is constant within samples, with its type, categories and colors, and
          ``n_cells``;
        - ``.obsm``: ``"X_mds"``, ``"X_diffusion"`` and the other maps. If the embedding was stored, it is
          ``"X_heatmover"``, and its L1 distances are the sample distances. Methods that need Euclidean distances
          should use ``"X_mds"``;
        - ``.obsp``: ``"distances"`` of all pairs of samples, and ``"connectivities"`` (see `manifold.sample_graph`);
        - ``.uns``: ``"neighbors"`` as `scanpy.pp.neighbors` writes it, ``"mds"`` with the share of the variance on
          each axis, and ``"heatmover"`` with parameters, scales, and ``"varying"``: names of columns that vary within
          samples and are therefore not in ``.obs``.

        ``.X`` is empty, because a sample is a distribution of cells, not a row of variables.

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
        raise InvalidInputError("cells of at least two samples", f"cells of {labels.names[0]!r} only")
    obs = adata.obs[[name for name in adata.obs.columns if name not in labels.varying]].iloc[labels.first].copy()
    obs.index = list(labels.names)
    obs["n_cells"] = labels.sizes
    packed = {
        **stored,
        "distances": np.asarray(stored["distances"], dtype=np.float64)[np.ix_(rows, rows)],
        **({"embedding": np.asarray(stored["embedding"])[rows]} if "embedding" in stored else {}),
    }
    if "intervals" in stored:
        limits = stored["intervals"]
        bounds = {name: np.asarray(limits[name])[np.ix_(rows, rows)] for name in ("lower", "upper")}
        packed["intervals"] = {**bounds, "confidence": float(limits["confidence"])}
    made = assemble(packed, obs, labels.varying, k=k, n_components=count, maps=wanted, random_state=random_state)
    colors = [f"{column}_colors" for column in obs.columns]  # where scanpy stores the colors of categories
    made.uns.update({name: deepcopy(adata.uns[name]) for name in colors if name in adata.uns})
    return made


def _check_maps(maps: Sequence[str]) -> list[str]:
    if isinstance(maps, str):
        raise InvalidInputError("the argument maps to be a list of names", repr(maps), f"write [{maps!r}]")
    for name in maps:
        check_option("every map", name, MAPS)
    # "mds" is always included, because scanpy's UMAP starts from it.
    return list(dict.fromkeys(["mds", *maps]))


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
        Comparison as returned by `pack`.
    table
        DataFrame of sample metadata with a row for each sample, in the order of the distances.
    varying
        Names of columns that vary within samples and are not in ``table``.
    k, n_components, maps, random_state
        As in `samples`, already checked.
    """
    anndata = import_extra("anndata", package="anndata", extra="cohort")
    distances = packed["distances"]
    neighbors = min(check_integer("k", k, minimum=1), len(distances) - 1)
    scaling, shares = classical_scaling(distances, min(n_components, len(distances)))
    obsm = {
        f"X_{name}": scaling if name == "mds" else compute_map(name, distances, n_components, neighbors, random_state)
        for name in maps
    }
    if "embedding" in packed:
        obsm["X_heatmover"] = packed["embedding"]
    names = ("params", "scales", "landmarks", "drawn", "intervals", "units")
    carried = {name: deepcopy(packed[name]) for name in names if name in packed}
    # For its UMAP, scanpy requires a representation to start from, and the name of a metric that scanpy supports.
    settings = {
        "n_neighbors": neighbors,
        "method": "umap",
        "metric": "euclidean",
        "use_rep": "X_mds",
        "random_state": 0,
    }
    keys = {"connectivities_key": "connectivities", "distances_key": "distances"}
    return anndata.AnnData(
        obs=table,
        obsm=obsm,
        obsp={"distances": distances, "connectivities": sp.csr_matrix(sample_graph(distances, k=neighbors))},
        uns={
            KEY: {**carried, "varying": np.array(varying, dtype=object)},
            "mds": {"variance_ratio": shares},
            "neighbors": {**keys, "params": {"n_neighbors": neighbors, **settings}},
        },
    )


def compute_map(name: str, distances: Float64, n_components: int, k: int, random_state: int = 0) -> Float64:
    """Return a map of samples other than ``"mds"``; with few samples, ``k`` and ``n_components`` are reduced.

    Parameters
    ----------
    name
        Name of the map, one of `MAPS`.
    distances
        Distances between samples, ``(n_samples, n_samples)``.
    n_components
        Number of columns of a diffusion map; PHATE and UMAP have two columns.
    k
        Number of neighbors of each sample.
    random_state
        Seed of PHATE and UMAP.
    """
    n_samples = len(distances)
    if name == "diffusion":
        return diffusion_map(distances, min(n_components, n_samples - 1), k=min(k, n_samples - 1))
    if name == "phate":
        return phate(distances, k=max(1, min(k, 5, n_samples - 2)), random_state=random_state)
    return umap(distances, k=max(1, min(k, n_samples - 2)), random_state=random_state)
