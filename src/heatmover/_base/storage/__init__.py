"""Write models, atlases, indexes and checkpoints to folders on disk, and check them when they are read."""

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
