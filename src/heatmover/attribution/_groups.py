"""`explain_groups`: which points differ between two groups of samples, and how surely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._permutations import arrangements
from heatmover._samples import check_labels
from heatmover._validation import RandomState, check_random_state, check_threads, import_extra
from heatmover.attribution._check import check_annotation, check_coordinates, check_model, find_name
from heatmover.attribution._contrast import Tested, commonest, two_frames
from heatmover.attribution._pair import Explanation, explain_masses
from heatmover.embedding import Layout, embed
from heatmover.errors import InvalidInputError
from heatmover.estimator import DiffusionEMD
from heatmover.measures import check_measures
from heatmover.statistics import false_discovery

__all__ = ["GroupContrast", "Kinds", "explain_groups"]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

# Densities are compared at the finest scale at which a sample has, at the median point, this many cells to estimate
# them from. On 40 cohorts of 30 samples of 100 cells, odds of a branch tripled: at a scale with 4 cells 85 % of the
# branch was found, with 12 cells 94 %; with 22 heat leaks out of it, and false calls rose from 3 to 6 %.
CELLS_IN_REACH = 10.0
# Points at which that is judged, and points that set the frame of reference.
PROBES, FRAME = 32, 1_000


@final
@dataclass(frozen=True, eq=False, repr=False)
class Kinds:
    """The same test for kinds of points, such as cell types, by the mass that samples have in each.

    Attributes
    ----------
    names
        Of the kinds, sorted.
    points
        ``(n_kinds,)``: number of points of each.
    scores, log_ratios, p_values, q_values
        ``(n_kinds,)``: as in `GroupContrast`.
    """

    names: tuple[str, ...]
    points: Int64
    scores: Float64
    log_ratios: Float64
    p_values: Float64
    q_values: Float64

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each kind."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        columns = {name: getattr(self, name) for name in ("points", "scores", "log_ratios", "p_values", "q_values")}
        return pandas.DataFrame(columns, index=pandas.Index(self.names, name="kind"))


@final
@dataclass(frozen=True, eq=False, repr=False)
class GroupContrast:
    """Which points differ between two groups of samples; ``print`` it. `explain_groups` makes one.

    Attributes
    ----------
    group, reference
        Names of the groups.
    n_samples
        ``(2,)``: independent samples (units, if there are units) in each.
    explanation
        Of the distance between the mean of the group and the mean of the reference.
    scores
        ``(n_points,)``: how surely the density around a point differs: a studentised difference of log-densities,
        positive where the group has more, zero where the two frames of reference disagree.
    log_ratios
        ``(n_points,)``: natural logarithm of how many times denser the group is around a point than the
        reference, relative to what is commonest among all cells.
    p_values, q_values
        ``(n_points,)``: by rearranging samples, and corrected for the number of points: among all points with a
        q-value of at most 0.1 a tenth is expected to be false.
    scale
        Densities are compared after ``2**scale`` steps of diffusion.
    n_permutations, complete
        Rearrangements looked at, and whether these are all there are.
    kinds
        The same for kinds of points, if an annotation was given.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.attribution import explain_groups
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=6.0)
    >>> measures = data.measures()
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    >>> found = explain_groups(model, measures, data.annotations["condition"], group="case")
    >>> enriched = (found.q_values <= 0.1) & (found.scores > 0)
    >>> bool((data.coordinates[enriched, 0] == 4).mean() > 0.8)
    True
    """

    group: str
    reference: str
    n_samples: tuple[int, int]
    explanation: Explanation
    scores: Float64
    log_ratios: Float64
    p_values: Float64
    q_values: Float64
    scale: int
    n_permutations: int
    complete: bool
    kinds: Kinds | None = None

    def __post_init__(self) -> None:
        for name in ("scores", "log_ratios", "p_values", "q_values"):
            getattr(self, name).flags.writeable = False

    @property
    def distance(self) -> float:
        """Between the mean of the group and the mean of the reference."""
        return self.explanation.distance

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each point."""
        frame = self.explanation.table()
        for name in ("scores", "log_ratios", "p_values", "q_values"):
            frame[name] = getattr(self, name)
        return frame

    def plot(self, coordinates: npt.ArrayLike, *, level: float = 0.1, ax: Any | None = None) -> Any:
        """Draw the points, red where the group is denser and blue where the reference is, white if that may be chance.

        Parameters
        ----------
        coordinates
            A map of the points, ``(n_points, 2)``.
        level
            Share of false discoveries allowed among coloured points; 1 colours all.
        ax
            Matplotlib axes to draw into; default new ones.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from heatmover.attribution._picture import draw_points

        places = check_coordinates(coordinates, self.scores.size)
        shown = np.where(self.q_values <= level, self.log_ratios / np.log(2), 0.0)
        return draw_points(places, shown, f"log2 of density in {self.group} over {self.reference}", ax)

    def __str__(self) -> str:
        called = self.q_values <= 0.1
        more, less = int((called & (self.scores > 0)).sum()), int((called & (self.scores < 0)).sum())
        return (
            f"The mean of {self.group} ({self.n_samples[0]} samples) is at distance {self.distance:.4g} from that of "
            f"{self.reference} ({self.n_samples[1]}).\n"
            f"{self.group} is denser around {more:,} and less dense around {less:,} of {called.size:,} points, with a "
            "tenth of false discoveries allowed."
        )

    def __repr__(self) -> str:
        return f"GroupContrast({self.group} against {self.reference}: distance {self.distance:.4g})"


class _Design(NamedTuple):
    """Units that take part: their measures, which are in the group, their blocks, and all arrangements."""

    masses: Any
    members: npt.NDArray[np.bool_]
    blocks: Int64
    complete: bool


def explain_groups(
    model: DiffusionEMD,
    measures: Any,
    groups: Any,
    *,
    group: str | None = None,
    reference: str | None = None,
    within: Any | None = None,
    units: Any | None = None,
    annotation: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> GroupContrast:
    """Explain the difference between two groups of samples by the points of the graph, with false-discovery rates.

    A sample's density around a point, after a short diffusion, is compared with the mean of all samples as a
    log-ratio; the mean log-ratios of the groups are compared by a studentised difference, and that with what
    rearrangements of the samples give. A kind of cell that grows makes all others shrink in proportion: a
    point counts as different only if it is both in proportion and relative to the change that is commonest among cells.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    measures
        ``(n_samples, n_points)``.
    groups
        Label of each sample, ``(n_samples,)``.
    group
        The group to explain; may be left out if there are two.
    reference
        The group to compare with; default all other samples.
    within
        Blocks such as batches or pairs, ``(n_samples,)``: samples are compared within their block.
    units
        Patients with several samples, ``(n_samples,)``, which are averaged. A unit lies in one group and one block.
    annotation
        Kind of each point, such as its cell type, ``(n_points,)``: kinds are tested too.
    n_permutations
        Rearrangements to compare with; all of them if there are no more. The smallest p-value is one over their
        number plus one: a region of one cell in a thousand needs 10,000 to be found at a rate of 0.1.
    random_state
        Seed or generator.

    Returns
    -------
    GroupContrast

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.attribution import explain_groups
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=6.0)
    >>> measures = data.measures()
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    >>> branch = data.coordinates[:, 0].astype(int)
    >>> found = explain_groups(
    ...     model, measures, data.annotations["condition"], group="case", annotation=branch
    ... )
    >>> found.kinds.names[int(found.kinds.scores.argmax())]
    '4'
    """
    check_model(model)
    rows = check_measures(measures, n_points=model.n_features_in_, normalize=model.normalize)
    rng = check_random_state(random_state)
    names, chosen, inside = _chosen(groups, group, reference, rows.shape[0])
    kinds = None if annotation is None else check_annotation(annotation, rows.shape[1])
    design = _design(
        sp.csr_array(rows)[np.flatnonzero(chosen)],
        inside[chosen],
        _those(within, "within", chosen),
        _those(units, "units", chosen),
        n_permutations,
        rng,
    )
    observed = design.members[0]
    counts = (int(observed.sum()), int((~observed).sum()))
    means = np.stack(
        [np.asarray(design.masses[np.flatnonzero(which)].mean(axis=0)).ravel() for which in (observed, ~observed)]
    )
    weights = means.mean(axis=0)
    drawn = rng.choice(weights.size, FRAME, p=weights / weights.sum())
    scale = _smoothing_scale(model, design.masses, drawn[:PROBES])
    densities = _densities(model, design.masses, scale)
    modes = commonest(densities[:, drawn], design.members, design.blocks)
    found = two_frames(densities, modes, design.members, design.blocks)
    return GroupContrast(
        *names,
        counts,
        explain_masses(model, means, names),
        *found,
        false_discovery(found.p_values),
        scale,
        len(design.members) - 1,
        design.complete,
        None if kinds is None else _tested_kinds(design, *kinds, modes),
    )


def _chosen(
    groups: Any, group: str | None, reference: str | None, n_samples: int
) -> tuple[tuple[str, str], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the names of the two groups, which samples take part, and which are in the first."""
    codes, names = check_labels("groups", groups, n_samples)
    if len(names) < 2:
        raise InvalidInputError("at least two groups of samples", f"one ({names[0]!r})")
    for word, name in (("group", group), ("reference", reference)):
        if name is not None:
            find_name(str(name), names, f"{word} to be one of the groups")
    if group is None:
        others = [name for name in names if name != str(reference)]
        if len(others) > 1 and not (reference is None and len(names) == 2):
            raise InvalidInputError("group= to say which group to explain", f"{len(names)} groups")
        group = others[0]
    group = str(group)
    if reference is not None and str(reference) == group:
        raise InvalidInputError("a reference other than the group", repr(group))
    inside = codes == names.index(group)
    if reference is None:
        rest = [name for name in names if name != group]
        return (group, rest[0] if len(rest) == 1 else "all others"), np.ones_like(inside), inside
    reference = str(reference)
    return (group, reference), inside | (codes == names.index(reference)), inside


