"""The paper's statements on complexity, measured: CPU seconds against n, m, k, J and gamma, and fitted exponents.

Points lie on swiss rolls, and graphs have the default neighbors. An exponent is the slope of log(seconds) over
log(size). Times are CPU seconds, summed over all cores, the least of three runs where a run takes less than
a second. Building the graph is not included, because no algorithm of the paper includes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from exhibit import Exhibit, exhibit, parser, required, stage, timed
from printed_algorithm4 import interpolative_decomposition, rand_id

import heatmover as hm
from heatmover.diffusion import interpolative
from heatmover.diffusion.interpolative import cut_skeleton, prescribed_ranks
from heatmover.diffusion.operator import DiffusionOperator, power_coefficients
from heatmover.diffusion.ranks import density_of_states

LONG = 1.0
# The scale up to which sizes are compared: the degree of the polynomial is then the same for all sizes.
SCALE = 10
DELTA = 1e-6


def seconds(function: Callable[[], Any]) -> float:
    return timed(function, repeats=3, long=LONG)[1]


def shown(spent: float) -> str:
    return f"{spent:.2f}" if spent >= 1 else f"{spent:.3f}"


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def last_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope between the two largest sizes, where fixed costs matter least."""
    return exponent(sizes[-2:], values[-2:])


