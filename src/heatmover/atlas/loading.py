"""`load`: whatever heatmover saved."""

from __future__ import annotations

import os

from heatmover.atlas.atlas import ATLAS_SCHEMA, ATLAS_VERSION, Atlas
from heatmover.embedding.estimator import MODEL_SCHEMA, MODEL_VERSION, DiffusionEMD
from heatmover.storage import read_store

__all__ = ["load"]


def load(path: str | os.PathLike[str]) -> DiffusionEMD | Atlas:
    """Read a fitted model or an atlas that was saved, to the same bits.

    Every file is checked against its SHA-256 before it is used. A store that is damaged, that another program wrote,
    or that needs a newer heatmover, is refused with the reason.

    Parameters
    ----------
    path
        Of the folder that `DiffusionEMD.save` or `Atlas.save` made.

    Returns
    -------
    DiffusionEMD or Atlas
        Whichever was saved.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "line.model"
    >>> hm.DiffusionEMD(hm.Graph.from_grid((30,))).fit().save(path)
    >>> hm.load(path).n_features_in_
    30
    """
    stored = read_store(path, {MODEL_SCHEMA: MODEL_VERSION, ATLAS_SCHEMA: ATLAS_VERSION})
    return (Atlas if stored.schema == ATLAS_SCHEMA else DiffusionEMD).from_record(stored.record)
