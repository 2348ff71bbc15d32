"""`smoothness`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from heatmover._validation import RandomState
from heatmover.drawing import style as picture
from heatmover.drawing.style import FAINT, INK, QUIET
from heatmover.drawing.variables import Variable
from heatmover.errors import InvalidInputError
from heatmover.manifold import smoothness as test_smoothness
from heatmover.pl._data import Pictured, read_data
from heatmover.statistics.permutations import TestResult

__all__ = ["smoothness"]


@final
@dataclass(frozen=True, eq=False)
class Tested:
    """A variable and what its test found."""

    label: str
    result: TestResult


def smoothness(
    data: Any,
    variables: Any,
    *,
    k: int = 10,
    n_permutations: int = 999,
    random_state: RandomState = 0,
    key: str = "heatmover",
    ax: Any = None,
) -> Any:
    """Draw how smooth variables are over near samples: less than 1 is smoother than chance.

    A bar is the Laplacian smoothness of a variable over what it has on average when shuffled over the samples
    (`heatmover.manifold.smoothness`), a grey band where 95 % of the shuffled ones lie, beside it the p-value of the
    permutation test. P-values are of each variable by itself; of many look at `heatmover.statistics.false_discovery`.

    Parameters
    ----------
    data
        As in `sample_map`.
    variables
        Columns of ``.obs``, or a mapping from names to values for the samples. Numbers or groups. A sample without a
        value is left out of the test of that variable, and the label says so.
    k
        Neighbours of each sample in their graph; with fewer samples, all others.
    n_permutations, random_state
        Of the permutation tests.
    key
        Where `sample_distances` wrote, if ``data`` holds cells.
    ax
        Axes to draw into; default new ones.

    Returns
    -------
    matplotlib.axes.Axes
        With one bar for each variable, the smoothest on top.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import smoothness
    >>> data = hm.datasets.cohort(20, cells_per_sample=50, effect=4.0)
    >>> result = hm.compare(data.points, data.labels)
    >>> axes = smoothness(result, {"condition": data.annotations["condition"]}, k=5)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['condition']
    """
    pictured = read_data(data, key)
    found = pictured.variables(variables)
    if not found:
        raise InvalidInputError("at least one variable", "none")
    tests = [_test(pictured, variable, k, n_permutations, random_state) for variable in found]
    tests.sort(key=lambda tested: -tested.result.statistic)
    axes = picture.new_axes((6.4, 1.6 + 0.42 * len(tests))) if ax is None else ax
    _draw(axes, tests)
    return axes


def _test(pictured: Pictured, variable: Variable, k: int, n_permutations: int, random_state: RandomState) -> Tested:
    known = np.flatnonzero(~variable.missing)
    total = len(pictured.names)
    if known.size < 3:
        raise InvalidInputError(f"{variable.name!r} known of at least 3 samples", f"{known.size}")
    signal: Any = variable.numbers[known] if variable.numbers is not None else None
    if signal is None:
        signal = np.array(variable.groups, dtype=object)[variable.codes[known]]
    result = test_smoothness(
        pictured.distances[np.ix_(known, known)],
        signal,
        k=min(k, known.size - 1) if isinstance(k, int) else k,
        n_permutations=n_permutations,
        random_state=random_state,
    )
    name = picture.shortened(variable.name or "variable", 40)
    return Tested(name if known.size == total else f"{name} ({known.size} of {total})", result)


def _draw(axes: Any, tests: list[Tested]) -> None:
    rows = np.arange(len(tests))
    low, high = np.array([np.quantile(tested.result.null, [0.025, 0.975]) for tested in tests]).T
    values = np.array([tested.result.statistic for tested in tests])
    axes.barh(rows, values, height=0.42, color=picture.COLOURS[0], zorder=2, label="observed")
    axes.barh(rows, high - low, left=low, height=0.78, color=FAINT, zorder=1, label="95 % of shuffled")
    axes.axvline(1.0, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
    right = max(float(values.max()), float(high.max())) * 1.02
    for row, tested in enumerate(tests):
        axes.annotate(
            f"p = {tested.result.p_value:.2g}", (1.01, row), xycoords=("axes fraction", "data"), va="center",
            fontsize=9, color=INK,
        )  # fmt: skip
    axes.set_xlim(0, right)
    axes.set_ylim(-0.6, len(tests) - 0.4)
    axes.set_yticks(rows, [tested.label for tested in tests])
    axes.set_xlabel("roughness over near samples (1: as by chance)", color=INK, fontsize=11)
    axes.set_title("Smoothness", loc="left", color=INK, fontsize=14, pad=26)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    picture.bare(axes)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
        label.set_color(INK)
        label.set_fontsize(10)
    axes.tick_params(axis="y", length=0)
