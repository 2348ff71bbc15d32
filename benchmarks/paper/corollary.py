"""The paper's Corollary 2.1: Eq. 9 with powers of the walk P_eps in place of heat.

P_eps has the paper's density-normalised kernel exp(-|x - y|^2 / eps), on all of the ring, sphere and torus: its
multipliers are known in closed form (series.py). One step is heat for time eps / 4, so that P_eps^(4 t / eps) tends to
the heat operator of time t; the paper's P_eps^(t / eps) tends to that of time t / 4. Powers below one step do not
exist for a walk: with whole steps the sum ends after log2(4 / eps) terms.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

import heatmover as hm

sys.path.insert(0, str(Path(__file__).resolve().parent))
from exhibit import Exhibit, exhibit, parser, stage
from series import Floats, Sphere, Terms, Torus, circle_levels, heat_levels, log_bessel_ratio, norm_terms
from theorem2 import ALPHAS, Found, band, measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPACES = (Torus(1, 256), Sphere(200), Torus(2, 16))
# eps = 2^-e.
EXPONENTS = (2, 4, 6, 8, 10, 12)
# Points on the ring with density 1 + 0.6 cos x, which the walk must undo.
UNEVEN, CONTRAST = 1200, 0.6
COLORS = {"ring": "#D55E00", "sphere": "#009E73", "torus": "#0072B2", "uneven": "#000000"}
WAVES = (1, 2, 4, 8, 16, 32, 64, 128)
# Frequencies for powers below one step, whose multipliers fall no faster than exponentially.
MANY = 2**21


def whole_terms(exponent: int) -> int:
    """Return how many terms whole steps allow: the last goes down to one step, 2^-k 4 / eps = 1."""
    return exponent + 2


def differences(walk: Terms, heat: Terms, alpha: float, pairs: tuple, terms: int | None) -> Floats:
    """Return |sum with the walk / sum with heat - 1| for all pairs, heat with so many terms."""
    n_terms = len(walk.scales)
    with np.errstate(divide="ignore", invalid="ignore"):  # nothing is left of every other atom on either side
        return np.abs(walk.total(alpha, n_terms)[pairs] / heat.total(alpha, terms)[pairs] - 1)


class Row:
    """One space and eps: how far the walk is from heat, pair by pair."""

    def __init__(self, found: Found, exponent: int) -> None:
        self.found, self.exponent = found, exponent
        rows = found.rows
        walk = found.space.walk(2.0**-exponent)
        self.terms = whole_terms(exponent)
        self.matched = norm_terms(found.space, rows, walk, self.terms)["increments"]
        self.literal = norm_terms(found.space, rows, lambda t: walk(t / 4), exponent)["increments"]

    def resolved(self, alpha: float) -> np.ndarray:
        """Return the pairs of which the terms that exist hold at least half of Eq. 9."""
        heat, pairs = self.found.norms["increments"], self.found.pairs
        return heat.total(alpha, self.terms)[pairs] >= heat.total(alpha)[pairs] / 2

    def same_terms(self, alpha: float) -> Floats:
        return differences(self.matched, self.found.norms["increments"], alpha, self.found.pairs, self.terms)

    def literal_terms(self, alpha: float) -> Floats:
        return differences(self.literal, self.found.norms["increments"], alpha, self.found.pairs, self.exponent)

    def all_terms(self, alpha: float) -> Floats:
        return differences(self.matched, self.found.norms["increments"], alpha, self.found.pairs, None)

    def cells(self, alpha: float) -> list[str]:
        pairs, near = self.found.pairs, self.resolved(alpha)
        with np.errstate(divide="ignore"):  # whole steps do not see every other atom at all
            ratios = self.found.truth[alpha, None][pairs] / self.matched.total(alpha, self.terms)[pairs]
        same, literal, every = self.same_terms(alpha), self.literal_terms(alpha), self.all_terms(alpha)
        return [
            self.found.space.name,
            f"{alpha:g}",
            f"2^-{self.exponent}",
            f"{near.sum()} of {near.size}",
            f"{np.median(same[near]):.1e}" if near.any() else "",
            f"{same[near].max():.1e}" if near.any() else "",
            f"{np.median(literal[near]):.1e}" if near.any() else "",
            f"{np.median(every):.2f}",
            band(ratios[near]) if near.any() else "",
            f"{ratios.max():.1f}" if ratios.max() < 1e4 else "> 10,000",
        ]


def uneven_points(n: int) -> Floats:
    """Return n points of the ring at equal steps of the distribution function of 1 + 0.6 cos x."""
    grid = np.linspace(0, 2 * np.pi, 100_001)
    return np.interp((np.arange(n) + 0.5) / n, (grid + CONTRAST * np.sin(grid)) / (2 * np.pi), grid)


def paper_walk(points: Floats, epsilon: float) -> tuple[Floats, Floats, Floats]:
    """Return eigenvalues, eigenvectors and root degrees of the paper's matrix, Eq. 4 and 5, on points in space."""
    squares = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    kernel = np.exp(-squares / epsilon)
    density = kernel.sum(axis=1)
    kernel /= np.outer(density, density)
    root = np.sqrt(kernel.sum(axis=1))
    values, vectors = np.linalg.eigh(kernel / np.outer(root, root))
    return np.clip(values, 0, None), vectors, root


