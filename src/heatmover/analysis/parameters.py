"""`StudyParameters`: what a study is asked for, in one value that Python and the command line fill alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, final

from heatmover._validation import check_integer, check_option, check_seed, check_truth, check_word
from heatmover._words import find_all, listed, quoted
from heatmover.analysis.units import UNITS, Units
from heatmover.analysis.variables import check_readings
from heatmover.cohort.equal import check_equal_cells
from heatmover.errors import InvalidInputError, argument
from heatmover.statistics.designs import formula_names

__all__ = ["StudyParameters"]

# Intervals rest on a variance over replicates, whose relative error is sqrt(2 / replicates): 45 % with 10.
FEWEST_REPLICATES = 10


@final
@dataclass(frozen=True, kw_only=True)
class StudyParameters:
    """What decides the numbers of a study, checked when it is made and recorded in run.json.

    Attributes
    ----------
    variables
        Names of the variables of the samples to examine, the most important first; None for all that can be tested.
    block
        Name of the variable that ties samples together, such as the patient or the batch, or names of several, such as
        the patient and the batch; see `heatmover.examine`.
    adjust
        Names of variables to hold fixed while others are tested, such as the batch or the age.
    formula
        In place of ``variables`` and ``adjust``: names of variables with ``+``, ``:`` and ``*`` between them. Each is
        tested with the others held fixed, and so is every interaction; see `heatmover.statistics.Design.from_formula`.
    align_batch, anchors
        Name of the variable of batches whose cells are to be moved onto each other before anything is compared, see
        `heatmover.analysis.align_batches`; tests are adjusted for it. What ``variables`` name is kept; or, with
        anchors, a variable that names the material of samples that are the same in every batch, shifts come from these
        samples alone.
    cells
        Name of an annotation of the cells, such as their types: which of them differ between the groups of the
        first variable that has groups, see `heatmover.analysis.contrast_cells`. ``"auto"``: clusters of cells instead.
    clusters
        How many clusters stand for the types of cells that nobody annotated, see `heatmover.analysis.cluster_cells`;
        None for none, or for ten if ``cells`` is ``"auto"``.
    reference
        The group with which cell types are compared. Default: the one that is called so (control, healthy, untreated
        ...), else the first of an ordered category; see `heatmover.analysis.contrast_cells`.
    numeric, categorical
        Names of variables to read as numbers however few different values they have, or as groups however many.
    min_cells
        Leave out samples with fewer cells. None: refuse a cohort in which a sample has a single cell.
    allow_components
        Go on even if more than 5 % of the cells are outside the largest component of the graph.
    n_neighbors
        Neighbours of each cell, or landmark, in the graph.
    landmarks
        How many centres stand for the cells; ``"auto"``: 4,000 for more than 100,000 cells; None for never.
    equal_cells
        Draw equally many cells from every sample, so that all have equal noise: True for as many as the smallest sample
        that is kept has, or a number.
    bias, n_bootstrap
        As in `heatmover.compare`; but a study asks what is true of the samples, not of the cells at hand, and removes
        the noise of few cells unless told otherwise (``"raw"``). Replicates, at least 10, give intervals.
    units
        ``"euclidean"`` or ``"geodesic"``: distances in the unit of the features, see `heatmover.compare`.
    n_permutations
        Permutations of every test.
    random_state
        Seed of everything that is drawn.

    Examples
    --------
    >>> StudyParameters(variables=["response"], n_neighbors=15).n_neighbors
    15
    >>> StudyParameters.named(None, {"n_neigbors": 15})
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected a parameter of a study, found 'n_neigbors' (did you mean ...?).
    """

    variables: Sequence[str] | None = None
    block: str | Sequence[str] | None = None
    adjust: Sequence[str] = ()
    formula: str | None = None
    align_batch: str | None = None
    anchors: str | None = None
    cells: str | None = None
    clusters: int | None = None
    reference: str | None = None
    numeric: Sequence[str] = ()
    categorical: Sequence[str] = ()
    min_cells: int | None = None
    allow_components: bool = False
    n_neighbors: int = 30
    landmarks: int | Literal["auto"] | None = "auto"
    equal_cells: bool | int = False
    bias: Literal["raw", "corrected"] = "corrected"
    n_bootstrap: int = 0
    units: Units = None
    n_permutations: int = 999
    random_state: int = 0

    def __post_init__(self) -> None:
        if self.variables is not None:
            object.__setattr__(self, "variables", _check_names("variables", self.variables))
        object.__setattr__(self, "block", _check_block(self.block))
        for name in ("adjust", "numeric", "categorical"):
            object.__setattr__(self, name, _check_names(name, getattr(self, name)))
        check_readings(self.numeric, self.categorical)
        both = [name for name in self.variables or () if name in self.adjust]
        if both and len(both) == len(self.variables or ()):
            raise InvalidInputError(
                f"a variable to test in {argument('variables')} beside those to hold fixed",
                f"{listed(both)} in {argument('adjust')} too",
                f"leave {'it' if len(both) == 1 else 'them'} out of one of the two",
            )
        for name in ("cells", "align_batch", "anchors"):
            if getattr(self, name) is not None:
                check_word(name, getattr(self, name))
        self._check_clusters()
        self._check_reference()
        self._check_formula()
        self._check_alignment()
        for name in ("n_neighbors", "n_permutations"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), minimum=1))
        if self.min_cells is not None:
            object.__setattr__(self, "min_cells", check_integer("min_cells", self.min_cells, minimum=1))
        object.__setattr__(self, "random_state", check_seed(self.random_state))
        object.__setattr__(self, "equal_cells", check_equal_cells(self.equal_cells))
        check_option("bias", self.bias, ("raw", "corrected"))
        object.__setattr__(self, "n_bootstrap", check_integer("n_bootstrap", self.n_bootstrap, minimum=0))
        if 0 < self.n_bootstrap < FEWEST_REPLICATES:
            raise InvalidInputError(
                f"{argument('n_bootstrap')} to be 0, or at least {FEWEST_REPLICATES} for intervals",
                repr(self.n_bootstrap),
                f"{argument('n_bootstrap', 200)} is usual",
            )
        if self.units is not None:
            check_option("units", self.units, UNITS)
        check_truth("allow_components", self.allow_components)
        object.__setattr__(self, "landmarks", _check_landmarks(self.landmarks))

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the variables that tie samples together."""
        return () if self.block is None else (self.block,) if isinstance(self.block, str) else tuple(self.block)

    @property
    def design(self) -> tuple[str, ...]:
        """Names of the variables that are held fixed or are part of the formula."""
        if self.formula is not None:
            return tuple(formula_names(self.formula))
        return tuple(dict.fromkeys([*self.adjust, *([] if self.align_batch is None else [self.align_batch])]))

    @property
    def kept_variables(self) -> tuple[str, ...]:
        """Names of the variables whose differences an alignment of batches must leave alone."""
        named = self.variables or () if self.formula is None else formula_names(self.formula)
        return tuple(name for name in named if name != self.align_batch)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of all variables of the samples that are asked for."""
        named = (*(self.variables or ()), *self.blocks, *self.design, *self.numeric, *self.categorical)
        further = (name for name in (self.align_batch, self.anchors) if name is not None)
        return tuple(dict.fromkeys((*named, *further)))

    def _check_alignment(self) -> None:
        if self.anchors is not None and self.align_batch is None:
            raise InvalidInputError(
                f"{argument('align_batch')} beside {argument('anchors')}", "none", "name the variable of batches"
            )
        if self.align_batch is not None and self.anchors is None and not self.kept_variables:
            raise InvalidInputError(
                f"{argument('variables')} that {argument('align_batch')} must leave alone, such as the condition",
                "none",
                f"or name {argument('anchors')}",
            )

    def _check_reference(self) -> None:
        if self.reference is None:
            return
        check_word("reference", self.reference)
        if self.cells is None and self.clusters is None:
            raise InvalidInputError(
                f"{argument('cells')} with {argument('reference')}, which is what their groups are compared with",
                f"{argument('reference')} alone",
                f"name an annotation of the cells by {argument('cells')}",
            )

    def _check_formula(self) -> None:
        if self.formula is None:
            return
        formula_names(self.formula)
        for name in ("variables", "adjust"):
            if getattr(self, name):
                raise InvalidInputError(
                    f"{argument('formula')} alone, which names the variables to test and to hold fixed",
                    f"{argument(name)} beside it",
                    f"leave {argument(name)} out, or the formula",
                )

    def _check_clusters(self) -> None:
        if self.clusters is None:
            return
        object.__setattr__(self, "clusters", check_integer("clusters", self.clusters, minimum=2))
        if self.cells not in (None, "auto"):
            raise InvalidInputError(
                f"{argument('cells')} or {argument('clusters')}", f"both, {quoted(self.cells)} and {self.clusters}"
            )

    @classmethod
    def named(cls, parameters: StudyParameters | None, changes: Mapping[str, Any]) -> StudyParameters:
        """Return parameters with changes by name, or raise if there is no parameter of that name."""
        known = [field.name for field in fields(cls)]
        find_all(changes, known, "a parameter of a study", most=30)
        if parameters is None:
            return cls(**changes)
        if not isinstance(parameters, cls):
            raise InvalidInputError(
                "parameters to be StudyParameters", type(parameters).__name__, "or give them by their names"
            )
        return replace(parameters, **changes)

    def record(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _check_names(name: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        advice = f"write [{names!r}]" if isinstance(names, str) else ""
        raise InvalidInputError(f"{argument(name)} to be a list of names", repr(names), advice)
    for each in names:
        check_word(name, each)
    return tuple(dict.fromkeys(names))


def _check_block(block: object) -> str | tuple[str, ...] | None:
    """Return one name as it is, several as a tuple, none as None."""
    if block is None or isinstance(block, str):
        return block
    if not isinstance(block, Sequence):
        raise InvalidInputError(f"{argument('block')} to be a name or a list of names", repr(block))
    names = _check_names("block", block)
    return names if len(names) > 1 else names[0] if names else None


def _check_landmarks(landmarks: object) -> Any:
    if landmarks is None or (isinstance(landmarks, str) and landmarks == "auto"):
        return landmarks
    if isinstance(landmarks, str):
        raise InvalidInputError(f"{argument('landmarks')} to be a whole number, 'auto' or none", repr(landmarks))
    return check_integer("landmarks", landmarks, minimum=1)
