"""What is chosen, and whether the reason given is true."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

from heatmover.diffusion.operator import DiffusionOperator, power_coefficients
from heatmover.embedding import preparation
from heatmover.embedding.preparation import Workload, plan_diffusion
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
        plain = getattr(preparation, name)

        def counted(operator, first, *args, **options):
            firsts.append(first)
            return plain(operator, first, *args, **options)

        monkeypatch.setattr(preparation, name, counted)

    watch("spectral_factors")
    watch("interpolative_factors")
    return firsts


def workload(operator, method="auto", n_measures=1000, *, tol=1e-3, seed=0):
    return Workload(operator, method, n_measures, tol, np.random.default_rng(seed), 1)


def degree(operator, scale, tol=1e-3):
    return len(power_coefficients(2**scale, operator.lowest, tol)[0]) - 1


# --- auto ---------------------------------------------------------------------------------------------------------


def test_few_measures_are_not_worth_a_basis(operator, built):
    plan = plan_diffusion(workload(operator, n_measures=3), 10)
    assert plan.factors is None
    assert plan.method == "chebyshev"
    assert plan.reason.startswith(f"polynomials of degree {degree(operator, 10)} reach 2^10 steps")
    assert built == []


def test_what_a_basis_would_cost_is_told(operator, built, monkeypatch):
    monkeypatch.setattr(preparation, "CHEAP", 0)
    plan = plan_diffusion(workload(operator, n_measures=3), 10)
    assert plan.factors is None
    assert f"polynomials of degree {degree(operator, 10)} reach 2^10 steps; for 3 measures a basis of" in plan.reason
    assert plan.reason.endswith("times as much")
    assert built == []


def test_small_scales_are_not_worth_a_basis(operator, built):
    for max_scale in (1, 2, 4):
        plan = plan_diffusion(workload(operator, n_measures=10_000), max_scale)
        assert plan.factors is None
        assert plan.method == "chebyshev"
    assert built == []


def test_large_scales_are_worth_a_basis(operator, built):
    plan = plan_diffusion(workload(operator), 16)
    factors = plan.factors
    assert plan.method == "spectral"
    assert [factor.scale for factor in factors] == list(range(plan.first, 17))
    assert all(factor.bound <= 1e-3 for factor in factors)
    assert f"2^{plan.first} to 2^16 steps are computed from {factors[0].rank} eigenvectors, at " in plan.reason
    assert "% of the cost of polynomials alone for 1,000 measures" in plan.reason
    assert built == [plan.first]


def test_the_more_measures_the_smaller_the_scale_where_a_basis_pays(grid):
    smallest = []
    for n_measures in (100, 10_000):
        plans = [plan_diffusion(workload(grid, n_measures=n_measures), max_scale) for max_scale in range(5, 15)]
        chosen = [plan.factors is not None for plan in plans]
        assert chosen == sorted(chosen)
        smallest.append(chosen.index(True))
    assert smallest[0] > smallest[1]


def test_the_share_of_the_cost_is_below_what_is_worthwhile(grid):
    plan = plan_diffusion(workload(grid), 14)
    share = float(plan.reason.split("eigenvectors, at ")[1].split("%")[0]) / 100
    assert 0 < share <= preparation.WORTHWHILE


def test_too_large_a_rank_is_told(grid, monkeypatch, built):
    monkeypatch.setattr(preparation, "MOST_VECTORS", 9)
    plan = plan_diffusion(workload(grid), 6)
    assert plan.factors is None
    assert plan.reason.endswith("the rank of the operator's powers is too large for a basis")
    assert built == []


# --- a method that was asked for ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["chebyshev", "exact"])
def test_a_method_without_basis_is_respected(grid, built, method):
    plan = plan_diffusion(workload(grid, method, 10**6), 16)
    assert plan.factors is None
    assert (plan.method, plan.reason) == (method, "as requested")
    assert plan.first > 30
    assert built == []


@pytest.mark.parametrize(("method", "vectors"), [("spectral", "eigenvectors"), ("interpolative", "skeleton points")])
@pytest.mark.parametrize("max_scale", [5, 12])
def test_a_basis_that_was_asked_for_is_built_whatever_it_costs(operator, method, vectors, max_scale):
    plan = plan_diffusion(workload(operator, method, 1), max_scale)
    factors = plan.factors
    assert plan.method == method
    assert factors[-1].scale == max_scale
    assert plan.reason.startswith("as requested; 2^")
    assert plan.reason.endswith(f"2^{max_scale} steps are computed from {factors[0].rank} {vectors}")


@pytest.mark.parametrize("method", ["spectral", "interpolative"])
@pytest.mark.parametrize("n_points", [1, 2, 5, 9])
def test_a_basis_is_possible_on_the_smallest_graphs(method, n_points):
    operator = DiffusionOperator.from_graph(Graph.from_grid((n_points,)))
    plan = plan_diffusion(workload(operator, method), 8)
    assert plan.factors is not None
    assert plan.method == method


@pytest.mark.parametrize("affinity", [np.ones((300, 300)), np.eye(300)], ids=["complete", "lone points"])
@pytest.mark.parametrize("method", ["auto", "spectral", "interpolative"])
def test_ranks_of_one_and_of_n(affinity, method):
    """Beside the known eigenvectors there is nothing: a basis without vectors."""
    plan = plan_diffusion(workload(DiffusionOperator.from_graph(Graph.from_affinity(affinity)), method), 10)
    assert plan.factors[0].rank == 0
    assert "computed from 0" in plan.reason


@pytest.mark.parametrize("method", ["auto", "spectral", "interpolative"])
def test_a_single_step_needs_no_basis(grid, built, method):
    plan = plan_diffusion(workload(grid, method), 0)
    assert plan.factors is None
    assert plan.method == "chebyshev"
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

    monkeypatch.setattr(preparation, f"{builder}_factors", nothing)
    work, plan = workload(grid, method), None
    for max_scale in (16, 12, 16):
        plan = plan_diffusion(work, max_scale, plan)
        assert plan.factors is None
        assert plan.method == "chebyshev"
        assert plan.reason == f"no basis of up to 2,000 vectors reaches tol at 2^{firsts[0]} steps or the next scales"
    # Three scales were tried, once.
    assert firsts == [firsts[0], firsts[0] + 1, firsts[0] + 2]


def test_a_basis_that_is_refused_at_first_takes_over_somewhat_later(grid, monkeypatch):
    plain, firsts = preparation.spectral_factors, []

    def second_time(operator, first, *args, **options):
        firsts.append(first)
        return plain(operator, first, *args, **options) if len(firsts) > 1 else None

    monkeypatch.setattr(preparation, "spectral_factors", second_time)
    plan = plan_diffusion(workload(grid), 14)
    assert plan.factors[0].scale == firsts[0] + 1 == plan.first
    assert f"2^{plan.first} to 2^14 steps" in plan.reason


def test_a_bipartite_graph_falls_back():
    """Eigenvalues at -1 need all eigenpairs, which 1,500 points do not get."""
    steps = sp.diags_array([np.ones(1499), np.ones(1499)], offsets=[-1, 1])
    plan = plan_diffusion(
        workload(DiffusionOperator.from_graph(Graph.from_affinity(sp.csr_array(steps), lazy=False)), "spectral"), 10
    )
    assert plan.factors is None
    assert plan.method == "chebyshev"
    assert plan.reason.startswith("no basis of up to 2,000 vectors")


# --- several requests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "spectral", "interpolative"])
def test_a_basis_for_coarser_scales_serves_finer_ones(operator, built, method):
    work = workload(operator, method)
    coarse = plan_diffusion(work, 18)
    plan = plan_diffusion(work, 11, coarse)
    assert plan.factors is coarse.factors
    assert plan.method == ("spectral" if method == "auto" else method)
    assert f"2^{plan.first} to 2^11 steps are computed from {plan.factors[0].rank}" in plan.reason
    assert len(built) == 1


def test_scales_below_the_basis_do_without_it(operator, built):
    work = workload(operator, n_measures=100)
    coarse = plan_diffusion(work, 18)
    plan = plan_diffusion(work, coarse.first - 1, coarse)
    assert plan.factors is None
    assert plan.method == "chebyshev"
    assert plan.reason == f"max_scale is below {coarse.first}, the first scale at which a basis is accurate enough"
    assert len(built) == 1


def test_a_basis_that_only_the_search_needed_says_so(grid):
    """Polynomials alone would have cost less at this scale, but that was known too late."""
    work = workload(grid, n_measures=30)
    coarse = plan_diffusion(work, 18)
    assert coarse.factors is not None
    plan = plan_diffusion(work, coarse.first, coarse)
    assert plan.factors is not None
    assert plan.reason.endswith("eigenvectors, already computed to choose max_scale")


def test_a_finer_scale_than_before_has_its_own_reason(grid, built):
    work, plan = workload(grid, n_measures=3), None
    for max_scale in (12, 7):
        plan = plan_diffusion(work, max_scale, plan)
        assert plan.factors is None
        assert plan.reason.startswith(f"polynomials of degree {degree(grid, max_scale)} reach 2^{max_scale} steps")
    assert built == []


def test_a_plan_is_a_value(grid):
    """A later plan leaves the earlier one as it was."""
    work = workload(grid)
    coarse = plan_diffusion(work, 16)
    told = (coarse.method, coarse.reason, coarse.factors, coarse.first)
    plan_diffusion(work, 3, coarse)
    assert (coarse.method, coarse.reason, coarse.factors, coarse.first) == told
    with pytest.raises(dataclasses.FrozenInstanceError):
        coarse.method = "exact"


def test_the_density_of_states_is_estimated_once(grid, monkeypatch):
    calls = []
    plain = preparation.density_of_states
    monkeypatch.setattr(preparation, "density_of_states", lambda *a, **o: calls.append(1) or plain(*a, **o))
    work = workload(grid)
    coarse = plan_diffusion(work, 12)
    assert plan_diffusion(work, 8, coarse).states is coarse.states
    assert len(calls) == 1


def test_the_seed_decides(grid):
    one, same, other = (plan_diffusion(workload(grid, seed=seed), 12) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.factors[0].basis, same.factors[0].basis)
    assert not np.array_equal(one.factors[0].basis, other.factors[0].basis)