def _those(labels: Any | None, name: str, chosen: npt.NDArray[np.bool_]) -> Int64 | None:
    return None if labels is None else check_labels(name, labels, chosen.size)[0][chosen]


def _design(
    masses: sp.csr_array,
    inside: npt.NDArray[np.bool_],
    within: Int64 | None,
    units: Int64 | None,
    n_permutations: int,
    rng: np.random.Generator,
) -> _Design:
    """Average the samples of each unit and rearrange the units."""
    orders = arrangements(inside, within=within, units=units, n_permutations=n_permutations, random_state=rng)
    unit_of = np.arange(inside.size) if units is None else np.unique(units, return_inverse=True)[1]
    first = np.unique(unit_of, return_index=True)[1]
    shares = 1 / np.bincount(unit_of)[unit_of]
    average = sp.csr_array((shares, (unit_of, np.arange(inside.size))), shape=(first.size, inside.size))
    members = np.vstack([inside[None], orders.shuffled])[:, first]
    fewest = int(min(members[0].sum(), (~members[0]).sum()))
    if fewest < 2:
        kind = "samples" if units is None else "units"
        raise InvalidInputError(f"at least two {kind} in each group", f"a group with {fewest}")
    blocks = np.zeros(first.size, dtype=np.int64) if within is None else within[first]
    return _Design(sp.csr_array(average @ masses), members, blocks, orders.complete)


