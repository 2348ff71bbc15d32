"""The supplement's theorem for other kernels than heat: D_alpha is equivalent to min[1, d^(alpha beta)].

On the circle a kernel is its Fourier multipliers, and every property that the theorem assumes can be computed. Three
families satisfy them: exp(-t |j|^beta) is heat for beta = 2, the Poisson kernel for beta = 1 and a stable law for
beta = 3/2. Others break one assumption each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from exhibit import Exhibit, exhibit, parser, stage
from series import Floats, circle_levels, heat_levels, poisson_levels

# Times 2^-k of D_alpha, where a level costs nothing and where it is a long series. At 22 the stable law lacks 2% of
# its last level at d = 0.001, below 0.1% of D_alpha; every further level repeats the last.
LEVELS, LEVELS_BY_SERIES = 45, 23
DISTANCES = np.geomspace(1e-3, np.pi, 60)
ALPHAS = (0.1, 0.3, 0.45)
# Times and a grid on which the kernels themselves are looked at.
TIMES = 2.0 ** -np.arange(0, 11)
GRID = 2**15


@dataclass(frozen=True)
class Kernel:
    """A family of kernels on the circle.

    Attributes
    ----------
    name, color
        In tables and in the figure.
    beta
        The exponent that the conditions have, or should have.
    multipliers
        Of frequencies (0, 1, 2, ...) and a time.
    levels
        ||a_t(x, .) - a_t(y, .)||_1 by time and distances.
    holds
        Whether all assumptions hold.
    """

    name: str
    color: str
    beta: float
    multipliers: Callable[[Floats, float], Floats]
    levels: Callable[[float, Floats], Floats]
    holds: bool

    def ground(self, alpha: float, distances: Floats) -> Floats:
        """Return D_alpha at the distances."""
        count = LEVELS_BY_SERIES if self.name == "stable" else LEVELS
        levels = [self.levels(2.0**-k, distances) for k in range(count)]
        weights = 2.0 ** (-alpha * np.arange(count))
        weights[-1] /= 1 - 2.0**-alpha  # the last level repeats for ever
        return weights @ np.array(levels)

    def values(self, time: float) -> Floats:
        """Return the density of the kernel on an even grid of the circle, atoms and all."""
        return np.fft.irfft(self.multipliers(np.arange(GRID // 2 + 1.0), time), GRID) * GRID / (2 * np.pi)


def stable(beta: float) -> Callable[[Floats, float], Floats]:
    return lambda j, t: np.exp(-t * j**beta)


def stable_levels(beta: float) -> Callable[[float, Floats], Floats]:
    def levels(time: float, distances: Floats) -> Floats:
        j = np.arange(int((40 / time) ** (1 / beta)) + 2.0)
        return circle_levels(np.exp(-time * j**beta), distances)

    return levels


# Half the width of the box is sqrt(t), at most pi; its multipliers are sin(j w) / (j w).
def box(j: Floats, t: float) -> Floats:
    return np.sinc(j * np.sqrt(t) / np.pi)


def box_levels(time: float, distances: Floats) -> Floats:
    return np.minimum(2, distances / np.sqrt(time))


# With rate 1 a mass jumps to anywhere; until then it stays.
def jumps(j: Floats, t: float) -> Floats:
    return np.where(j == 0, 1.0, np.exp(-t))


def jump_levels(time: float, distances: Floats) -> Floats:
    return np.full(len(distances), 2 * np.exp(-time))


FIXED = 0.01


def fixed(j: Floats, t: float) -> Floats:  # noqa: ARG001 - that is the point
    return np.exp(-FIXED * j**2)


KERNELS = (
    Kernel("heat", "#D55E00", 2, stable(2), heat_levels, holds=True),
    Kernel("stable", "#009E73", 1.5, stable(1.5), stable_levels(1.5), holds=True),
    Kernel("Poisson", "#0072B2", 1, stable(1), poisson_levels, holds=True),
    Kernel("box", "#CC79A7", 2, box, box_levels, holds=False),
    Kernel("jumps", "#E69F00", 2, jumps, jump_levels, holds=False),
    Kernel("one width", "#000000", 2, fixed, lambda _, d: heat_levels(FIXED, d), holds=False),
)


def semigroup_gap(kernel: Kernel) -> float:
    """Return the largest |m_s m_t - m_(s+t)| over frequencies and times: the operator norm of A_s A_t - A_(s+t)."""
    j = np.arange(1000.0)
    return max(
        float(np.abs(kernel.multipliers(j, s) * kernel.multipliers(j, t) - kernel.multipliers(j, s + t)).max())
        for s in TIMES
        for t in TIMES
    )


def geometric_constant(kernel: Kernel, alpha: float) -> tuple[float, float]:
    """Return 2^(k alpha) times the integral of |p_k(x, y)| D_alpha(x, y) over y, at k = 2 and at k = 10."""
    offsets = np.arange(GRID)
    distances = 2 * np.pi * np.minimum(offsets, GRID - offsets) / GRID
    near = np.geomspace(2 * np.pi / GRID, np.pi, 200)
    table = kernel.ground(alpha, near)
    ground = np.exp(np.interp(np.log(np.maximum(distances, near[0])), np.log(near), np.log(table)))
    ground[0] = 0
    found = [2.0 ** (k * alpha) * np.abs(kernel.values(2.0**-k)) @ ground * 2 * np.pi / GRID for k in (2, 10)]
    return float(found[0]), float(found[1])


def conditions(kernel: Kernel) -> tuple[float, float, float]:
    """Return what conditions 1 to 3 bound, each as large as possible over the times from 1 to 2^-10.

    1: the largest t^(1/beta) a_t(x, y) (1 + z)^(1 + beta), z = d / t^(1/beta): a phi that falls as z^-(1 + beta) does.
    2: the same with the slope of the kernel, t^(1/beta) times it: Theta = 1.
    3: the smallest t^(1/beta) a_t(x, y) with z <= 1.
    """
    place = 2 * np.pi * np.arange(GRID // 2) / GRID
    upper, slope, lower = 0.0, 0.0, np.inf
    for time in TIMES:
        width = time ** (1 / kernel.beta)
        density = kernel.values(time)[: GRID // 2]
        z = place / width
        fall = (1 + z) ** (1 + kernel.beta)
        upper = max(upper, float((width * np.abs(density) * fall).max()))
        steepness = np.abs(np.diff(density)) / (2 * np.pi / GRID)
        slope = max(slope, float((width**2 * steepness * fall[1:]).max()))
        lower = min(lower, float((width * density)[z <= 1].min()))
    return upper, slope, lower


def ratios(kernel: Kernel, alpha: float, distances: Floats) -> Floats:
    return kernel.ground(alpha, distances) / np.minimum(1, distances ** (alpha * kernel.beta))


def exponent(kernel: Kernel, alpha: float) -> float:
    """Return the exponent of D_alpha fitted over distances from 0.001 to 0.03."""
    near = DISTANCES[DISTANCES < 0.03]
    return float(np.polyfit(np.log(near), np.log(kernel.ground(alpha, near)), 1)[0])


def assumption_rows(kernels: Sequence[Kernel]) -> list[list[str]]:
    rows = []
    for kernel in kernels:
        upper, slope, lower = conditions(kernel)
        coarse, fine = geometric_constant(kernel, 0.3)
        mass = max(float(np.abs(kernel.values(time)).sum() * 2 * np.pi / GRID) for time in TIMES)
        rows.append(
            [
                kernel.name,
                f"{kernel.beta:g}",
                f"{semigroup_gap(kernel):.2f}",
                f"{mass:.2f}",
                *(f"{value:.2f}" if value < 1000 else f"{value:.0e}" for value in (upper, slope)),
                f"{lower:.2f}",
                f"{coarse:.2f}, {fine:.2f}",
            ]
        )
    return rows


def band_rows(kernels: Sequence[Kernel]) -> list[list[str]]:
    rows = []
    for kernel in kernels:
        for alpha in ALPHAS + ((0.75,) if kernel.beta < 2 or kernel.name == "heat" else ()):
            found = ratios(kernel, alpha, DISTANCES)
            cells = [f"[{found.min():.2f}, {found.max():.2f}]"]
            cells += [f"{(part := found[low <= DISTANCES]).max() / part.min():.2f}" for low in (0.1, 0.01, 0.001)]
            limit = 1 / kernel.beta
            inside = "yes" if kernel.holds and alpha < limit else "no"
            rows.append(
                [
                    kernel.name,
                    f"{alpha:g}",
                    inside,
                    f"{alpha * kernel.beta:.2f}",
                    f"{exponent(kernel, alpha):.2f}",
                    *cells,
                ]
            )
    return rows


def write(out: Exhibit) -> None:
    out.table(
        ["kernel", "beta", "semigroup", "L1 norm", "condition 1", "condition 2", "condition 3", "geometric"],
        assumption_rows(KERNELS),
        note=(
            '"Semigroup" is the largest |m_s m_t - m_(s+t)|, which is 0 for a semigroup. "L1 norm" is the largest '
            'norm over times from 1 to 2^-10. "Condition 1" is the largest t^(1/beta) a_t (1 + z)^(1 + beta) with z = '
            'd / t^(1/beta). "Condition 2" has t^(2/beta) times the slope of a_t instead of t^(1/beta) a_t. '
            '"Condition 3" is the smallest t^(1/beta) a_t with z <= 1. All conditions are evaluated at times from 1 '
            f'to 2^-10, on a grid of {GRID:,} points. "Geometric" is 2^(k alpha) times the integral of |p_k| D_alpha '
            "at k = 2 and k = 10, with alpha 0.3. All kernels have m_0 = 1, so mass is conserved."
        ),
    )
    heads = ["kernel", "alpha", "in the theorem", "exponent promised", "exponent measured", "band"]
    heads += ["distortion, d > 0.1", "d > 0.01", "d > 0.001"]
    out.table(
        heads,
        band_rows(KERNELS),
        note=(
            "Ratio of D_alpha on the circle to min[1, d^(alpha beta)], for distances d from 0.001 to half the circle. "
            "The exponent is fitted to distances below 0.03. The distortion is the largest ratio divided by the "
            "smallest ratio."
        ),
        suffix="_bands",
    )


def draw(out: Exhibit) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.9))
    for ax, alpha in zip(axes, (0.3, 0.45, 0.75), strict=True):
        for kernel in KERNELS:
            inside = kernel.holds and alpha < 1 / kernel.beta
            words = rf"{kernel.name}, $\beta$ = {kernel.beta:g}"
            found = ratios(kernel, alpha, DISTANCES)
            at_one = np.interp(0, np.log(DISTANCES), np.log(found))
            ax.plot(DISTANCES, found / np.exp(at_one), color=kernel.color, ls="-" if inside else ":", label=words)
        ax.set(xscale="log", yscale="log", ylim=(0.03, 30), title=rf"$\alpha$ = {alpha:g}", xlabel="distance d [rad]")
        ax.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    axes[0].set_ylabel(r"$D_\alpha$ / min[1, $d^{\alpha\beta}$], 1 at d = 1")
    handles, words = axes[0].get_legend_handles_labels()
    handles.append(plt.Line2D([], [], color="#555555", ls=":"))
    figure.legend(handles, [*words, "outside the theorem"], loc="outside lower center", ncols=7, columnspacing=1.0)
    out.save(figure)


def main() -> None:
    out = exhibit("kernels", parser(__doc__).parse_args())
    with stage("kernels on the circle"):
        write(out)
    draw(out)


if __name__ == "__main__":
    main()