def uneven_differences(exponents: Sequence[int], alpha: float, seed: int) -> list[float]:
    """Return, per eps, the median relative difference between the paper's matrix on uneven points and heat."""
    angles, rng = uneven_points(UNEVEN), np.random.default_rng(seed)
    rows = np.zeros((24, UNEVEN))
    for row in rows:
        bell = np.exp(rng.uniform(2, 20) * np.cos(angles - rng.uniform(0, 2 * np.pi)))
        np.add.at(row, rng.choice(UNEVEN, 40, p=bell / bell.sum()), 1 / 40)
    waves = np.arange(2049)
    spectrum = rows @ np.exp(-1j * np.outer(angles, waves))
    upper = np.triu_indices(len(rows), 1)
    medians = []
    for exponent in exponents:
        values, vectors, root = paper_walk(np.column_stack([np.cos(angles), np.sin(angles)]), 2.0**-exponent)
        parts = (rows / root) @ vectors
        totals = [np.zeros(upper[0].size), np.zeros(upper[0].size)]
        before: list[Floats] = []
        for k in range(whole_terms(exponent) + 1):
            walked = (parts * values ** (2.0 ** (exponent + 2 - k))) @ vectors.T * root
            heated = np.fft.irfft(spectrum * np.exp(-(2.0**-k) * waves**2), 4096)
            now = [walked, heated]
            parts_of = now if k == 0 else [a - b for a, b in zip(now, before, strict=True)]
            weight = 1 if k == 0 else 2.0 ** (-(k - 1) * alpha)
            for total, part in zip(totals, parts_of, strict=True):
                total += weight * hm.pairwise_distances(part)[upper]
            before = now
        medians.append(float(np.median(np.abs(totals[0] / totals[1] - 1))))
    return medians


def wave_sums(logs: Floats, alpha: float, first: int) -> Floats:
    """Return Eq. 9 over ||g||_1 for waves g = cos(j x) whose multipliers at time t are exp(t logs), (n_waves,)."""
    k = np.arange(first)[:, None]
    now, finer = np.exp(2.0**-k * logs), np.exp(2.0 ** -(k + 1) * logs)
    return np.exp(logs) + (2.0 ** (-k * alpha) * (finer - now)).sum(axis=0)


def wave_rows(exponent: int, alpha: float) -> list[list[str]]:
    j = np.array(WAVES, dtype=float)
    walk = 2.0 ** (exponent + 2) * log_bessel_ratio(j, 0.0, 2.0 ** (exponent + 1))
    heat, whole, powers = (
        wave_sums(-(j**2), alpha, 400),
        wave_sums(walk, alpha, whole_terms(exponent)),
        wave_sums(walk, alpha, 400),
    )
    return [
        [
            str(wave),
            f"{np.exp(-(wave**2.0)):.1e}",
            f"{heat[i]:.3f}",
            f"{heat[i] * wave ** (2 * alpha):.3f}",
            f"{whole[i] / heat[i]:.1e}" if whole[i] < 0.01 * heat[i] else f"{whole[i] / heat[i]:.3f}",
            f"{powers[i] / heat[i]:.3f}",
        ]
        for i, wave in enumerate(WAVES)
    ]