def _smoothing_scale(model: DiffusionEMD, masses: sp.csr_array, probes: npt.NDArray[np.intp]) -> int:
    """Return the finest scale at which a sample has enough cells in reach of a point, or the coarsest there is."""
    # Of how many points a sample consists, if all weighed the same.
    sizes = 1 / np.asarray(masses.multiply(masses).sum(axis=1)).ravel()
    share = float(np.median(sizes)) / masses.shape[1]
    heat = np.zeros((masses.shape[1], len(probes)))
    heat[probes, np.arange(len(probes))] = 1
    flow = model._prepared.diffuser.diffuse_progressively(heat)
    for scale, density in zip(range(model.max_scale_ + 1), flow, strict=False):
        reach = density.sum(axis=0) ** 2 / (density**2).sum(axis=0)
        if scale >= 1 and float(np.median(reach)) * share >= CELLS_IN_REACH:
            return scale
    return int(model.max_scale_)


def _densities(model: DiffusionEMD, masses: sp.csr_array, scale: int) -> npt.NDArray[np.floating[Any]]:
    """Return the densities at one scale, ``(n_units, n_points)``."""
    layout = Layout(range(scale, scale + 1), np.ones((1, 1)), masses.shape[1])
    prepared = model._prepared
    return embed(prepared.diffuser, masses, layout, dtype=prepared.precision, n_threads=check_threads(model.n_jobs))


def _tested_kinds(design: _Design, codes: Int64, names: tuple[str, ...], modes: Float64) -> Kinds:
    membership = sp.csr_array((np.ones(codes.size), (np.arange(codes.size), codes)), shape=(codes.size, len(names)))
    found: Tested = two_frames((design.masses @ membership).toarray(), modes, design.members, design.blocks)
    return Kinds(names, np.bincount(codes, minlength=len(names)), *found, false_discovery(found.p_values))
