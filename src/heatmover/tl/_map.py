"""Map samples of an AnnData onto an atlas, write to its ``.uns`` and ``.obs``; for users, as `tl.map_samples`.

Users call `map_samples` with cells in memory and with an atlas in memory or on disk.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from heatmover.atlas.atlas import Atlas, load
from heatmover.errors import InvalidInputError
from heatmover.tl.layout import check_target, write


def map_samples(
    adata: Any,
    atlas: Atlas | str | os.PathLike[str],
    sample_key: str | None = None,
    *,
    k: int | None = None,
    predict: Sequence[str] = (),
    n_jobs: int | None = None,
    key_added: str = "heatmover_atlas",
    copy: bool = False,
) -> Any:
    """Map the samples of an AnnData onto an atlas and write the result to ``.uns`` and ``.obs``.

    Results are written last, so ``adata`` does not change if an error occurs.

    Parameters
    ----------
    adata
        AnnData with one row per cell. The features of the atlas must be among ``var_names``, or in the key of ``obsm``
        from which the atlas was built.
    atlas
        An `Atlas`, or the path of a saved atlas.
    sample_key
        Column of ``.obs`` with the sample of each cell; default: the column from which the samples of the reference
        were read.
    k
        Number of nearest reference samples to store and to predict from. None: 10, or all reference samples if there
        are fewer than 10.
    predict
        Names of the variables to predict.
    n_jobs
        Number of threads; None for all cores.
    key_added
        Key of ``.uns`` under which the results are stored, and prefix of the new column of ``.obs``.
    copy
        Return a copy with the results instead of writing to ``adata``.

    Returns
    -------
    AnnData or None
        The copy if ``copy``, else None. ``.uns[key_added]`` contains ``"names"``, ``"sizes"``, ``"distances"``
        ``(n_samples, n_reference)``, ``"reference"`` (names), ``"nearest"`` ``(n_samples, k)`` (indices into these
        names), ``"far"`` (share of cells far from the reference), ``"p_values"``, ``"covered"`` ("true", "false" or
        "unknown"), ``"coordinates"`` on the map of the reference, and, for each predicted variable, the predicted
        values, the votes and the estimated reliability. ``.obs[key_added + "_p"]`` is the p-value of each cell; it is
        small if the reference has no similar cells.

    Examples
    --------
    >>> import anndata
    >>> import pandas as pd
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(8, cells_per_sample=50)
    >>> obs = pd.DataFrame({"sample": data.labels}, index=[f"cell-{i}" for i in range(400)])
    >>> adata = anndata.AnnData(data.points, obs=obs)
    >>> atlas = hm.build_atlas(hm.read_cohort(adata, sample_key="sample"))
    >>> hm.tl.map_samples(adata, atlas)
    >>> adata.uns["heatmover_atlas"]["distances"].shape
    (8, 8)
    """
    check_target(adata, key_added, copy)
    reference = atlas if isinstance(atlas, Atlas) else load(atlas)
    if not isinstance(reference, Atlas):
        raise InvalidInputError("an atlas", type(reference).__name__, "build one with hm.build_atlas")
    mapped = reference.map(adata, sample_key=sample_key, n_jobs=n_jobs)
    n_nearest = min(10, len(reference.names)) if k is None else k
    results: dict[str, Any] = {
        "names": np.array(mapped.names, dtype=object),
        "sizes": mapped.sizes.copy(),
        "distances": mapped.distances.copy(),
        "reference": np.array(reference.names, dtype=object),
        "nearest": mapped.nearest(n_nearest)[1],
        "coordinates": mapped.coordinates(),
    }
    for variable in predict:
        answer = mapped.predict(variable, k)
        values = answer.values if answer.is_number else [str(value) for value in answer.values]
        results.setdefault("predicted", {})[variable] = {
            "values": np.array(values, dtype=np.float64 if answer.is_number else object),
            "votes": answer.votes,
            "chances": answer.chances,
        }
    words = {None: "unknown", True: "true", False: "false"}
    results["far"], results["p_values"] = mapped.coverage.shares, mapped.coverage.p_values
    results["covered"] = np.array([words[verdict] for verdict in mapped.coverage.covered], dtype=object)
    for sentence in mapped.warnings:
        warnings.warn(sentence, UserWarning, stacklevel=2)
    target = adata.copy() if copy else adata
    write(target, key_added, results)
    target.obs[f"{key_added}_p"] = mapped.coverage.cell_p_values
    return target if copy else None
