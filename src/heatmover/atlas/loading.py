"""`load`: whatever heatmover saved."""

from __future__ import annotations

import os

from heatmover.atlas.atlas import ATLAS_SCHEMA, ATLAS_VERSION, Atlas
from heatmover.embedding.estimator import MODEL_SCHEMA, MODEL_VERSION, DiffusionEMD
from heatmover.storage import Record, Store

__all__ = ["load", "verify"]


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
    store = Store.open(path, {MODEL_SCHEMA: MODEL_VERSION, ATLAS_SCHEMA: ATLAS_VERSION})
    if store.manifest.kind == ATLAS_SCHEMA:
        return Atlas.load(path)
    return DiffusionEMD.from_record(Record.from_store(store))


def verify(path: str | os.PathLike[str]) -> dict[str, int]:
    """Check every bit of a saved model, atlas or index in little memory, or raise.

    Parameters
    ----------
    path
        Of the folder.

    Returns
    -------
    dict
        Bytes of each file by its place in the folder.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "line.model"
    >>> hm.DiffusionEMD(hm.Graph.from_grid((30,))).fit().save(path)
    >>> verify(path)["part000001/prepared/operator/degree/c/0"]
    240
    """
    return Store.open(path).verify()
