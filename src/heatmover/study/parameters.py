"""`StudyParameters`: what a study is asked for, in one value that Python and the command line fill alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, final

from heatmover._base.validation import check_integer, check_option, check_seed, check_truth, check_word
from heatmover._base.words import find_all, listed, quoted
from heatmover.cohort.draw import check_equal_cells
from heatmover.errors import InvalidInputError, argument
from heatmover.statistics.designs import formula_names
from heatmover.study.variables import check_readings

__all__ = [
    "BIASES",
    "COMPARED",
    "METHOD",
    "RUN",
    "TESTS",
    "UNITS",
    "Parameter",
    "StudyParameters",
    "Units",
    "check_described",
    "check_one_of",
    "check_whole",
    "described",
    "descriptions",
]

# Headings under which the command line lists parameters.
TESTS, METHOD, RUN = "Variables of samples", "Method", "Output and run"
# What `heatmover.compare` takes of them.
COMPARED = ("n_neighbors", "landmarks", "equal_cells", "bias", "n_bootstrap", "units", "random_state")
BIASES, UNITS = ("raw", "corrected"), ("euclidean", "geodesic")
Units = Literal["euclidean", "geodesic"] | None
# Intervals rest on a variance over replicates, whose relative error is sqrt(2 / replicates): 45 % with 10.
FEWEST_REPLICATES = 10

Check = Callable[[str, Any], Any]


@final
@dataclass(frozen=True, kw_only=True)
class Parameter:
    """The one description of a parameter; the field of a dataclass that it describes has its name and its type.

    Attributes
    ----------
    default
        What holds if nobody says anything.
    option
        What the command line calls it, with a short form after a blank.
    metavar
        What stands for its value in the help of the command line; None for a flag.
    heading
        Under which the help lists it.
    help
        In a sentence, in which `heatmover.errors.argument` names other parameters.
    shown
        What the default means, in words; empty where the default says it itself.
    words
        What may be typed instead of a number, and what that means.
    check
        Returns the value of a name as it is kept, or raises; None if any value will do.
    required
        Whether a command refuses to run without it.

    Examples
    --------
    >>> descriptions(StudyParameters)["n_neighbors"].option
    '--neighbors'
    """

    default: Any
    option: str
    metavar: str | None
    heading: str | None
    help: str
    shown: str = ""
    words: Mapping[str, Any] = field(default_factory=dict)
    check: Check | None = None
    required: bool = False


def described(default: Any, option: str, metavar: str | None, heading: str | None, **further: Any) -> Any:
    """Return a field of a dataclass with its description, see `Parameter`."""
    told = Parameter(default=default, option=option, metavar=metavar, heading=heading, **further)
    return field(default=default, metadata={"parameter": told})


def descriptions(parameters: type) -> dict[str, Parameter]:
    """Return the descriptions of the fields of a dataclass by their names."""
    return {each.name: each.metadata["parameter"] for each in fields(parameters) if "parameter" in each.metadata}


def check_described(value: Any) -> None:
    """Check every field of a dataclass by its description, and keep what the check returns; None may be a default."""
    for name, told in descriptions(type(value)).items():
        given = getattr(value, name)
        if told.check is not None and not (given is None and told.default is None):
            object.__setattr__(value, name, told.check(name, given))


def check_whole(minimum: int) -> Check:
    """Return the check of a whole number that is not below a minimum."""
    return lambda name, value: check_integer(name, value, minimum=minimum)


def check_one_of(*words: str) -> Check:
    """Return the check of one of some words."""

    def check(name: str, value: Any) -> Any:
        check_option(name, value, words)
        return value

    return check


def _names(name: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        advice = f"write [{names!r}]" if isinstance(names, str) else ""
        raise InvalidInputError(f"{argument(name)} to be a list of names", repr(names), advice)
    for each in names:
        check_word(name, each)
    return tuple(dict.fromkeys(names))


def _block(name: str, block: object) -> str | tuple[str, ...] | None:
    """Return one name as it is, several as a tuple, none as None."""
    if isinstance(block, str):
        return block
    if not isinstance(block, Sequence):
        raise InvalidInputError(f"{argument(name)} to be a name or a list of names", repr(block))
    names = _names(name, block)
    return names if len(names) > 1 else names[0] if names else None


def _landmarks(name: str, landmarks: object) -> Any:
    if landmarks is None or (isinstance(landmarks, str) and landmarks == "auto"):
        return landmarks
    if isinstance(landmarks, str):
        raise InvalidInputError(f"{argument(name)} to be a whole number, 'auto' or none", repr(landmarks))
    return check_integer(name, landmarks, minimum=1)


def _replicates(name: str, count: object) -> int:
    replicates = check_integer(name, count, minimum=0)
    if 0 < replicates < FEWEST_REPLICATES:
        raise InvalidInputError(
            f"{argument(name)} to be 0, or at least {FEWEST_REPLICATES} for intervals",
            repr(count),
            f"{argument(name, 200)} is usual",
        )
    return replicates


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
        `heatmover.study.align_batches`; tests are adjusted for it. What ``variables`` name is kept; or, with
        anchors, a variable that names the material of samples that are the same in every batch, shifts come from these
        samples alone.
    cells
        Name of an annotation of the cells, such as their types: which of them differ between the groups of the
        first variable that has groups, see `heatmover.study.contrast_cells`. ``"auto"``: clusters of cells instead.
    clusters
        How many clusters stand for the types of cells that nobody annotated, see `heatmover.study.cluster_cells`;
        None for none, or for ten if ``cells`` is ``"auto"``.
    reference
        The group with which cell types are compared. Default: the one that is called so (control, healthy, untreated
        ...), else the first of an ordered category; see `heatmover.study.contrast_cells`.
    numeric, categorical
        Names of variables to read as numbers however few different values they have, or as groups however many.
    min_cells
        Leave out samples with fewer cells. None: refuse a cohort in which a sample has a single cell.
    allow_components
        Go on even if more than 5 % of the cells are outside the largest component of the graph.
    n_neighbors
        Neighbors of each cell, or landmark, in the graph.
    landmarks
        How many centers stand for the cells; ``"auto"``: 4,000 for more than 100,000 cells; None for never.
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

    # fmt: off
    variables: Sequence[str] | None = described(
        None, "--color -c", "COLUMN", TESTS, shown="all that can be tested", check=_names,
        help="Variable of samples to test and to colour by; may be given again, the most important first.")
    block: str | Sequence[str] | None = described(
        None, "--block", "COLUMN", TESTS, check=_block,
        help="Variable that ties samples together, such as the patient or the batch; may be given again.")
    adjust: Sequence[str] = described(
        (), "--adjust", "COLUMN", TESTS, check=_names,
        help="Variable to hold fixed while others are tested, such as the batch or the age; may be given again.")
    formula: str | None = described(
        None, "--formula", "TEXT", TESTS, check=lambda _, value: formula_names(value) and value,
        help=f"In place of {argument('variables')} and {argument('adjust')}: columns with +, : or * between them, each "
        "tested beside the others.")
    align_batch: str | None = described(
        None, "--align-batch", "COLUMN", METHOD, check=check_word,
        help="Variable of batches whose cells are moved onto each other first; differences of "
        f"{argument('variables')} are kept.")
    anchors: str | None = described(
        None, "--anchors", "COLUMN", METHOD, check=check_word,
        help="Variable that names the material of samples that are the same in every batch, empty for others: "
        f"{argument('align_batch')} learns from these alone.")
    cells: str | None = described(
        None, "--cells", "COLUMN|auto", TESTS, check=check_word,
        help="Annotation of cells, such as the cell type, or auto for clusters: which differ between the groups of the "
        f"first {argument('variables')}?")
    clusters: int | None = described(
        None, "--clusters", "N", TESTS, shown=f"10 with {argument('cells', 'auto')}", check=check_whole(2),
        help="Put the cells into N clusters, which stand for cell types where the file has none.")
    reference: str | None = described(
        None, "--reference", "GROUP", TESTS, shown="control, healthy ..., or the first of an order", check=check_word,
        help=f"Group with which {argument('cells')} compares the others.")
    numeric: Sequence[str] = described(
        (), "--numeric", "COLUMN", TESTS, shown="six or more different numbers", check=_names,
        help="Variable of samples that is a number, however few values it has; may be given again.")
    categorical: Sequence[str] = described(
        (), "--categorical", "COLUMN", TESTS, shown="text, fewer than six different numbers", check=_names,
        help="Variable of samples whose values are groups, however many numbers they are; may be given again.")
    min_cells: int | None = described(
        None, "--min-cells", "N", METHOD, shown="refuse samples of one cell", check=check_whole(1),
        help="Leave out samples with fewer cells.")
    allow_components: bool = described(
        False, "--allow-components", None, METHOD, check=check_truth,
        help="Go on if more than 5 % of the cells are outside the largest component of the graph.")
    n_neighbors: int = described(
        30, "--neighbors", "N", METHOD, check=check_whole(1), help="Neighbours of a cell in the graph.")
    landmarks: int | Literal["auto"] | None = described(
        "auto", "--landmarks", "N|auto|none", METHOD, words={"auto": "auto", "none": None}, check=_landmarks,
        help="Let N centres stand for the cells; auto: 4,000 above 100,000 cells.")
    equal_cells: bool | int = described(
        False, "--equal-cells", "[N]", METHOD, shown="all cells", words={"smallest": True},
        check=lambda _, value: check_equal_cells(value),
        help="Draw equally many cells from every sample: N, or without a number as many as the smallest has.")
    bias: Literal["raw", "corrected"] = described(
        "corrected", "--bias", "raw|corrected", METHOD, check=check_one_of(*BIASES),
        help="corrected: without the noise of few cells, by which small samples look far from all others; raw: with.")
    n_bootstrap: int = described(
        0, "--bootstrap", "N", METHOD, check=_replicates,
        help="Replicates for an interval of every distance; at least 10.")
    units: Units = described(
        None, "--units", "euclidean|geodesic", METHOD, shown="arbitrary", check=check_one_of(*UNITS),
        help="Distances in the unit of the features, by up to 64 exact pairs: straight lines or paths on the graph.")
    n_permutations: int = described(
        999, "--permutations", "N", TESTS, check=check_whole(1), help="Permutations of every test.")
    random_state: int = described(
        0, "--seed", "N", RUN, check=lambda _, value: check_seed(value), help="The same seed gives the same numbers.")
    # fmt: on

    def __post_init__(self) -> None:
        check_described(self)
        check_readings(self.numeric, self.categorical)
        both = [name for name in self.variables or () if name in self.adjust]
        if both and len(both) == len(self.variables or ()):
            raise InvalidInputError(
                f"a variable to test in {argument('variables')} beside those to hold fixed",
                f"{listed(both)} in {argument('adjust')} too",
                f"leave {'it' if len(both) == 1 else 'them'} out of one of the two",
            )
        if self.clusters is not None and self.cells not in (None, "auto"):
            raise InvalidInputError(
                f"{argument('cells')} or {argument('clusters')}", f"both, {quoted(self.cells)} and {self.clusters}"
            )
        if self.reference is not None and self.cells is None and self.clusters is None:
            raise InvalidInputError(
                f"{argument('cells')} with {argument('reference')}, which is what their groups are compared with",
                f"{argument('reference')} alone",
                f"name an annotation of the cells by {argument('cells')}",
            )
        for name in ("variables", "adjust"):
            if self.formula is not None and getattr(self, name):
                raise InvalidInputError(
                    f"{argument('formula')} alone, which names the variables to test and to hold fixed",
                    f"{argument(name)} beside it",
                    f"leave {argument(name)} out, or the formula",
                )
        self._check_alignment()

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the variables that tie samples together."""
        return () if self.block is None else (self.block,) if isinstance(self.block, str) else tuple(self.block)

    @property
    def tests(self) -> dict[str, Any]:
        """Permutations of every test and their seed, as all tests take them."""
        return {"n_permutations": self.n_permutations, "random_state": self.random_state}

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

    @classmethod
    def named(cls, parameters: StudyParameters | None, changes: Mapping[str, Any]) -> StudyParameters:
        """Return parameters with changes by name, or raise if there is no parameter of that name."""
        known = list(descriptions(cls))
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
        values = {name: getattr(self, name) for name in descriptions(type(self))}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
