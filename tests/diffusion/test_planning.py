"""What is chosen, and whether the reason given is true."""

import numpy as np
import pytest
import scipy.sparse as sp

from heatmover.diffusion import planning
from heatmover.diffusion.chebyshev import power_coefficients
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.planning import Planner
from heatmover.graphs import Graph

GRAPHS = {
    "grid": lambda: Graph.from_grid((32, 32)),
    "row": lambda: Graph.from_grid((400,)),
    "cloud": lambda: Graph.from_points(np.random.default_rng(0).normal(size=(800, 2)), n_neighbors=12),
}


@pytest.fixture(scope="module", params=GRAPHS)
def operator(request):
    return DiffusionOperator.from_graph(GRAPHS[request.param]())


@pytest.fixture(scope="module")
def grid():
    return DiffusionOperator.from_graph(GRAPHS["grid"]())


@pytest.fixture
def built(monkeypatch):
    """The first scales that a basis was built for, in order."""
    firsts = []

    def watch(name):
        plain = getattr(planning, name)

        def counted(operator, first, *args, **options):
            firsts.append(first)
            return plain(operator, first, *args, **options)

        monkeypatch.setattr(planning, name, counted)

    watch("spectral_factors")
    watch("interpolative_factors")
    return firsts


def planner(operator, method="auto", n_measures=1000, *, tol=1e-3, seed=0):
    return Planner(operator, method, n_measures, tol, np.random.default_rng(seed), 1)


def degree(operator, scale, tol=1e-3):
    return len(power_coefficients(2**scale, operator.lowest, tol)[0]) - 1


# --- auto ---------------------------------------------------------------------------------------------------------


def test_few_measures_are_not_worth_a_basis(operator, built):
    plan = planner(operator, n_measures=3)
    assert plan.settle(10) is None
    assert plan.chosen == "chebyshev"
    assert plan.reason.startswith(f"polynomials of degree {degree(operator, 10)} reach 2^10 steps")
    assert built == []


def test_what_a_basis_would_cost_is_told(operator, built, monkeypatch):
    monkeypatch.setattr(planning, "CHEAP", 0)
    plan = planner(operator, n_measures=3)
    assert plan.settle(10) is None
    assert f"polynomials of degree {degree(operator, 10)} reach 2^10 steps; for 3 measures a basis of" in plan.reason
    assert plan.reason.endswith("times as much")
    assert built == []


def test_small_scales_are_not_worth_a_basis(operator, built):
    for max_scale in (1, 2, 4):
        plan = planner(operator, n_measures=10_000)
        assert plan.settle(max_scale) is None
        assert plan.chosen == "chebyshev"
    assert built == []


def test_large_scales_are_worth_a_basis(operator, built):
    plan = planner(operator)
    factors = plan.settle(16)
    assert plan.chosen == "spectral"
    assert plan.factors is factors
    assert [factor.scale for factor in factors] == list(range(plan.first, 17))
    assert all(factor.bound <= 1e-3 for factor in factors)
    assert f"2^{plan.first} to 2^16 steps come from {factors[0].rank} eigenvectors, which costs" in plan.reason
    assert "% of polynomials alone for 1,000 measures" in plan.reason
    assert built == [plan.first]


def test_the_more_measures_the_smaller_the_scale_where_a_basis_pays(grid):
    smallest = []
    for n_measures in (100, 10_000):
        chosen = [planner(grid, n_measures=n_measures).settle(max_scale) is not None for max_scale in range(5, 15)]
        assert chosen == sorted(chosen)
        smallest.append(chosen.index(True))
    assert smallest[0] > smallest[1]


def test_the_share_of_the_cost_is_below_what_is_worthwhile(grid):
    plan = planner(grid)
    plan.settle(14)
    share = float(plan.reason.split("which costs ")[1].split("%")[0]) / 100
    assert 0 < share <= planning.WORTHWHILE


def test_too_large_a_rank_is_told(grid, monkeypatch, built):
    monkeypatch.setattr(planning, "MOST_VECTORS", 9)
    plan = planner(grid)
    assert plan.settle(6) is None
    assert plan.reason.endswith("the operator's powers have too large a rank for a basis")
    assert built == []


# --- a method that was asked for ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["chebyshev", "exact"])
def test_a_method_without_basis_is_respected(grid, built, method):
    plan = planner(grid, method, 10**6)
    assert plan.settle(16) is None
    assert (plan.chosen, plan.reason) == (method, "as asked for")
    assert plan.first > 30
    assert built == []


@pytest.mark.parametrize(("method", "vectors"), [("spectral", "eigenvectors"), ("interpolative", "skeleton points")])
@pytest.mark.parametrize("max_scale", [5, 12])
def test_a_basis_that_was_asked_for_is_built_whatever_it_costs(operator, method, vectors, max_scale):
    plan = planner(operator, method, 1)
    factors = plan.settle(max_scale)
    assert plan.chosen == method
    assert factors[-1].scale == max_scale
    assert plan.reason.startswith("as asked for; 2^")
    assert plan.reason.endswith(f"2^{max_scale} steps come from {factors[0].rank} {vectors}")


@pytest.mark.parametrize("method", ["spectral", "interpolative"])
@pytest.mark.parametrize("n_points", [1, 2, 5, 9])
def test_a_basis_is_possible_on_the_smallest_graphs(method, n_points):
    operator = DiffusionOperator.from_graph(Graph.from_grid((n_points,)))
    plan = planner(operator, method)
    assert plan.settle(8) is not None
    assert plan.chosen == method