def ground_ratio(exponent: int, distances: Floats, alpha: float, *, whole: bool) -> Floats:
    """Return D_alpha made with the walk over D_alpha made with heat, at these distances on the ring."""
    terms = 60
    heat = sum(2.0 ** (-k * alpha) * heat_levels(2.0**-k, distances) for k in range(terms))
    rest = 2 * 2.0 ** (-terms * alpha) / (1 - 2.0**-alpha)
    logs = log_bessel_ratio(np.arange(4096.0 if whole else MANY), 0.0, 2.0 ** (exponent + 1)) * 2.0 ** (exponent + 2)
    total, weight = np.zeros_like(distances), 1.0
    for k in range(whole_terms(exponent) + 1 if whole else terms):
        level = circle_levels(np.exp(2.0**-k * logs), distances)
        weight = 2.0 ** (-k * alpha)
        total += weight * level
        if not whole and level.min() > 1.98:
            # All that follows is as good as 2.
            total += 2 * weight * 2.0**-alpha / (1 - 2.0**-alpha)
            break
    return total / (heat + rest)


def draw(out: Exhibit, rows: Sequence[Row], uneven: Sequence[float], exponents: Sequence[int], curves: dict) -> None:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 4.6))
    alpha = 0.3
    for space in SPACES:
        mine = [row for row in rows if row.found.space.name == space.name and row.resolved(alpha).any()]
        eps = [2.0**-row.exponent for row in mine]
        look = {"color": COLORS[space.name], "marker": "o"}
        left.plot(
            eps, [np.median(row.same_terms(alpha)[row.resolved(alpha)]) for row in mine], **look, label=space.name
        )
        left.plot(
            eps,
            [np.median(row.literal_terms(alpha)[row.resolved(alpha)]) for row in mine],
            **look,
            ls=":",
            markersize=3,
        )
    left.plot([2.0**-e for e in exponents], uneven, color="#000000", marker="s", label="ring, uneven points")
    left.plot([], [], color="#555555", ls=":", label=r"$P_\epsilon^{t/\epsilon}$, time not matched")
    left.set(
        xscale="log",
        yscale="log",
        xlabel=r"$\epsilon$",
        ylabel="median relative difference",
        title="Walk against heat, same terms",
    )
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    draw_waves(middle, alpha)
    draw_distances(right, curves)
    out.save(figure)


def draw_waves(ax: Axes, alpha: float) -> None:
    j = np.geomspace(1, 300, 120)
    exponent = 8
    walk = 2.0 ** (exponent + 2) * log_bessel_ratio(j, 0.0, 2.0 ** (exponent + 1))
    heat = wave_sums(-(j**2), alpha, 400)
    ax.plot(j, heat, color="#0072B2", lw=3, alpha=0.5, label=r"Eq. 9, heat: $\propto j^{-2\alpha}$")
    ax.plot(j, wave_sums(walk, alpha, 400), color="#009E73", ls="--", label=r"Eq. 9, all powers of $P_\epsilon$")
    ax.plot(
        j, wave_sums(walk, alpha, whole_terms(exponent)), color="#D55E00", label=r"Eq. 9, whole steps of $P_\epsilon$"
    )
    ax.plot(j, np.exp(-(j**2)), color="#7F7F7F", label=r"$\|H_1 g\|_1$ alone")
    ax.axvline(2.0 ** (exponent / 2), color="#AAAAAA", lw=0.8, ls=":")
    ax.text(2.0 ** (exponent / 2) * 1.08, 0.9, r"$1/\sqrt{\epsilon}$", color="#777777", fontsize=8)
    ax.set(xscale="log", yscale="log", ylim=(1e-4, 2), xlabel="frequency j", ylabel=r"over $\|g\|_1$")
    ax.set_title(r"$g = \cos jx$, $\epsilon = 2^{-8}$, $\alpha$ = 0.3")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))


