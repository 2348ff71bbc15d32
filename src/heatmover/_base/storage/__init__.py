"""Models, atlases, indexes and checkpoints on disk: folders written whole and checked when read."""

from heatmover._base.storage.record import Record
from heatmover._base.storage.samples import Samples, Schema, Table, parts_of
from heatmover._base.storage.store import DAMAGED, Store, explained, sealed, unsealed, writing

__all__ = [
    "DAMAGED",
    "Record",
    "Samples",
    "Schema",
    "Store",
    "Table",
    "explained",
    "parts_of",
    "sealed",
    "unsealed",
    "writing",
]