@pytest.mark.parametrize("affinity", [np.ones((300, 300)), np.eye(300)], ids=["complete", "lone points"])
@pytest.mark.parametrize("method", ["auto", "spectral", "interpolative"])
def test_ranks_of_one_and_of_n(affinity, method):
    """Beside the known eigenvectors there is nothing: a basis without vectors."""
    plan = planner(DiffusionOperator.from_graph(Graph.from_affinity(affinity)), method)
    assert plan.settle(10)[0].rank == 0
    assert "come from 0" in plan.reason


@pytest.mark.parametrize("method", ["auto", "spectral", "interpolative"])
def test_a_single_step_needs_no_basis(grid, built, method):
    plan = planner(grid, method)
    assert plan.settle(0) is None
    assert plan.chosen == "chebyshev"
    assert plan.reason.startswith("polynomials of degree 1 reach 2^0 steps")
    assert method == "auto" or plan.reason.endswith("a single step needs no basis")
    assert built == []


# --- falling back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "builder"), [("auto", "spectral"), ("spectral", "spectral"), ("interpolative", "interpolative")]
)
def test_where_no_basis_is_found_polynomials_take_over_and_say_so(grid, monkeypatch, method, builder):
    firsts = []

    def nothing(operator, first, *args, **options):
        firsts.append(first)

    monkeypatch.setattr(planning, f"{builder}_factors", nothing)
    plan = planner(grid, method)
    for max_scale in (16, 12, 16):
        assert plan.settle(max_scale) is None
        assert plan.chosen == "chebyshev"
        assert plan.reason == f"no basis of up to 2,000 vectors reaches tol at 2^{firsts[0]} steps or somewhat later"
    # Three scales were tried, once.
    assert firsts == [firsts[0], firsts[0] + 1, firsts[0] + 2]


def test_a_basis_that_is_refused_at_first_takes_over_somewhat_later(grid, monkeypatch):
    plain, firsts = planning.spectral_factors, []

    def second_time(operator, first, *args, **options):
        firsts.append(first)
        return plain(operator, first, *args, **options) if len(firsts) > 1 else None

    monkeypatch.setattr(planning, "spectral_factors", second_time)
    plan = planner(grid)
    assert plan.settle(14)[0].scale == firsts[0] + 1 == plan.first
    assert f"2^{plan.first} to 2^14 steps" in plan.reason


def test_a_bipartite_graph_falls_back():
    """Eigenvalues at -1 need all eigenpairs, which 1,500 points do not get."""
    steps = sp.diags_array([np.ones(1499), np.ones(1499)], offsets=[-1, 1])
    plan = planner(DiffusionOperator.from_graph(Graph.from_affinity(sp.csr_array(steps))), "spectral")
    assert plan.settle(10) is None
    assert plan.chosen == "chebyshev"
    assert plan.reason.startswith("no basis of up to 2,000 vectors")


# --- several requests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "spectral", "interpolative"])
def test_a_basis_for_coarser_scales_serves_finer_ones(operator, built, method):
    plan = planner(operator, method)
    factors = plan.settle(18)
    assert plan.settle(11) is factors
    assert plan.chosen == ("spectral" if method == "auto" else method)
    assert f"2^{plan.first} to 2^11 steps come from {factors[0].rank}" in plan.reason
    assert len(built) == 1


def test_scales_below_the_basis_do_without_it(operator, built):
    plan = planner(operator, n_measures=100)
    plan.settle(18)
    below = plan.first - 1
    assert plan.settle(below) is None
    assert plan.chosen == "chebyshev"
    assert plan.reason == f"two points mix before the basis takes over at 2^{plan.first}"
    assert plan.settle(18) is not None
    assert plan.chosen == "spectral"
    assert len(built) == 1


def test_a_basis_that_only_the_search_needed_says_so(grid):
    """Polynomials alone would have cost less at this scale, but that was known too late."""
    plan = planner(grid, n_measures=30)
    assert plan.settle(18) is not None
    assert plan.settle(plan.first) is not None
    assert plan.reason.endswith("eigenvectors, which the search for max_scale needed")


def test_a_finer_scale_than_before_has_its_own_reason(grid, built):
    plan = planner(grid, n_measures=3)
    for max_scale in (12, 7):
        assert plan.settle(max_scale) is None
        assert plan.reason.startswith(f"polynomials of degree {degree(grid, max_scale)} reach 2^{max_scale} steps")
    assert built == []


def test_a_coarser_scale_than_before_is_decided_anew(grid):
    plan = planner(grid)
    assert plan.settle(5) is None
    assert plan.settle(12)[-1].scale == 12
    assert plan.settle(16)[-1].scale == 16


def test_the_density_of_states_is_estimated_once(grid, monkeypatch):
    calls = []
    plain = planning.density_of_states
    monkeypatch.setattr(planning, "density_of_states", lambda *a, **o: calls.append(1) or plain(*a, **o))
    plan = planner(grid)
    plan.settle(12)
    plan.settle(8)
    plan.states(5, 0.1)
    assert len(calls) == 1


def test_the_seed_decides(grid):
    one, same, other = (planner(grid, seed=seed) for seed in (0, 0, 1))
    for plan in (one, same, other):
        plan.settle(12)
    np.testing.assert_array_equal(one.factors[0].basis, same.factors[0].basis)
    assert not np.array_equal(one.factors[0].basis, other.factors[0].basis)
