"""`samples`: an AnnData whose observations are samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from heatmover._validation import check_integer, check_option
from heatmover.errors import InvalidInputError
from heatmover.tl._table import Labels, check_anndata, read_labels
from heatmover.tl.layout import KEY, MAPS, assemble, check_stored, unpack

__all__ = ["samples"]


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
