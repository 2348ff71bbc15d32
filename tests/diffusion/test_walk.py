"""The walk step by step against rational arithmetic, on graphs where nothing else keeps its digits."""

from fractions import Fraction

import numpy as np
import pytest

from heatmover.diffusion.exact import WalkDiffuser
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.graphs import Graph


def falling_path(ratio, n_points=6):
    weights = ratio ** np.arange(n_points - 1.0)
    return np.diag(weights, 1) + np.diag(weights, -1) + np.diag(np.append(weights, weights[-1]))


def rational_powers(affinity, count):
    """P, P^2, P^4, ... without any rounding, as floats ``(count, n_points, n_points)``."""
    exact = [[Fraction(float(value)) for value in row] for row in affinity]
    sums = [sum(row) for row in exact]
    normed = [[value / q / p for value, p in zip(row, sums, strict=True)] for row, q in zip(exact, sums, strict=True)]
    power = [[value / sum(row) for value in row] for row in normed]
    found = []
    for _ in range(count):
        found.append([[float(value) for value in row] for row in power])
        columns = list(zip(*power, strict=True))
        power = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in power]
    return np.array(found)


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("ratio", [0.5, 2.0**-10, 2.0**-100])
def test_every_entry_is_right_however_small(ratio, adjoint):
    affinity = falling_path(ratio)
    diffuser = WalkDiffuser(DiffusionOperator.from_graph(Graph.from_affinity(affinity)), adjoint=adjoint)
    expected = rational_powers(affinity, 5)
    expected = expected.swapaxes(1, 2) if adjoint else expected
    found = np.array(list(diffuser.diffuse(np.eye(6), range(5))))
    for scale, bound in enumerate(diffuser.error_bound(range(5))):
        np.testing.assert_allclose(found[scale], expected[scale], rtol=bound, atol=1e-300)


def test_scales_may_start_anywhere_and_go_on_for_ever():
    diffuser = WalkDiffuser(DiffusionOperator.from_graph(Graph.from_affinity(falling_path(1e-5))), adjoint=True)
    masses = np.eye(6)[:, :3]
    densities = list(diffuser.diffuse(masses, range(6)))
    for density, other in zip(densities[3:], diffuser.diffuse(masses, range(3, 6)), strict=True):
        np.testing.assert_array_equal(density, other)
    for density, other in zip(densities, diffuser.diffuse_progressively(masses), strict=False):
        np.testing.assert_array_equal(density, other)


@pytest.mark.parametrize("scales", [range(4), range(2, 5)])
def test_collect_is_the_transpose(scales):
    diffuser = WalkDiffuser(DiffusionOperator.from_graph(Graph.from_affinity(falling_path(1e-4))), adjoint=True)
    rng = np.random.default_rng(0)
    masses, blocks = rng.random((6, 2)), rng.normal(size=(len(scales), 6, 2))
    expected = sum(block.T @ density for block, density in zip(blocks, diffuser.diffuse(masses, scales), strict=True))
    np.testing.assert_allclose(diffuser.collect(iter(blocks), scales).T @ masses, expected, rtol=1e-12)
