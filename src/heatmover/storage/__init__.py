"""Values on disk: stores of arrays that are checked to the last bit."""

from heatmover.storage.record import Record
from heatmover.storage.store import Stored, peek_store, read_store, verify_store, write_store

__all__ = ["Record", "Stored", "peek_store", "read_store", "verify_store", "write_store"]
