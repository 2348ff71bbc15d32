"""Two limits that the paper's preliminaries quote, measured on the circle, and the ranks of two thresholds.

Varadhan: log h_t(x, y) tends to -d^2 / 4t as t -> 0, so that 4 t log h_t tends to -d^2. The heat kernel is a sum over
images (theta function), in logarithms, so that nothing underflows; for times from 2^-4 on it is the Fourier series too.

P_eps^(t / eps) -> H_t: the walk with the paper's kernel exp(-|x - y|^2 / eps) on all of the circle has ratios of Bessel
functions as multipliers (series.py). Its powers t / eps and 4 t / eps are compared with heat in the norm of operators
on L2, the largest difference of multipliers, and of L1, the L1 norm of the difference of the kernels.

The threshold delta of MNIST is 1e-6 in the text and 0.001 in the supplement. 1e-6 is the square of 1e-3, so that the
rank R_delta of P^(2^k) for the first is exactly that of P^(2^(k-1)) for the second: |x|^(2^k) >= 1e-6 where
|x|^(2^(k-1)) >= 1e-3. The ranks are those of the paper's sphere of 25,088 nodes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

import heatmover as hm
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.ranks import density_of_states

sys.path.insert(0, str(Path(__file__).resolve().parent))
from exhibit import Exhibit, exhibit, parser, stage
from manifolds import fibonacci_sphere
from series import Floats, log_bessel_ratio

DISTANCES = (0.25, 1.0, 2.0, np.pi)
TIME_EXPONENTS = (0, 2, 4, 6, 8, 10, 12, 16, 20)
STEP_EXPONENTS = (2, 4, 6, 8, 10, 12)
TIMES = (0.25, 1.0)
NODES = 25_088
DELTAS = (1e-6, 1e-3)
SCALES = range(2, 12)


def log_heat(distances: npt.ArrayLike, time: float) -> Floats:
    """Return log h_t on the circle of radius 1, by images."""
    images = np.asarray(distances, dtype=float)[..., None] + 2 * np.pi * np.arange(-20, 21)
    return np.asarray(logsumexp(-(images**2) / (4 * time), axis=-1) - np.log(4 * np.pi * time) / 2)


def heat_series(distances: npt.ArrayLike, time: float) -> Floats:
    """Return h_t by its Fourier series."""
    j = np.arange(1, 200)
    waves = np.cos(np.asarray(distances, dtype=float)[..., None] * j) @ np.exp(-time * j**2)
    return np.asarray((1 + 2 * waves) / (2 * np.pi))


def varadhan(distances: npt.ArrayLike, time: float) -> Floats:
    """Return 4 t log h_t / -d^2, which tends to 1."""
    return -4 * time * log_heat(distances, time) / np.asarray(distances, dtype=float) ** 2


def step_errors(epsilon: float, time: float, power: float) -> tuple[float, float]:
    """Return the norms of P_eps^(power) - H_time as operators on L2 and on L1."""
    j = np.arange(400.0)
    difference = np.exp(power * log_bessel_ratio(j, 0.0, 2 / epsilon)) - np.exp(-time * j**2)
    count = 4096
    kernel = np.fft.irfft(np.append(difference, np.zeros(count // 2 + 1 - len(j))), count) * count / (2 * np.pi)
    return float(np.abs(difference).max()), float(np.abs(kernel).sum() * 2 * np.pi / count)


def write(out: Exhibit) -> None:
    distances = np.array(DISTANCES)
    rows = []
    for exponent in TIME_EXPONENTS:
        time = 2.0**-exponent
        corrected = varadhan(distances, time) - 2 * time * np.log(4 * np.pi * time) / distances**2
        cells = [f"{value:.4f}" for value in varadhan(distances, time)]
        rows.append([f"2^-{exponent}", *cells, f"{np.abs(corrected - 1).max():.0e}"])
    series = max(
        np.abs(np.exp(log_heat(distances, 2.0**-k)) / heat_series(distances, 2.0**-k) - 1).max() for k in range(4)
    )
    out.table(
        ["t", *(f"d = {distance:.3g}" for distance in DISTANCES), "largest error without 2 t log(4 pi t)"],
        rows,
        note=(
            "4 t log h_t divided by -d^2 for two points of the circle at a distance d; the last distance is half of "
            "the circle. The deviation from 1 is 2 t log(4 pi t) / d^2, and the last column has what remains without "
            f"it. Images and Fourier series of h_t agree to {series:.0e} at t from 2^-3 to 1."
        ),
    )
    rows = []
    for time in TIMES:
        before: float | None = None
        for exponent in STEP_EXPONENTS:
            epsilon = 2.0**-exponent
            literal, _ = step_errors(epsilon, time, time / epsilon)
            matched, kernel = step_errors(epsilon, time, 4 * time / epsilon)
            quarter, _ = step_errors(epsilon, time / 4, time / epsilon)
            rate = f"{np.log(before / kernel) / np.log(4):.2f}" if before else ""
            rows.append(
                [
                    f"{time:g}",
                    f"2^-{exponent}",
                    f"{literal:.3f}",
                    f"{quarter:.1e}",
                    f"{matched:.1e}",
                    f"{kernel:.1e}",
                    rate,
                ]
            )
            before = kernel
    replace(out, name="heat_limits_powers").table(
        ["t", "eps", "t / eps, heat t", "t / eps, heat t / 4", "4 t / eps, heat t", "4 t / eps, L1", "rate"],
        rows,
        note=(
            "Norm of the difference between a power of P_eps and heat on the circle, as operators on L2, and in the "
            'column "L1" as operators on L1. "t / eps" and "4 t / eps" are the powers. "Rate" is the exponent of eps '
            "with which the norm on L1 falls from one row to the next."
        ),
    )


def write_ranks(out: Exhibit) -> None:
    nodes = NODES // 10 if out.quick else NODES
    operator = DiffusionOperator.from_graph(hm.Graph.from_points(fibonacci_sphere(nodes)))
    states = density_of_states(operator, np.random.default_rng(out.seed), coarsest=10, delta=1e-3)
    replace(out, name="heat_limits_ranks").table(
        ["steps", *(f"delta {delta:g}" for delta in DELTAS), "standard error"],
        [
            [
                f"2^{scale}",
                *(f"{states.rank(scale, delta):,}" for delta in DELTAS),
                f"{states.standard_error(scale, DELTAS[0]):.1f}",
            ]
            for scale in SCALES
        ],
        note=(
            f"Numerical rank R_delta of powers of P on a sphere of {nodes:,} nodes, with the default graph, from the "
            "density of states. The last column is the standard error of the second column."
        ),
    )


def main() -> None:
    out = exhibit("heat_limits", parser(__doc__).parse_args())
    with stage("heat kernel and powers of the walk"):
        write(out)
    with stage("ranks on the sphere"):
        write_ranks(out)


if __name__ == "__main__":
    main()
