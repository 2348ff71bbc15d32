"""Does a variable explain the distances? Permutation tests on distances between samples."""

from heatmover.statistics.permutations import TestResult
from heatmover.statistics.separation import Separation
from heatmover.statistics.tests import (
    dispersion,
    distance_correlation,
    explained_variation,
    false_discovery,
    neighbor_enrichment,
    permanova,
)

__all__ = [
    "Separation",
    "TestResult",
    "dispersion",
    "distance_correlation",
    "explained_variation",
    "false_discovery",
    "neighbor_enrichment",
    "permanova",
]
