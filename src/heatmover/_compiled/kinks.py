"""Sums of weighed absolute differences, one per feature: piecewise linear, given by kinks and slopes."""

from __future__ import annotations

from heatmover._compiled.jit import kernel

__all__ = ["dual_step", "supporting"]


@kernel(fastmath={"contract"})
def dual_step(dual, features, length, kinks, slopes, result):  # type: ignore[no-untyped-def]
    """Write the proximal step of the conjugates: z + length a, less length times the prox of phi / length.

    Parameters
    ----------
    dual, features, result
        z, a and the new z, ``(n_features,)``, float64.
    length
        Of the step.
    kinks
        Of each function, ascending, ``(n_features, n_kinks)``.
    slopes
        To the right of each kink, ``(n_features, n_kinks)``, from above -1 up to 1; left of the first it is -1.
    """
    n_kinks = kinks.shape[1]
    for j in range(dual.size):
        target = dual[j] / length + features[j]
        # Before kink k the slope is constant; the first such interval whose end is not passed holds the solution.
        low, high = 0, n_kinks
        while low < high:
            k = (low + high) // 2
            slope = slopes[j, k - 1] if k > 0 else -1.0
            if target - slope / length <= kinks[j, k]:
                high = k
            else:
                low = k + 1
        nearest = target - (slopes[j, low - 1] if low > 0 else -1.0) / length
        if low > 0:
            nearest = max(nearest, kinks[j, low - 1])
        result[j] = min(max(dual[j] + length * (features[j] - nearest), -1.0), 1.0)


@kernel(fastmath={"contract"})
def supporting(dual, kinks, slopes, result):  # type: ignore[no-untyped-def]
    """Write, per feature, a kink at which the slope passes ``dual``: where the conjugate is attained."""
    for j in range(dual.size):
        low, high = 0, kinks.shape[1] - 1
        while low < high:
            k = (low + high) // 2
            if slopes[j, k] >= dual[j]:
                high = k
            else:
                low = k + 1
        result[j] = kinks[j, low]
