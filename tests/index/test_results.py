"""The exact Earth Mover's Distance of a shortlist."""

from __future__ import annotations

import numpy as np
import pytest

from heatmover.errors import InvalidInputError
from heatmover.index import exact_emd

pytest.importorskip("ot")

PLACES = np.arange(6.0)
COSTS = abs(PLACES[:, None] - PLACES)
STORED = np.random.default_rng(0).dirichlet(np.ones(6), size=5)
ASKED = np.random.default_rng(1).dirichlet(np.ones(6), size=2)


def on_the_line(one, other):
    """Between measures on a line: the area between their distribution functions."""
    return np.abs(np.cumsum(one - other))[:-1].sum()


@pytest.mark.parametrize("costs", [COSTS, lambda a, b: COSTS[np.ix_(a, b)].copy()])
def test_it_is_the_distance_on_the_line(costs):
    distance = exact_emd(STORED, ASKED, costs)
    rows = np.array([4, 0, 2])
    for query in range(2):
        expected = [on_the_line(ASKED[query], STORED[row]) for row in rows]
        np.testing.assert_allclose(distance(query, rows), expected, rtol=1e-9)


def test_what_does_not_fit():
    with pytest.raises(InvalidInputError, match="queries on the 6 points"):
        exact_emd(STORED, np.ones((1, 3)) / 3, COSTS)
    with pytest.raises(InvalidInputError, match=r"costs \(6, 6\)"):
        exact_emd(STORED, ASKED, COSTS[:3])
    with pytest.raises(InvalidInputError, match="finite, non-negative costs"):
        exact_emd(STORED, ASKED, COSTS - 1)
    with pytest.raises(InvalidInputError, match="the measure of every row"):
        exact_emd(STORED, ASKED, COSTS)(0, np.array([5]))
