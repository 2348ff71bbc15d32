"""Test by permutation what explains distances, assess noise, map samples; for users and most packages; arrays only."""

from heatmover.statistics.designs import Design, DesignResult, TermResult, permanova_design
from heatmover.statistics.permutations import TestResult, false_discovery
from heatmover.statistics.tests import (
    Separation,
    dispersion,
    distance_correlation,
    explained_variation,
    neighbor_enrichment,
    permanova,
)

__all__ = [
    "Design",
    "DesignResult",
    "Separation",
    "TermResult",
    "TestResult",
    "dispersion",
    "distance_correlation",
    "explained_variation",
    "false_discovery",
    "neighbor_enrichment",
    "permanova",
    "permanova_design",
]


def __dir__() -> list[str]:
    return sorted(__all__)
