"""Find outliers, samples unusually far from the others of their group; studies call it, and it needs only arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Float64
from heatmover.statistics.permutations import check_distances, check_labels

# Samples beyond this limit are outliers. The usual limit of 3.5 would report an outlier in most homogeneous cohorts.
# The limit was tested on homogeneous cohorts of 10 to 100 samples in 1 to 4 groups and 2 or 3 dimensions (few
# dimensions are the hardest case), with 400 cohorts for each combination. In every combination, at most 4.3% of the
# cohorts had a sample beyond 10, and at most 8% had a sample beyond 8.
FAR = 10.0
# The median of a smaller group is unreliable: with 10 samples in groups of 5, 7% of the cohorts had a sample beyond 10.
FEWEST_SAMPLES, FEWEST_IN_GROUP = 10, 7
# Factor between the median absolute deviation of a normal distribution and its standard deviation.
NORMAL = 1.4826


def outlyingness(distances: npt.ArrayLike, groups: Any | None = None) -> Float64:
    """Return how far each sample lies from the samples of its own group, in robust standard deviations.

    A sample's median distance to the other samples of its group is divided by the median of these values in the group.
    The deviation of this ratio from 1 is divided by the median absolute deviation over all groups, scaled to a standard
    deviation. Samples above `FAR` are outliers.

    Parameters
    ----------
    distances
        Distances between samples, ``(n_samples, n_samples)``.
    groups
        Label of each sample, ``(n_samples,)``; None for one group.

    Returns
    -------
    ndarray of shape (n_samples,)
        NaN in groups of fewer than 7 samples. NaN in all groups if fewer than 10 samples remain, or if the distances do
        not vary.

    Examples
    --------
    >>> positions = np.append(np.arange(12.0), 100.0)
    >>> np.flatnonzero(outlyingness(abs(positions[:, None] - positions)) > FAR)
    array([12])
    """
    matrix = check_distances(distances)
    codes = np.zeros(len(matrix), dtype=np.int64)
    if groups is not None:
        codes = check_labels("groups", groups, len(matrix))[0]
    ratios = np.full(len(matrix), np.nan)
    for group in np.flatnonzero(np.bincount(codes) >= FEWEST_IN_GROUP):
        members = np.flatnonzero(codes == group)
        inside = matrix[np.ix_(members, members)]
        others = inside[~np.eye(len(members), dtype=bool)].reshape(len(members), -1)
        far = np.median(others, axis=1)
        if np.median(far) > 0:
            ratios[members] = far / np.median(far) - 1
    known = ~np.isnan(ratios)
    spread = NORMAL * float(np.median(np.abs(ratios[known]))) if known.sum() >= FEWEST_SAMPLES else 0.0
    return ratios / spread if spread > 0 else np.full(len(matrix), np.nan)
