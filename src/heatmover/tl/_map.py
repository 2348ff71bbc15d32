"""`map_samples`: where the samples of an AnnData land on an atlas."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from heatmover.atlas.atlas import Atlas, load
from heatmover.errors import InvalidInputError
from heatmover.tl.layout import check_target, write

__all__ = ["map_samples"]


def map_samples(
    adata: Any,
    atlas: Atlas | str | os.PathLike[str],
    sample_key: str | None = None,
    *,
    k: int | None = None,
    predict: Sequence[str] = (),
    placement: Literal["nearest", "kernel"] = "nearest",
    n_jobs: int | None = None,
    key_added: str = "heatmover_atlas",
    copy: bool = False,
) -> Any:
    """Map the samples of an AnnData onto an atlas and write what was found to ``.uns`` and ``.obs``.

    Everything is computed first and written last: if anything fails, ``adata`` is as it was.

    Parameters
    ----------
    adata
        Cells in rows, with the features of the atlas among ``var_names``, or in the key of ``obsm`` that it was built
        from.
    atlas
        An `Atlas`, or where one was saved.
    sample_key
        Column of ``.obs`` that tells the sample of each cell; default as in the reference.
    k
        Nearest reference samples to write, and to vote; None for 10, or as many as there are.
    predict
        Variables of the reference to predict.
    placement
        How cells go to the nodes, see `Atlas.map`.
    n_jobs
        Threads; None for all cores.
    key_added
        Where to write.
    copy
        Return a copy with the results instead of writing to ``adata``.

    Returns
    -------
    AnnData or None
        The copy if ``copy``, else None. ``.uns[key_added]`` holds ``"names"``, ``"sizes"``, ``"distances"``
        ``(n_samples, n_reference)``, ``"reference"`` (names), ``"nearest"`` ``(n_samples, k)`` into these, ``"far"``
        (share of far cells), ``"p_values"``, ``"covered"`` ("true", "false" or "unknown"), ``"coordinates"`` on the
        map of the reference, and for each predicted variable its values, votes and chances. ``.obs[key_added + "_p"]``
        is the p-value of each cell: small where the reference has no such cells.

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
        raise InvalidInputError("an atlas", type(reference).__name__, "hm.build_atlas makes one")
    mapped = reference.map(adata, sample_key=sample_key, placement=placement, n_jobs=n_jobs)
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
        values = np.array(answer.values, dtype=np.float64 if answer.is_number else object)
        values = values if answer.is_number else np.array([str(value) for value in answer.values], dtype=object)
        results.setdefault("predicted", {})[variable] = {
            "values": values,
            "votes": answer.votes,
            "chances": answer.chances,
        }
    if mapped.coverage is not None:
        told = {None: "unknown", True: "true", False: "false"}
        results["far"], results["p_values"] = mapped.coverage.shares, mapped.coverage.p_values
        results["covered"] = np.array([told[verdict] for verdict in mapped.coverage.covered], dtype=object)
    for sentence in mapped.warnings:
        warnings.warn(sentence, UserWarning, stacklevel=2)
    target = adata.copy() if copy else adata
    write(target, key_added, results)
    if mapped.coverage is not None:
        target.obs[f"{key_added}_p"] = mapped.coverage.cell_p_values
    return target if copy else None
