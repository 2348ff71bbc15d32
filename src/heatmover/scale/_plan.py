"""How the cells are cut: pieces of work by their number, blocks in memory by the budget, and what a stage takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from heatmover.cohort import Cohort
from heatmover.embedding.preparation import LARGEST_EMBEDDING
from heatmover.errors import InvalidInputError
from heatmover.graphs.search.kmeans import PER_LANDMARK

__all__ = ["LOSS_POINTS", "Plan", "make_plan"]

# Cells of a piece, which is what a task does, a checkpoint keeps and a dead worker loses: 5 to 10 s of work with
# 27,000 landmarks. It does not depend on memory or workers, so that these may change before a run is resumed.
MOST_CELLS, LEAST_CELLS, PIECES = 2**18, 2**13, 64
# Rows in memory at a time: fewer are read and searched more slowly, more bring nothing.
MOST_ROWS, LEAST_ROWS = 2**16, 2**11
# What the search for the nearest landmark takes beside the points, per thread: 50 MB measured.
SEARCH_BYTES = 64_000_000
# Copies of a block at once: as read, as points, in float64, and the difference from the landmarks.
BLOCK_COPIES = 5
# Cells that tell what landmarks cost, as in `landmark_loss`.
LOSS_POINTS = 10_000
# Scales kept by the default settings, at most; of a landmark's neighbours both directions are stored, and kernels,
# normalisation and the recurrence hold copies.
SCALES, EDGE_BYTES = 16, 60


@final
@dataclass(frozen=True)
class Plan:
    """Pieces of work and the memory that every stage takes.

    Attributes
    ----------
    n_cells, n_samples, n_dimensions, n_landmarks
        Sizes of the problem.
    n_drawn
        Cells that k-means looks at.
    piece_rows, block_rows
        Cells of a task; of them in memory at a time.
    n_workers
        Tasks at a time in the memory of one process.
    n_types
        Cell types that are counted apart.
    """

    n_cells: int
    n_samples: int
    n_dimensions: int
    n_landmarks: int
    n_drawn: int
    n_neighbors: int
    n_columns: int
    piece_rows: int
    block_rows: int
    n_workers: int
    n_types: int = 1

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Borders of the pieces of work, in cells."""
        starts = range(0, self.n_cells, self.piece_rows)
        return [(start, min(start + self.piece_rows, self.n_cells)) for start in starts]

    @property
    def held(self) -> int:
        """Bytes that are there throughout: the sample of each cell and its type."""
        return 4 * self.n_cells * (1 if self.n_types == 1 else 2)

    @property
    def bounds(self) -> dict[str, int]:
        """Bytes that each stage takes at most beside ``held``, by name."""
        width = 8 * self.n_dimensions
        drawn = (self.n_drawn + LOSS_POINTS) * width
        working = self.n_workers * self.block_rows * _row_bytes(self.n_columns, self.n_dimensions)
        searching = self.n_workers * SEARCH_BYTES
        edges = self.n_landmarks * self.n_neighbors * 2 * EDGE_BYTES
        embedding = min(self.n_samples * self.n_landmarks * SCALES * 4, LARGEST_EMBEDDING)
        return {
            # Counting and finding the cells of each sample takes nine bytes a cell for a moment.
            "draw cells": drawn + working + 9 * self.n_cells,
            # The points, their copy in float64, the columns on their way into sums, and nearest with squares.
            "find landmarks": 3 * drawn + 48 * self.n_drawn + searching,
            "count cells": working + searching + 40 * self.histogram_entries,
            "compare samples": edges + 2 * embedding + 16 * self.n_samples**2 + 24 * self.histogram_entries,
        }

    @property
    def histogram_entries(self) -> int:
        """Pairs of a sample and a landmark, and types there, that may have cells."""
        return min(self.n_cells, self.n_samples * self.n_landmarks * self.n_types)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes that a checkpoint may take: rows drawn, counts per piece, the embedding."""
        counts = 16 * min(self.n_cells, len(self.pieces) * self.histogram_entries)
        embedding = min(self.n_samples * self.n_landmarks * SCALES * 4, LARGEST_EMBEDDING)
        return (self.n_drawn + LOSS_POINTS) * 8 * self.n_dimensions + counts + embedding


def _row_bytes(n_columns: int, n_dimensions: int) -> int:
    """Bytes of a cell in the making: its columns as read, its point in several copies, and sorting by landmark."""
    return 8 * n_columns * 2 + 8 * n_dimensions * BLOCK_COPIES + 64


def make_plan(
    cohort: Cohort, n_landmarks: int, n_neighbors: int, *, memory: int, n_workers: int, n_types: int = 1
) -> Plan:
    """Return the plan, or raise if the budget cannot hold it.

    Parameters
    ----------
    cohort
        The cells.
    n_landmarks, n_neighbors
        Of the graph.
    memory
        Bytes.
    n_workers
        Tasks at a time in the memory of one process.
    n_types
        Cell types that are counted apart.
    """
    if n_landmarks > cohort.n_cells:
        raise InvalidInputError(
            f"at least landmarks={n_landmarks} cells", f"{cohort.n_cells}", "use fewer landmarks, or hm.compare without"
        )
    n_columns = len(cohort.reader.features)
    row = n_workers * _row_bytes(n_columns, cohort.n_dimensions)

    def plan(block_rows: int) -> Plan:
        return Plan(
            cohort.n_cells, len(cohort.names), cohort.n_dimensions, n_landmarks,
            min(cohort.n_cells, PER_LANDMARK * n_landmarks), n_neighbors, n_columns,
            min(MOST_CELLS, max(LEAST_CELLS, -(-cohort.n_cells // PIECES))), block_rows, n_workers, n_types,
        )  # fmt: skip

    least = plan(LEAST_ROWS)
    stage, need = max(least.bounds.items(), key=lambda item: item[1])
    if least.held + need > memory:
        raise InvalidInputError(
            f"memory of at least {(least.held + need) / 1e6:,.0f} MB for {cohort.n_cells:,} cells of "
            f"{len(cohort.names)} samples and {n_landmarks:,} landmarks ({stage!r})",
            f"{memory / 1e6:,.0f} MB",
            "allow more, or use fewer landmarks or fewer threads",
        )
    # The stages that read cells have what the budget leaves beside their other needs.
    spare = memory - least.held - max(least.bounds["draw cells"], least.bounds["count cells"])
    return plan(min(MOST_ROWS, LEAST_ROWS + spare // row))