def roll(n_points: int, seed: int) -> hm.Graph:
    data = hm.datasets.swiss_roll(10, points_per_measure=n_points // 10, random_state=seed)
    return hm.Graph.from_points(data.points)


def masses(n_measures: int, n_points: int, seed: int) -> np.ndarray:
    """Measures on 100 random points each."""
    rng, found = np.random.default_rng(seed), np.zeros((n_measures, n_points))
    for row in found:
        row[rng.choice(n_points, size=min(100, n_points), replace=False)] = 0.01
    return found / found.sum(axis=1, keepdims=True)


def embed(graph: hm.Graph, measures: np.ndarray, **options: Any) -> hm.DiffusionEMD:
    model = hm.DiffusionEMD.from_paper(graph, **options)
    model.fit_transform(measures)
    return model


def embed_by_defaults(graph: hm.Graph, measures: np.ndarray, **options: Any) -> hm.DiffusionEMD:
    model = hm.DiffusionEMD(graph, **options)
    model.fit_transform(measures)
    return model


# ---------------------------------------------------------------- Algorithm 1


def algorithm_1(show: Exhibit) -> None:
    """Grow n at fixed m, and m at fixed n: the preset and the defaults, at one K and at the chosen K."""
    sizes = [1_000, 2_000] if show.quick else [2_500, 5_000, 10_000, 20_000]
    counts = [10, 20] if show.quick else [50, 100, 200, 400]
    n_measures, n_points = (20, 1_000) if show.quick else (50, 5_000)
    methods = {
        f"`from_paper`, K = {SCALE}": lambda graph, mu: embed(graph, mu, max_scale=SCALE),
        "`from_paper`": embed,
        f"defaults, K = {SCALE}": lambda graph, mu: embed_by_defaults(graph, mu, max_scale=SCALE),
        "defaults": embed_by_defaults,
    }
    rows: list[list[Any]] = []
    graphs = {size: roll(size, show.seed) for size in {*sizes, n_points}}
    sweeps: list[tuple[str, list[int], list[tuple[hm.Graph, np.ndarray]]]] = [
        (f"n, at m = {n_measures}", sizes, [(graphs[size], masses(n_measures, size, show.seed)) for size in sizes]),
        (
            f"m, at n = {n_points:,}",
            counts,
            [(graphs[n_points], masses(count, n_points, show.seed)) for count in counts],
        ),
    ]
    for what, values, problems in sweeps:
        for name, run_method in methods.items():
            with stage(f"{name}, {what}"):
                done = [timed(lambda p=p, f=run_method: f(*p), repeats=3, long=LONG) for p in problems]
            times, scales = [spent for _, spent in done], [model.max_scale_ for model, _ in done]
            rows.append(
                [
                    what,
                    name,
                    *map(shown, times),
                    f"{exponent(values, times):.2f}",
                    f"{last_exponent(values, times):.2f}",
                    " to ".join(map(str, sorted({min(scales), max(scales)}))),
                ]
            )
    density = [graphs[size].affinity.nnz / size for size in sizes]
    heads = ["what grows", "method", *(f"size {place}" for place in range(1, len(sizes) + 1))]
    heads += ["exponent", "exponent, last two", "K"]
    note = (
        f"CPU seconds of fit and transform. Sizes of n: {', '.join(f'{size:,}' for size in sizes)}; of m: "
        f"{', '.join(map(str, counts))}. The graphs have between {min(density):.1f} and {max(density):.1f} nonzero "
        "entries per point."
    )
    show.table(heads, rows, note=note)


def degrees(show: Exhibit) -> None:
    """J, the number of products with the operator, against the number of steps."""
    scales = range(0, 17, 2)
    rows: list[list[Any]] = []
    counts = {tol: [len(power_coefficients(2**k, -1.0, tol)[0]) - 1 for k in scales] for tol in (1e-10, 1e-3)}
    for place, k in enumerate(scales):
        found = [counts[tol][place] for tol in counts]
        rows.append([k, f"{2**k:,}", *(f"{value:,}" for value in found), f"{found[0] / 2 ** (k / 2):.1f}"])
    coarse = [2.0**k for k in scales if k >= 8]
    slopes = [
        exponent(coarse, [count for k, count in zip(scales, counts[tol], strict=True) if k >= 8]) for tol in counts
    ]
    heads = ["K", "steps $2^K$", "J at 1e-10", "J at 1e-3", "J at 1e-10 / $\\sqrt{2^K}$"]
    note = (
        f"J is the degree of the polynomial for $x^{{2^K}}$ on [-1, 1]. Exponent of J in $2^K$ from K = 8 on: "
        f"{slopes[0]:.2f} with an error of at most 1e-10 (`from_paper`), {slopes[1]:.2f} with an error of at most 1e-3 "
        "(the defaults)."
    )
    show.table(heads, rows, note=note, suffix="_degrees")


# ---------------------------------------------------------------- Algorithms 2 and 3


def decaying(m: int, n: int, seed: int) -> np.ndarray:
    """A dense m x n matrix whose singular values fall slowly enough for every k here."""
    rng = np.random.default_rng(seed)
    inner = min(m, n, 400)
    return (rng.standard_normal((m, inner)) * 0.98 ** np.arange(inner)) @ rng.standard_normal((inner, n))


def decompositions(show: Exhibit) -> None:
    factor = 4 if show.quick else 1
    sizes, counts = [size // factor for size in (1_000, 2_000, 4_000, 8_000)], [k // factor for k in (20, 40, 80, 160)]
    m, k = 500 // factor, 40 // factor
    rng = np.random.default_rng(show.seed)
    n_points = [size // factor for size in (5_000, 10_000, 20_000, 40_000)]
    operators = {n: DiffusionOperator.from_graph(roll(n, show.seed)).symmetric for n in n_points}
    wide = {n: decaying(m, n, show.seed) for n in sizes}
    tall = {n: decaying(n, m, show.seed) for n in sizes}
    middle, large = wide[sizes[1]], operators[n_points[1]]
    dense: dict[str, Callable[[np.ndarray, int], Any]] = {
        "Alg. 2, stopped after k columns": interpolative_decomposition,
        "Alg. 2 by LAPACK (`cut_skeleton`)": cut_skeleton,
        "Alg. 3, dense A": lambda A, k: rand_id(A, k + 8, k, 5, rng),
    }
    rows: list[list[Any]] = []

    def add(name: str, what: str, values: list[int], times: list[float]) -> None:
        found = exponent(values, times), last_exponent(values, times)
        rows.append([name, what, *map(shown, times), *(f"{value:.2f}" for value in found)])

    for name, function in dense.items():
        with stage(name):
            times = [seconds(lambda f=function, A=wide[n], k=k: f(A, k)) for n in sizes]
            add(name, f"n, at m = {m:,}, k = {k}", sizes, times)
            times = [seconds(lambda f=function, A=tall[n], k=k: f(A, k)) for n in sizes]
            add(name, f"m, at n = {m:,}, k = {k}", sizes, times)
            times = [seconds(lambda f=function, k=k: f(middle, k)) for k in counts]
            add(name, f"k, at m = {m:,}, n = {sizes[1]:,}", counts, times)
    with stage("Alg. 3, sparse"):
        times = [seconds(lambda A=operators[n]: rand_id(A, k + 8, k, 5, rng)) for n in n_points]
        add("Alg. 3, the sparse operator", f"n = m, at k = {k}", n_points, times)
        times = [seconds(lambda k=k: rand_id(large, k + 8, k, 5, rng)) for k in counts]
        add("Alg. 3, the sparse operator", f"k, at n = m = {n_points[1]:,}", counts, times)
    heads = ["algorithm", "what grows", *(f"size {place}" for place in range(1, 5)), "exponent", "exponent, last two"]

    def listed(values: list[int]) -> str:
        return ", ".join(f"{value:,}" for value in values)

    note = (
        f"CPU seconds. Sizes of n and m: {listed(sizes)} (dense), {listed(n_points)} (sparse); of k: {listed(counts)}. "
        "Alg. 3 is `rand_id` of `benchmarks/paper/printed_algorithm4.py`, with j = k + 8 and l = 5, including the "
        "printed search."
    )
    show.table(heads, rows, note=note, suffix="_decompositions")


# ---------------------------------------------------------------- Algorithm 4


@contextmanager
def gamma(share: float) -> Iterator[None]:
    """Set the threshold of Algorithm 4, as a share of the number of points."""
    with mock.patch.object(interpolative, "BASIS_SHARE", share):
        yield


def fitted_and_embedded(graph: hm.Graph, mu: np.ndarray, **options: Any) -> tuple[hm.DiffusionEMD, float, float]:
    """Return a fitted preset and the times of fit and of transform."""
    model, fitted = timed(lambda: hm.DiffusionEMD.from_paper(graph, **options).fit(mu), repeats=3, long=LONG)
    return model, fitted, seconds(lambda: model.transform(mu))


def algorithm_4(show: Exhibit) -> None:
    """Algorithm 4 against Algorithm 1 as m grows, and its preparation as n grows."""
    n_points = 500 if show.quick else 2_000
    counts = [10, 300] if show.quick else [30, 100, 300, 1_000, 3_000]
    graph, rows = roll(n_points, show.seed), []
    methods = {"Algorithm 1": {}, "Algorithm 4": {"algorithm": "interpolative"}}
    for count in counts:
        mu, found = masses(count, n_points, show.seed), []
        for options in methods.values():
            with stage(f"m = {count}, {options}"):
                model, fitted, embedded = fitted_and_embedded(graph, mu, **options)
                found += [fitted + embedded, embedded]
        rows.append([f"{count:,}", *map(shown, found), f"{found[0] / found[2]:.2f}", f"{found[1] / found[3]:.2f}"])
    heads = ["m", *(f"{name}, {what}" for name in methods for what in ("all", "transform only"))]
    heads += ["all, Alg. 1 / Alg. 4", "transform, Alg. 1 / Alg. 4"]
    note = (
        f'CPU seconds at n = {n_points:,}, K = {model.max_scale_}. "All" is fit and transform. Algorithm 4 compares '
        f"{int(model.n_regions_.sum()):,} features per measure, Algorithm 1 {len(model.scales_) * n_points:,}."
    )
    show.table(heads, rows, note=note, suffix="_algorithm4")


def growth_of_algorithm_4(show: Exhibit) -> None:
    sizes = [500, 1_000] if show.quick else [1_000, 2_000, 4_000]
    fixed, mu = sizes[0] / 10, None
    rows: list[list[Any]] = []
    for name, share in {"gamma = n/10": lambda _: 0.1, f"gamma = {fixed:.0f}": lambda n: fixed / n}.items():
        times, ranks = [], []
        for n in sizes:
            graph, mu = roll(n, show.seed), masses(20, n, show.seed)
            with stage(f"{name}, n = {n}"), gamma(share(n)):
                times.append(seconds(lambda g=graph, mu=mu: embed(g, mu, algorithm="interpolative", max_scale=SCALE)))
                ranks.append(max(skeleton_ranks(graph, show.seed).values()))
        found = exponent(sizes, times), last_exponent(sizes, times)
        rows.append([name, "CPU seconds", *map(shown, times), *(f"{value:.2f}" for value in found)])
        rows.append([name, "rank of the first skeleton", *ranks, f"{exponent(sizes, ranks):.2f}", ""])
    heads = ["threshold", "what", *(f"n = {n:,}" for n in sizes), "exponent", "exponent, last two"]
    note = f"Fit and transform of 20 measures by Algorithm 4 with K = {SCALE}, almost all of which is fit."
    show.table(heads, rows, note=note, suffix="_growth")


def skeleton_ranks(graph: hm.Graph, seed: int) -> dict[int, int]:
    """The ranks of all scales with a skeleton, at the present gamma."""
    operator = DiffusionOperator.from_graph(graph)
    states = density_of_states(operator, np.random.default_rng(seed), coarsest=SCALE, delta=DELTA)
    return prescribed_ranks(states, SCALE, DELTA)


def trade_off(show: Exhibit) -> None:
    """The time of Algorithm 4 against gamma, for few and many measures, at the six coarsest scales and at all."""
    n_points = 500 if show.quick else 2_000
    few, many = (10, 200) if show.quick else (50, 4_000)
    shares = {40: "n/40", 20: "n/20", 10: "n/10", 5: "n/5", 2: "n/2"}
    graph, rows = roll(n_points, show.seed), []
    for scales in (6, None):
        for divisor, name in shares.items():
            with stage(f"gamma = {name}, {scales} scales"), gamma(1 / divisor):
                options = {"algorithm": "interpolative", "n_scales": scales, "max_scale": SCALE}
                ranks = skeleton_ranks(graph, show.seed)
                found = []
                for count in (few, many):
                    mu = masses(count, n_points, show.seed)
                    model, fitted, embedded = fitted_and_embedded(graph, mu, **options)
                    found += [fitted, embedded, fitted + embedded]
            rows.append(
                [
                    "six" if scales else "all",
                    name,
                    f"2^{min(ranks)}",
                    max(ranks.values()),
                    *map(shown, found),
                    f"{int(model.n_regions_.sum()):,}",
                ]
            )
    heads = ["scales", "gamma", "first skeleton", "its rank"]
    heads += [f"m = {count:,}: {what}" for count in (few, many) for what in ("fit", "transform", "both")]
    note = f"CPU seconds of Algorithm 4 at n = {n_points:,}, K = {SCALE}, delta = 1e-6."
    show.table([*heads, "features"], rows, note=note, suffix="_gamma")


# ---------------------------------------------------------------- gradients


def gradients(show: Exhibit) -> None:
    import torch

    from heatmover.differentiable import DiffusionEMDLoss

    torch.set_num_threads(1)
    sizes = [1_000, 2_000] if show.quick else [2_500, 5_000, 10_000, 20_000]
    times: dict[str, list[float]] = {}
    for n in sizes:
        data = hm.datasets.swiss_roll(2, points_per_measure=n // 2, random_state=show.seed)
        loss = DiffusionEMDLoss(hm.Graph.from_points(data.points), max_scale=SCALE)
        first, second = torch.tensor(data.measures().masses.toarray())

        def backward(kind: str, loss: Any = loss, data: Any = data, pair: Any = (first, second)) -> tuple[float, float]:
            if kind == "masses":
                value, spent = timed(lambda: loss(pair[0].clone().requires_grad_(), pair[1]))
            else:
                points = torch.tensor(data.points, requires_grad=True)
                value, spent = timed(lambda: loss(*pair, points=points))
            return spent, timed(value.backward)[1]

        for kind in ("masses", "positions"):
            with stage(f"gradient of {kind}, n = {n:,}"):
                found = np.min([backward(kind) for _ in range(3)], axis=0)
            for part, spent in zip(("forward", "backward"), found, strict=True):
                times.setdefault(f"{kind}, {part}", []).append(float(spent))
    rows = [
        [name, *map(shown, found), f"{exponent(sizes, found):.2f}", f"{last_exponent(sizes, found):.2f}"]
        for name, found in times.items()
    ]
    heads = ["gradient", *(f"n = {n:,}" for n in sizes), "exponent", "exponent, last two"]
    note = f"CPU seconds of `DiffusionEMDLoss` between two measures of n/2 points each, with K = {SCALE}."
    show.table(heads, rows, note=note, suffix="_gradients", packages=("numpy", "scipy", "numba", "torch"))


PARTS = {
    part.__name__: part
    for part in (algorithm_1, degrees, decompositions, algorithm_4, growth_of_algorithm_4, trade_off, gradients)
}


def run(show: Exhibit, names: Sequence[str]) -> None:
    # Compile before anything is timed.
    small, mu = roll(300, show.seed), masses(20, 300, show.seed)
    for options in ({}, {"algorithm": "interpolative"}):
        embed(small, mu, **options)
    embed_by_defaults(small, mu)
    embed_by_defaults(small, mu, method="spectral", max_scale=SCALE)
    for name in names:
        PARTS[name](show)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some tables only")
    chosen = arguments.parse_args()
    required("torch", "torch", "gradients need it")
    run(exhibit("complexity", chosen), chosen.only)