def draw_distances(ax: Axes, curves: dict) -> None:
    shades = {4: "#56B4E9", 8: "#0072B2"}
    for (exponent, whole), (distances, ratio) in curves.items():
        words = rf"$\epsilon = 2^{{-{exponent}}}$, " + ("whole steps" if whole else "all powers")
        ax.plot(distances, ratio, color=shades[exponent], ls="-" if whole else "--", label=words)
        ax.plot(
            2.0 ** (-exponent / 2), np.interp(2.0 ** (-exponent / 2), distances, ratio), "o", color=shades[exponent]
        )
        if not whole:
            ax.plot(2.0**-exponent, np.interp(2.0**-exponent, distances, ratio), "s", color=shades[exponent])
    ax.plot([], [], "o", color="#555555", label=r"$d = \sqrt{\epsilon}$")
    ax.plot([], [], "s", color="#555555", label=r"$d = \epsilon$")
    ax.axhline(1, color="#AAAAAA", lw=0.8)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="distance d on the ring [rad]",
        ylabel=r"$D_\alpha$ with $P_\epsilon$ / with heat",
    )
    ax.set_title(r"Two points, $\alpha$ = 0.3")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def distance_rows(curves: dict, exponents: Sequence[int]) -> list[list[str]]:
    rows = []
    for step in (16, 4, 1, 1 / 4, 1 / 16, 1 / 64, 1 / 256):
        cells = []
        for exponent in exponents:
            for whole in (True, False):
                distances, ratio = curves[exponent, whole]
                place = step * 2.0 ** (-exponent / 2)
                inside = distances[0] <= place <= distances[-1]
                cells.append(
                    f"{np.exp(np.interp(np.log(place), np.log(distances), np.log(ratio))):.3f}" if inside else ""
                )
        rows.append([f"{step:g}" if step >= 1 else f"1/{1 / step:g}", *cells])
    return rows


def main() -> None:
    out = exhibit("corollary", parser(__doc__).parse_args())
    alpha, rows = 0.3, []
    for space in (Torus(1, 64), Sphere(50), Torus(2, 8)) if out.quick else SPACES:
        with stage(f"{space.name}: exact EMD"):
            found = measure(space, out.seed, [None])
        for exponent in EXPONENTS:
            if whole_terms(exponent) <= space.terms:
                with stage(f"{space.name}, eps = 2^-{exponent}"):
                    rows.append(Row(found, exponent))
    exponents = EXPONENTS[:3] if out.quick else EXPONENTS[:5]
    with stage("uneven points"):
        uneven = uneven_differences(exponents, alpha, out.seed)
    with stage("two points"):
        places = np.geomspace(1e-2 if out.quick else 2e-4, np.pi, 12 if out.quick else 40)
        curves = {
            (e, whole): (places, ground_ratio(e, places, alpha, whole=whole)) for e in (4, 8) for whole in (True, False)
        }
    write(out, rows, uneven, exponents, curves)
    draw(out, rows, uneven, exponents, curves)


def write(out: Exhibit, rows: Sequence[Row], uneven: Sequence[float], exponents: Sequence[int], curves: dict) -> None:
    heads = ["space", "alpha", "eps", "resolved pairs", "median", "largest", "median, t / eps", "median, all terms"]
    heads += ["W / sum, resolved", "W / sum, largest of all"]
    ordered = [row.cells(0.3) for row in rows]
    ordered += [row.cells(alpha) for alpha in ALPHAS if alpha != 0.3 for row in rows if row.found.space.name == "ring"]
    words = ", ".join(f"{value:.1e}" for value in uneven)
    out.table(
        heads,
        ordered,
        note=(
            "Relative difference between Eq. 9 with P_eps^(4 t / eps) and Eq. 9 with heat, where each sum has the "
            "log2(4 / eps) terms that whole steps allow. A pair is resolved if these terms contain at least half of "
            'Eq. 9 with heat and all terms. "Median, t / eps" uses the powers t / eps of the paper, which do not '
            'match the time of heat. "Median, all terms" is the median over all pairs of the difference from Eq. 9 '
            "with heat and all terms. W is the exact EMD with the ground distance D_alpha of heat. With the paper's "
            f"matrix on {UNEVEN:,} points of the ring with density 1 + {CONTRAST} cos x, alpha 0.3, the median is "
            f"{words} at eps 2^-{', 2^-'.join(map(str, exponents))}."
        ),
    )
    out.table(
        ["frequency j", "H_1", "Eq. 9", "Eq. 9 times j^(2 alpha)", "whole steps / heat", "all powers / heat"],
        wave_rows(8, 0.3),
        note=(
            "Norms of the wave g = cos(j x) on the ring, computed from closed forms, with alpha 0.3 and eps = 2^-8. "
            "All norms are relative to the L1 norm of g."
        ),
        suffix="_waves",
    )
    out.table(
        ["d / sqrt(eps)", *(f"eps 2^-{e}, {words}" for e in (4, 8) for words in ("whole steps", "all powers"))],
        distance_rows(curves, (4, 8)),
        note=(
            "Ratio of D_alpha computed with P_eps to D_alpha computed with heat, for two points of the ring at "
            "distance d, with alpha 0.3."
        ),
        suffix="_distances",
    )


if __name__ == "__main__":
    main()
