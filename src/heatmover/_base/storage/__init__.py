"""Store models, atlases, indexes and checkpoints in folders on disk, check what is read; any package may call it."""

from heatmover._base.storage.record import Record
from heatmover._base.storage.samples import Samples, Schema, Table
from heatmover._base.storage.store import CACHE, DAMAGED, Store, explained, sealed, unsealed, writing

__all__ = [
    "CACHE",
    "DAMAGED",
    "Record",
    "Samples",
    "Schema",
    "Store",
    "Table",
    "explained",
    "sealed",
    "unsealed",
    "writing",
]
