"""`load`: whatever heatmover saved."""

from __future__ import annotations

import os

from heatmover.atlas.atlas import ATLAS_SCHEMA, ATLAS_VERSION, Atlas, verify_atlas
from heatmover.embedding.estimator import MODEL_SCHEMA, MODEL_VERSION, DiffusionEMD
from heatmover.storage import peek_store, read_store, verify_store

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
    if peek_store(path).schema == ATLAS_SCHEMA:
        return Atlas.load(path)
    # Both, so that a store of something else is refused with all that can be read.
    return DiffusionEMD.from_record(read_store(path, {MODEL_SCHEMA: MODEL_VERSION, ATLAS_SCHEMA: ATLAS_VERSION}).record)


def verify(path: str | os.PathLike[str]) -> dict[str, int]:
    """Check every bit of a saved model or atlas in little memory, or raise.

    Parameters
    ----------
    path
        Of the folder.

    Returns
    -------
    dict
        Bytes of each array by its place in the folder.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "line.model"
    >>> hm.DiffusionEMD(hm.Graph.from_grid((30,))).fit().save(path)
    >>> verify(path)["prepared/operator/degree"]
    240
    """
    return verify_atlas(path) if peek_store(path).schema == ATLAS_SCHEMA else dict(verify_store(path))
