"""Values on disk, checked to the last bit: stores that are written whole, and append-only shards of samples."""

from heatmover.storage.lock import writing
from heatmover.storage.record import Record
from heatmover.storage.shards import Schema, Shards, Table, Variable, sealed, unsealed
from heatmover.storage.store import Stored, peek_store, read_store, verify_store, write_store

__all__ = [
    "Record",
    "Schema",
    "Shards",
    "Stored",
    "Table",
    "Variable",
    "peek_store",
    "read_store",
    "sealed",
    "unsealed",
    "verify_store",
    "write_store",
    "writing",
]
