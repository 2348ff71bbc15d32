"""How well a grouping of samples explains the distances between them, in figures and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from heatmover._typing import Float64
from heatmover._words import counted
from heatmover.errors import InvalidInputError

__all__ = ["Separation", "separate"]


@final
@dataclass(frozen=True)
class Separation:
    """How well a grouping of the samples explains the distances between them; ``print`` it.

    Attributes
    ----------
    within, between
        Mean distance between two samples of the same group and of different groups, over all such pairs.
    agreement
        Share of the samples whose nearest other sample is of the same group; of samples that are equally near
        each counts in part.
    chance
        What that share would be on average if the groups were dealt out at random.
    n_samples
        Number of samples.

    Examples
    --------
    >>> print(Separation(within=1.0, between=1.5, agreement=0.9, chance=0.4, n_samples=20))
    Samples of different groups are 50 % further apart than samples of one group (mean distance 1.50 against 1.00).
    The nearest sample is of the same group for 18 of 20 samples (8.0 expected by chance).
    """

    within: float
    between: float
    agreement: float
    chance: float
    n_samples: int

    def describe(self, kind: str = "group") -> str:
        """Return the figures in two plain sentences, with ``kind`` for what the groups are."""
        # Rounded first, so that the words never contradict the number they come with.
        excess = round(100 * (self.between / self.within - 1)) if self.within else 0
        words = f"{abs(excess)} % {'further apart' if excess > 0 else 'nearer'} than" if excess else "as far apart as"
        if self.within == 0 < self.between:
            words = "further apart than"
        return (
            f"Samples of different {kind}s are {words} samples of one {kind} "
            f"(mean distance {self.between:.2f} against {self.within:.2f}).\n"
            f"The nearest sample is of the same {kind} for {self.agreement * self.n_samples:.3g} of "
            f"{counted(self.n_samples, 'sample')} ({self.chance * self.n_samples:.1f} expected by chance)."
        )

    def __str__(self) -> str:
        return self.describe()


def separate(distances: Float64, codes: npt.NDArray[np.integer]) -> Separation:
    """Return how well groups explain distances.

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    codes
        Group of each sample as a number from 0 on, ``(n_samples,)``; at least two groups, one of them of two samples.

    Examples
    --------
    >>> positions = np.array([0.0, 1.0, 8.0, 9.0])
    >>> separate(abs(positions[:, None] - positions), np.array([0, 0, 1, 1])).agreement
    1.0
    """
    n_samples = len(codes)
    same = codes[:, None] == codes
    pairs = np.triu(np.ones_like(same), 1)
    if not (same & pairs).any() or same.all():
        raise InvalidInputError(
            "at least two groups, one of them with at least two samples",
            f"{counted(codes.max() + 1, 'group')} of {counted(n_samples, 'sample')}",
        )
    candidates = distances.copy()
    np.fill_diagonal(candidates, np.inf)
    # Distances of a float32 embedding that differ by less are equal: rounding must not decide who is nearest.
    tied = candidates <= candidates.min(axis=1, keepdims=True) * (1 + 1e-5)
    counts = np.bincount(codes)
    return Separation(
        within=float(distances[same & pairs].mean()),
        between=float(distances[~same & pairs].mean()),
        agreement=float(((tied & same).sum(axis=1) / tied.sum(axis=1)).mean()),
        chance=float((counts * (counts - 1)).sum() / (n_samples * (n_samples - 1))),
        n_samples=n_samples,
    )
