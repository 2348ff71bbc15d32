"""Values on disk: append-only shards of samples that are checked to the last bit."""

from heatmover.storage.lock import writing
from heatmover.storage.shards import Schema, Shards, Table, Variable, sealed, unsealed

__all__ = ["Schema", "Shards", "Table", "Variable", "sealed", "unsealed", "writing"]
