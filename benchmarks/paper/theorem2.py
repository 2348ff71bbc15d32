"""The paper's Theorem 2 itself: EMD with the diffusion ground distance D_alpha against the sum of L1 norms of Eq. 9.

W_{D_alpha} is exact transport (POT) with D_alpha(x, y) = sum over k >= 0 of 2^(-k alpha) ||h(x, .) - h(y, .)||_1 at the
times 2^-k, from heat kernels by Fourier and Legendre series: no graph, no walk. It is divided by three sums of L1 norms
of the diffused difference of the measures: "increments" is Eq. 9 and the supplement's dual norm (1), "coarsest" is its
dual norm (2), "levels" is what the library computes by default. All sums are over all k: once the atoms of the measures
have parted, every further term is the last one again, and the rest is a geometric series.

Measures on n atoms are drawn: points, clouds, mixtures, positive and negative parts of waves, even samples, and every
other atom against the rest. The bands are not those of the drawn measures: the smallest ratio is the one of all
measures on the atoms, and the largest is climbed to from all waves, from drawn measures and from noise (extremes.py).
Densities on the circle, without atoms, have closed forms.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from matplotlib.ticker import NullLocator

from heatmover.transport.exact import exact_distances

sys.path.insert(0, str(Path(__file__).resolve().parent))
from exhibit import Exhibit, exhibit, parser, stage
from extremes import (
    NORMS,
    certified,
    largest,
    parts,
    points_ratio,
    points_smallest,
    ratio,
    smallest,
    snowflake_ratio,
    wave_limit,
    wave_ratio,
    waves,
)
from manifolds import GEODESICS
from series import Floats, Indices, Space, Sphere, Terms, Torus, ground_distances, norm_terms

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALPHAS = (0.1, 0.3, 0.45)
SPACES = ((Torus(1, 32), Torus(1, 64)), (Sphere(25), Sphere(50)), (Torus(2, 6), Torus(2, 8)))
# Frequencies of the waves of drawn measures and of closed forms, and degrees up to which the bound is certified.
DRAWN_WAVES = (1, 2, 4, 8)
FREQUENCIES = (1, 4, 16, 256, 4096)
DEGREES = (1, 4, 16)
POINTS_PER_MEASURE = 40
COLORS = {0.1: "#009E73", 0.3: "#0072B2", 0.45: "#D55E00"}
KINDS = {
    "points": ("#000000", "o", "two points"),
    "clouds": ("#D55E00", "s", "two clouds"),
    "mixtures": ("#0072B2", "^", "two mixtures"),
    "waves": ("#CC79A7", "P", "parts of waves"),
    "fine": ("#009E73", "D", "even samples, every other atom"),
    "other": ("#BBBBBB", ".", "one of each kind"),
}


def measures(space: Space, rng: np.random.Generator) -> tuple[Floats, list[str]]:
    """Return rows of masses on the atoms and the kind of each."""
    n, places = space.n, space.coordinates
    geodesic = GEODESICS[space.name]
    ranks = np.unique(np.minimum([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, n // 3, n - 1], n - 1))
    near = np.argsort(geodesic(places[[n // 3]], places)[0], kind="stable")[ranks]
    rows, kinds = [np.eye(1, n, i)[0] for i in near], ["points"] * len(near)

    def draw(density: Floats, kind: str) -> None:
        rows.extend(rng.multinomial(POINTS_PER_MEASURE, density / density.sum(), 2) / POINTS_PER_MEASURE)
        kinds.extend([kind] * 2)

    for count in [1] * 6 + [2, 2, 3, 3, 4, 4]:
        squares = geodesic(places[rng.choice(n, count)], places) ** 2
        bells = np.exp(-squares / (2 * rng.uniform(0.1, 1, (count, 1)) ** 2))
        draw(
            rng.dirichlet(np.ones(count)) @ (bells / bells.sum(axis=1, keepdims=True)),
            ("mixtures", "clouds")[count == 1],
        )
    for frequency in DRAWN_WAVES:
        wave = (
            np.polynomial.legendre.Legendre.basis(frequency)(places[:, 2])
            if isinstance(space, Sphere)
            else np.cos(frequency * places[:, 0] + 0.1)
        )
        if np.abs(wave - wave.mean()).max() < 1e-6:
            continue  # on the atoms the wave is constant
        for part in (np.maximum(wave, 0), np.maximum(-wave, 0)):
            part[part < 1e-6] = 0  # masses that the solver cannot tell from rounding
            rows.append(part / part.sum())
            kinds.append("waves")
    draw(np.ones(n), "fine")
    odd = (
        np.arange(n) % 2
        if isinstance(space, Sphere)
        else np.indices((space.side,) * space.dimension).sum(0).ravel() % 2
    )
    rows.extend([odd / odd.sum(), (1 - odd) / (1 - odd).sum()])
    return np.array(rows), [*kinds, "fine", "fine"]


@dataclass(frozen=True)
class Found:
    """Everything about one space: the terms of the norms, and exact EMD by alpha (and by number of terms)."""

    space: Space
    rows: Floats
    kinds: list[str]
    norms: dict[str, Terms]
    truth: dict[tuple[float, int | None], Floats]
    costs: dict[tuple[float, int | None], Floats]

    @cached_property
    def pairs(self) -> tuple[Indices, Indices]:
        """All pairs of measures that differ, every other atom against the rest last."""
        rows, columns = np.triu_indices(len(self.kinds), 1)
        differ = self.norms["levels"].scales[-1][rows, columns] > 1e-9
        return rows[differ], columns[differ]

    def ratios(self, alpha: float, norm: str, n_terms: int | None = None) -> Floats:
        """Return W_{D_alpha} over the norm, (n_pairs,)."""
        with np.errstate(divide="ignore"):
            return self.truth[alpha, n_terms][self.pairs] / self.norms[norm].total(alpha, n_terms)[self.pairs]

    @cached_property
    def pair_kinds(self) -> npt.NDArray[np.str_]:
        pairs = [(self.kinds[i], self.kinds[j]) for i, j in zip(*self.pairs, strict=True)]
        return np.array([a if a == b else "other" for a, b in pairs])

    @cached_property
    def without_waves(self) -> npt.NDArray[np.bool_]:
        """Pairs of which neither measure is a part of a wave."""
        waves = np.array(self.kinds) == "waves"
        return ~(waves[self.pairs[0]] | waves[self.pairs[1]])


def measure(space: Space, seed: int, counts: Sequence[int | None]) -> Found:
    rows, kinds = measures(space, np.random.default_rng(seed))
    ground = ground_distances(space, space.heat)
    truth, matrices = {}, {}
    for alpha in ALPHAS:
        for count in counts:
            matrices[alpha, count] = costs = ground.total(alpha, count)
            truth[alpha, count] = exact_distances(
                sp.csr_array(rows),
                lambda i, j: costs[np.ix_(i, j)],  # noqa: B023 - called at once
                n_threads=2,
            )
    return Found(space, rows, kinds, norm_terms(space, rows, space.heat), truth, matrices)


def band(values: Floats) -> str:
    return f"[{values.min():.2f}, {values.max():.2f}]"


def counts_of(space: Space) -> list[int | None]:
    return [*range(2, space.terms, 3), None]  # not the last term, which stands for all that follow


@dataclass(frozen=True)
class Extremes:
    """The smallest and the largest ratio over all measures on the atoms, and the largest of waves and of all drawn."""

    low: float
    high: float
    start: str
    of_waves: float


def maximize(one: Found, norm: str, alpha: float, seed: int) -> Extremes:
    rng = np.random.default_rng(seed)
    matrix, costs = parts(one.space, norm, alpha), one.costs[alpha, None]
    order = np.argsort(-one.ratios(alpha, norm))[:2]
    first, second = one.pairs[0][order], one.pairs[1][order]
    high, start, of_waves = largest(matrix, costs, one.rows[first] - one.rows[second], rng)
    return Extremes(smallest(matrix, costs), high, start, of_waves)


def size_rows(found: Sequence[Sequence[Found]], seed: int) -> list[list[str]]:
    rows = []
    for row in found:
        for norm in NORMS:
            for alpha in ALPHAS:
                every = [maximize(one, norm, alpha, seed) for one in row]
                last = every[-1]
                rows.append(
                    [
                        f"{row[0].space.name}, {norm}",
                        f"{alpha:g}",
                        *(f"[{one.low:.2f}, {one.high:.2f}]" for one in every),
                        f"{last.high / last.low:.2f}",
                        last.start,
                        f"{last.of_waves:.2f}",
                        band(row[-1].ratios(alpha, norm)),
                    ]
                )
    return rows


def wave_rows(quick: bool) -> list[list[str]]:
    rows = []
    for norm in NORMS:
        for alpha in ALPHAS:
            low = points_smallest(alpha) if norm == "increments" else None
            bounds = [f"{certified(norm, alpha, degree):.2f}" for degree in (DEGREES[:2] if quick else DEGREES)]
            rows.append(
                [
                    norm,
                    f"{alpha:g}",
                    f"{low:.2f}" if low else "",
                    *(f"{wave_ratio(norm, alpha, frequency):.2f}" for frequency in FREQUENCIES),
                    f"{wave_limit(norm, alpha):.2f}",
                    *bounds,
                    f"{snowflake_ratio(alpha, 1):.2f}, {snowflake_ratio(alpha, 4096):.2f}" if low else "",
                ]
            )
    return rows


def kind_rows(found: Sequence[Sequence[Found]]) -> list[list[str]]:
    rows = []
    for row in found:
        one = row[-1]
        kinds = one.pair_kinds
        for kind, (_, _, words) in KINDS.items():
            cells = [band(one.ratios(alpha, "increments")[kinds == kind]) for alpha in ALPHAS]
            rows.append([f"{one.space.name}, {words}", str((kinds == kind).sum()), *cells])
    return rows


def write(out: Exhibit, found: Sequence[Sequence[Found]]) -> None:
    error = max(abs(neighbors_error(found[0][-1], alpha) - 1) for alpha in ALPHAS)
    sizes = ["n = " + " / ".join(str(row[i].space.n) for row in found) for i in range(len(found[0]))]
    out.table(
        ["sum of L1 norms", "alpha", *sizes, "largest / smallest", "start", "waves", "drawn"],
        size_rows(found, out.seed),
        note=(
            "Smallest and largest ratio of W_{D_alpha} to the sum of norms, over measures on n atoms (ring / sphere / "
            "torus). The smallest ratio is exact for all measures, because two points attain it. The largest ratio is "
            "the largest of the measures drawn and maximized: a lower bound of the supremum. The remaining columns "
            "refer to the largest n: the start that led to the largest ratio, the largest ratio of all waves, and the "
            'band of the measures drawn. "Increments" is Eq. 9, dual norm (1). "Coarsest" is dual norm (2). The '
            'distance "levels" is never above W_{D_alpha}. The norms are sums over a '
            f"grid: for two neighboring atoms of the ring, the ratio differs from its closed form by {error:.1%}."
        ),
    )
    out.table(
        [
            "sum of L1 norms",
            "alpha",
            "two points, smallest",
            *(f"j = {frequency}" for frequency in FREQUENCIES),
            "limit",
            *(f"bound, degree {degree}" for degree in (DEGREES[:2] if out.quick else DEGREES)),
            "geodesic, j = 1, 4096",
        ],
        wave_rows(out.quick),
        note=(
            'Ratio of W_{D_alpha} to the sum of norms on the circle, without atoms, by closed forms. "Two points, '
            'smallest" is the smallest ratio of Eq. 9 over all distances of two points, and therefore over all '
            'measures. "j" is the frequency of the density cos(j x), "limit" the largest ratio as j grows. On the flat '
            'torus the same waves have the same ratios. "Bound" is an upper bound for all densities with frequencies '
            'up to a degree, by a linear program. "Geodesic" is the ratio of W with the cost geodesic^(2 alpha) to '
            "Eq. 9."
        ),
        suffix="_waves",
    )
    limits = [f"{limit_of_every_other(found[0][-1], alpha):.2f}" for alpha in ALPHAS]
    out.table(
        ["pairs", "number", *(f"alpha {alpha:g}" for alpha in ALPHAS)],
        kind_rows(found),
        note=(
            "Ratio of W_{D_alpha} to Eq. 9 by kind of pair, for the measures drawn at the largest n. With infinitely "
            'many atoms, the ratio of the pair "every other atom against the remaining atoms" is '
            f"{', '.join(limits)} at alpha {', '.join(map(str, ALPHAS))}."
        ),
        suffix="_kinds",
    )
    rows = []
    for row in found:
        one = row[-1]
        for count in counts_of(one.space):
            ratios = [one.ratios(alpha, "increments", count) for alpha in ALPHAS]
            others = one.without_waves[:-1]
            cells = [band(values[:-1][others]) for values in ratios]
            matrix, costs = parts(one.space, "increments", ALPHAS[-1], count), one.costs[ALPHAS[-1], count]
            of_waves = max(ratio(wave, matrix, costs) for wave in waves(one.costs[ALPHAS[-1], None]))
            cells += [f"{value:.2f}" if value < 1e4 else "> 10,000" for value in (ratios[-1][-1], of_waves)]
            rows.append([f"{one.space.name}, {one.space.n} atoms", "all" if count is None else str(count), *cells])
    out.table(
        ["space", "terms k", *(f"alpha {alpha:g}" for alpha in ALPHAS), "every other atom", "waves"],
        rows,
        note=(
            "Ratio of W_{D_alpha} to Eq. 9 if the sums of both distances end after k terms, so that heat at times "
            "below 2^-k is left out. The bands contain the pairs drawn without parts of waves, except every other atom "
            "against the rest. The last two columns have the latter pair and the largest ratio of all waves on the "
            f"atoms, at alpha {ALPHAS[-1]:g}."
        ),
        suffix="_terms",
    )


def neighbors_error(one: Found, alpha: float) -> float:
    """Return the ratio of two neighboring atoms over its closed form: what repeating the last term does."""
    spacing = 2 * np.pi / one.space.n
    matrix = parts(one.space, "increments", alpha)
    found = one.costs[alpha, None][0, 1] / np.abs(matrix[:, 0] - matrix[:, 1]).sum()
    return float(found / points_ratio(alpha, spacing))


def limit_of_every_other(one: Found, alpha: float) -> float:
    """Return W_{D_alpha} over Eq. 9 of every other atom against the rest on a ring of infinitely many atoms.

    Neighbors are then s -> 0 apart, and D_alpha(s) has infinitely many scales coarser than s. Those that a ring with s
    of this size lacks, at the times 2, 4, ..., add 2 erf(d / (4 sqrt t)) each, to first order in d: a geometric series.
    """
    spacing = 2 * np.pi / one.space.n
    share = 2.0 ** (alpha - 0.5)
    more = spacing / np.sqrt(np.pi) * share / (1 - share)
    total = one.norms["increments"].total(alpha)[-2, -1]
    return float((one.truth[alpha, None][-2, -1] + more) / total)


def draw_ratios(ax: Axes, one: Found, alpha: float) -> None:
    kinds = one.pair_kinds
    truth, ratios = one.truth[alpha, None][one.pairs], one.ratios(alpha, "increments")
    ax.axhspan(ratios.min(), ratios.max(), color="#F3EFE6", zorder=0)
    for kind in reversed(KINDS):
        color, marker, words = KINDS[kind]
        where = kinds == kind
        ax.scatter(
            truth[where], ratios[where], s=9 if kind != "other" else 5, c=color, marker=marker, lw=0, label=words
        )
    title = rf"{one.space.name}, {one.space.n:,} atoms, $\alpha$ = {alpha:g}"
    ax.set(xscale="log", title=title, xlabel=r"$W_{D_\alpha}$, exact", ylim=(0, None))
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5) if truth.min() * 0.8 <= tick <= truth.max() * 1.2]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())


def draw_terms(ax: Axes, one: Found) -> None:
    counts = [count for count in counts_of(one.space) if count is not None]
    every = one.space.terms + 2
    for alpha in ALPHAS:
        ratios = [one.ratios(alpha, "increments", count) for count in [*counts, None]]
        others = one.without_waves[:-1]
        low, high = ([end(values[:-1][others]) for values in ratios] for end in (np.min, np.max))
        look = {"color": COLORS[alpha], "marker": "o"}
        ax.fill_between([*counts, every], low, high, color=COLORS[alpha], alpha=0.15, lw=0)
        ax.plot([*counts, every], low, **look, label=rf"$\alpha$ = {alpha:g}, smallest and largest")
        ax.plot([*counts, every], high, **look)
        alternate = [min(values[-1], 1e9) for values in ratios]
        ax.plot([*counts, every], alternate, color=COLORS[alpha], ls=":", lw=1)
    ax.plot([], [], color="#555555", ls=":", lw=1, label="every other atom against the rest")
    ax.set(title=f"{one.space.name}, {one.space.n} atoms", xlabel="number of terms k", ylim=(0, 10))
    ax.set_xticks([*counts, every], [*map(str, counts), "all"])


def draw(out: Exhibit, found: Sequence[Sequence[Found]]) -> None:
    figure, axes = plt.subplots(2, 3, figsize=(10, 6.6))
    for column, row in zip(axes.T, found, strict=True):
        draw_ratios(column[0], row[-1], 0.45)
        draw_terms(column[1], row[-1])
    for ax in axes[:, 0]:
        ax.set_ylabel(r"$W_{D_\alpha}$ / $\widehat{W}_{H_t}$")
    handles, words = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles[::-1], words[::-1], loc="outside upper center", ncols=5, markerscale=2)
    handles, words = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, words, loc="outside lower center", ncols=4)
    out.save(figure)


def main() -> None:
    out = exhibit("theorem2", parser(__doc__).parse_args())
    found = []
    for spaces in SPACES:
        row = []
        for i, space in enumerate(spaces[:1] if out.quick else spaces):
            with stage(f"{space.name}, {space.n} atoms, {space.terms} terms"):
                row.append(measure(space, out.seed, counts_of(space) if i == len(spaces) - 1 or out.quick else [None]))
        found.append(row)
    with stage("largest ratios"):
        write(out, found)
    draw(out, found)


if __name__ == "__main__":
    main()
