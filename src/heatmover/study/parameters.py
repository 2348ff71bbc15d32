"""Describe and check parameters of studies and commands; for users, `study`, `cli`, `atlas`; touch no files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, final

from heatmover._base.validation import check_integer, check_option, check_seed, check_truth, check_word
from heatmover._base.words import find_all, listed
from heatmover.cohort.subsample import check_equal_cells
from heatmover.errors import InvalidInputError, argument, in_python, the_argument
from heatmover.statistics.designs import formula_names

# Headings under which the command line lists parameters.
TESTS, METHOD, RUN = "Sample metadata", "Method", "Output and run"
# Names of the parameters that `heatmover.compare` also accepts.
COMPARED = ("n_neighbors", "landmarks", "equal_cells", "bias", "n_bootstrap", "units", "random_state")
BIASES, UNITS = ("raw", "corrected"), ("euclidean", "geodesic")
Units = Literal["euclidean", "geodesic"] | None
# Confidence intervals use a variance over bootstrap replicates. The relative error of this variance is
# sqrt(2 / replicates): 45% with 10 replicates.
FEWEST_REPLICATES = 10

Check = Callable[[str, Any], Any]


@final
@dataclass(frozen=True, kw_only=True)
class Parameter:
    """Description of a parameter; the described dataclass field gives the name and the type.

    Attributes
    ----------
    default
        Default value.
    option
        Option on the command line, followed by its short form, if any, after a space.
    metavar
        Placeholder of the value in the help of the command line; None for a flag.
    heading
        Heading under which the help lists the option.
    help
        Help text, in which `heatmover.errors.argument` names other parameters.
    shown
        Meaning of the default in words; empty if the default explains itself.
    words
        Words that are accepted instead of a number, with the value of each word.
    check
        Function that takes the name and a value, and returns the checked value or raises. None: any value is valid.
    required
        Whether the option must be given on the command line.

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
    """Return a dataclass field with its description; see `Parameter`."""
    parameter = Parameter(default=default, option=option, metavar=metavar, heading=heading, **further)
    return field(default=default, metadata={"parameter": parameter})


def descriptions(parameters: type) -> dict[str, Parameter]:
    """Return the descriptions of the fields of a dataclass, by field name."""
    return {each.name: each.metadata["parameter"] for each in fields(parameters) if "parameter" in each.metadata}


def check_described(value: Any) -> None:
    """Check every field of a dataclass and store the checked value; skip None where None is the default."""
    for name, parameter in descriptions(type(value)).items():
        given = getattr(value, name)
        if parameter.check is not None and not (given is None and parameter.default is None):
            object.__setattr__(value, name, parameter.check(name, given))


def check_whole(minimum: int) -> Check:
    """Return a check for whole numbers of at least ``minimum``."""
    return lambda name, value: check_integer(name, value, minimum=minimum)


def check_one_of(*words: str) -> Check:
    """Return a check that accepts only these words."""

    def check(name: str, value: Any) -> Any:
        check_option(name, value, words)
        return value

    return check


def check_readings(numeric: Collection[str], categorical: Collection[str]) -> None:
    """Raise if a variable is listed both as numeric and as categorical."""
    both = [name for name in numeric if name in set(categorical)]
    if both:
        raise InvalidInputError(
            f"every variable in only one of {in_python('the arguments ')}{argument('numeric')} and "
            f"{argument('categorical')}",
            f"{listed(both)} in both",
        )


def _names(name: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        advice = f"write [{names!r}]" if isinstance(names, str) else ""
        raise InvalidInputError(f"{the_argument(name)} to be a list of names", repr(names), advice)
    for each in names:
        check_word(name, each)
    return tuple(dict.fromkeys(names))


def _block(name: str, block: object) -> str | tuple[str, ...] | None:
    """Return one name unchanged, several names as a tuple, and None for no name."""
    if isinstance(block, str):
        return block
    if not isinstance(block, Sequence):
        raise InvalidInputError(f"{the_argument(name)} to be a name or a list of names", repr(block))
    names = _names(name, block)
    return names if len(names) > 1 else names[0] if names else None


def check_landmarks(name: str, landmarks: object) -> Any:
    """Return the checked ``landmarks``: a number, "auto" or None; raise for any other value."""
    if landmarks is None or (isinstance(landmarks, str) and landmarks == "auto"):
        return landmarks
    if isinstance(landmarks, str):
        raise InvalidInputError(f"{the_argument(name)} to be a whole number, 'auto' or none", repr(landmarks))
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
    """Parameters that determine the results of a study; they are checked on creation and recorded in run.json.

    Attributes
    ----------
    variables
        Names of the variables (columns of sample metadata) to test, most important first; None for all testable
        variables.
    block
        Name of one or several columns that identify dependent samples, such as the patient or the batch; see
        `heatmover.examine`.
    adjust
        Names of covariates to adjust for, such as the batch or the age.
    formula
        Formula that replaces ``variables`` and ``adjust``: names of variables joined by ``+``, ``:`` and ``*``. Every
        variable and interaction is tested with all other terms held fixed; see
        `heatmover.statistics.Design.from_formula`.
    align_batch
        Name of the batch variable, to remove batch shifts from the cells before samples are compared; see
        `heatmover.study.align_batches`. Differences associated with ``variables`` are not removed, and tests are
        adjusted for the batch.
    anchors
        Name of a variable that identifies technical replicates: samples of the same material, measured in every batch.
        Batch shifts are then estimated from these samples alone.
    cells
        Name of an annotation of the cells, such as the cell type. The study finds the cell types that differ between
        the groups of the first categorical variable: every group is compared with the reference, and ordered groups are
        tested for a trend. Without a categorical variable, the study finds the cell types that follow the first number.
        ``"auto"``: use clusters of cells as types.
    clusters
        Number of clusters to use as cell types; see `heatmover.study.cluster_cells`. None: no clusters, or ten if
        ``cells`` is ``"auto"``.
    genes
        Matrix of genes to test within cell types: the name of a layer, ``"raw"`` or ``"X"``. Counts (whole numbers) are
        log-normalized; other values are used as they are. ``"none"``: test the features of the distances instead.
        ``"auto"``: the layer "counts", else raw, else X, unless the distances use X itself.
    cell_map
        Map of cells in the report. A key of obsm with two columns: use this embedding. ``"pca"`` or ``"umap"``: compute
        a map of the drawn cells; UMAP needs the extra ``umap``. ``"none"``: draw no map. ``"auto"``: use the UMAP of
        the file, else its t-SNE, else any other embedding with two columns, else no map.
    group
        Group whose cell types are compared with the reference, or with all other samples. Default: every group.
    reference
        Reference group of the comparison of cell types. Default: the group with a name such as control, healthy or
        untreated, else the first group of an ordered category; see `heatmover.study.contrast_cells`.
    trend
        Names of numbers or ordered categories, such as a dose: find the cell types that follow them.
    numeric, categorical
        Names of variables to read as numbers even if they have few distinct values, or as groups even if they have
        many.
    min_cells
        Smallest number of cells per sample; samples with fewer cells are left out. None: raise an error if a sample has
        a single cell.
    allow_components
        Whether to continue even if more than 5% of the cells are outside the largest component of the graph.
    n_neighbors
        Number of neighbors of each cell, or landmark, in the graph.
    landmarks
        Number of landmarks that approximate the cells; None for no landmarks. ``"auto"``: 4,000 for more than 100,000
        cells.
    equal_cells
        Number of cells to draw from every sample, so that sampling noise is equal in all samples; True for the size of
        the smallest sample in the study.
    bias, n_bootstrap
        As in `heatmover.compare`, but small-sample bias is removed by default. Confidence intervals need at least 10
        replicates.
    units
        ``"euclidean"`` or ``"geodesic"``: distances in the unit of the features; see `heatmover.compare`.
    n_permutations
        Number of permutations of every test.
    random_state
        Seed of all random draws.

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
        help="Sample metadata to test and color by; repeatable, most important first.")
    block: str | Sequence[str] | None = described(
        None, "--block", "COLUMN", TESTS, check=_block,
        help="Column that groups dependent samples, such as patient or batch; repeatable.")
    adjust: Sequence[str] = described(
        (), "--adjust", "COLUMN", TESTS, check=_names,
        help="Covariate to adjust for, such as batch or age; repeatable.")
    formula: str | None = described(
        None, "--formula", "TEXT", TESTS, check=lambda _, value: formula_names(value) and value,
        help=f"Instead of {argument('variables')} and {argument('adjust')}: columns joined by +, : or *. Each term is "
        "tested with the other terms held fixed.")
    align_batch: str | None = described(
        None, "--align-batch", "COLUMN", METHOD, check=check_word,
        help="Batch column: subtract batch shifts from the cells before the comparison; differences "
        f"associated with {argument('variables')} are kept.")
    anchors: str | None = described(
        None, "--anchors", "COLUMN", METHOD, check=check_word,
        help="Column identifying technical replicates shared across batches; "
        f"{argument('align_batch')} uses only these samples.")
    cells: str | None = described(
        None, "--cells", "COLUMN|auto", TESTS, check=check_word,
        help="Cell-type column, or auto for clusters: find the types that differ between the groups of the first "
        "categorical variable.")
    clusters: int | None = described(
        None, "--clusters", "N", TESTS, shown=f"10 with {argument('cells', 'auto')}", check=check_whole(2),
        help="Cluster the cells into N clusters and use them as cell types.")
    genes: str = described(
        "auto", "--genes", "LAYER|X|raw|none|auto", TESTS, check=check_word,
        help="Genes to test within cell types, log-normalized if they are counts; auto: the layer counts, else raw, "
        "else X.")
    cell_map: str = described(
        "auto", "--cell-map", "KEY|pca|umap|none", TESTS, check=check_word,
        help="Embedding on which the report shows where groups differ; auto: the UMAP or t-SNE of the file, if any.")
    group: str | None = described(
        None, "--group", "GROUP", TESTS, check=check_word, shown="every group",
        help=f"With {argument('cells')}: compare only this group, with {argument('reference')} or with all others.")
    reference: str | None = described(
        None, "--reference --versus", "GROUP", TESTS, check=check_word,
        shown="control, healthy ..., or the first of an ordered category",
        help=f"Reference group for the comparison of cell types with {argument('cells')}.")
    trend: Sequence[str] = described(
        (), "--trend", "COLUMN", TESTS, check=_names,
        help=f"With {argument('cells')}: find the cell types that follow this number or ordered category; repeatable.")
    numeric: Sequence[str] = described(
        (), "--numeric", "COLUMN", TESTS, shown="six or more distinct numbers", check=_names,
        help="Read this column as a number, even if it has few distinct values; repeatable.")
    categorical: Sequence[str] = described(
        (), "--categorical", "COLUMN", TESTS, shown="text, fewer than six distinct numbers", check=_names,
        help="Read this column as groups, even if it has many distinct numbers; repeatable.")
    min_cells: int | None = described(
        None, "--min-cells", "N", METHOD, shown="an error if a sample has one cell", check=check_whole(1),
        help="Leave out samples with fewer cells.")
    allow_components: bool = described(
        False, "--allow-components", None, METHOD, check=check_truth,
        help="Continue even if more than 5% of the cells are outside the largest component of the graph.")
    n_neighbors: int = described(
        30, "--neighbors", "N", METHOD, check=check_whole(1), help="Number of neighbors of each cell in the graph.")
    landmarks: int | Literal["auto"] | None = described(
        "auto", "--landmarks", "N|auto|none", METHOD, words={"auto": "auto", "none": None}, check=check_landmarks,
        help="Approximate the cells by N landmarks; auto: 4,000 above 100,000 cells.")
    equal_cells: bool | int = described(
        False, "--equal-cells", "[N]", METHOD, shown="all cells", words={"smallest": True},
        check=lambda _, value: check_equal_cells(value),
        help="Draw N cells from every sample; without N, as many as the smallest sample has.")
    bias: Literal["raw", "corrected"] = described(
        "corrected", "--bias", "raw|corrected", METHOD, check=check_one_of(*BIASES),
        help="corrected: remove small-sample bias; raw: keep it.")
    n_bootstrap: int = described(
        0, "--bootstrap", "N", METHOD, check=_replicates,
        help="Bootstrap replicates for a confidence interval of every distance; at least 10.")
    units: Units = described(
        None, "--units", "euclidean|geodesic", METHOD, shown="arbitrary", check=check_one_of(*UNITS),
        help="Convert distances to the unit of the features, by the exact distances of up to 64 pairs of samples; mass "
        "moves along straight lines or graph paths.")
    n_permutations: int = described(
        999, "--permutations", "N", TESTS, check=check_whole(1), help="Permutations per test.")
    random_state: int = described(
        0, "--seed", "N", RUN, check=lambda _, value: check_seed(value),
        help="Random seed; the same seed gives the same results.")
    # fmt: on

    def __post_init__(self) -> None:
        check_described(self)
        check_readings(self.numeric, self.categorical)
        both = [name for name in self.variables or () if name in self.adjust]
        if both and len(both) == len(self.variables or ()):
            raise InvalidInputError(
                "a variable to test that is not also a covariate",
                f"{listed(both)} in {in_python('the arguments ')}{argument('variables')} and {argument('adjust')}",
                f"leave {'it' if len(both) == 1 else 'them'} out of one of the two",
            )
        tied = [name for name in self.blocks if name in self.adjust]
        if tied:
            raise InvalidInputError(
                f"different columns in {in_python('the arguments ')}{argument('block')} and {argument('adjust')}",
                f"{listed(tied)} in both",
                f"leave {'it' if len(tied) == 1 else 'them'} out of one of the two",
            )
        if self.clusters is not None and self.cells not in (None, "auto"):
            raise InvalidInputError(
                f"only one of {in_python('the arguments ')}{argument('cells')} and {argument('clusters')}",
                f"{argument('cells', self.cells)} and {argument('clusters', self.clusters)}",
            )
        for name in ("reference", "group", "trend"):
            value = getattr(self, name)
            if value and self.cells is None and self.clusters is None:
                given = argument(name, value if isinstance(value, str) else value[0])
                raise InvalidInputError(
                    f"{the_argument('cells')} together with {given}, which concerns the comparison of cell types",
                    f"{given} alone",
                    f"set {the_argument('cells')} to the column with the type of each cell",
                )
        if self.group is not None and self.group == self.reference:
            raise InvalidInputError(
                f"{the_argument('reference')} to be another group than {argument('group')}", f"{self.group!r} for both"
            )
        if self.genes not in ("auto", "none") and self.cells is None and self.clusters is None:
            raise InvalidInputError(
                f"{the_argument('cells')} together with {argument('genes', self.genes)}, because genes are compared "
                "within cell types",
                f"{argument('genes', self.genes)} alone",
                f"set {the_argument('cells')} to the column with the type of each cell",
            )
        for name in ("variables", "adjust"):
            if self.formula is not None and getattr(self, name):
                raise InvalidInputError(
                    f"{the_argument('formula')} alone, because a formula names all variables to test and to hold fixed",
                    f"{the_argument(name)} as well",
                    f"leave out either {the_argument(name)} or the formula",
                )
        if self.anchors is not None and self.align_batch is None:
            raise InvalidInputError(
                f"{argument('align_batch')} together with {the_argument('anchors')}", "none", "name the batch column"
            )
        if self.align_batch is not None and self.anchors is None and not self.kept_variables:
            raise InvalidInputError(
                f"{the_argument('variables')} to name variables whose differences {argument('align_batch')} keeps, "
                "such as the condition",
                "none",
                f"give {the_argument('variables')} or {argument('anchors')}",
            )

    @property
    def blocks(self) -> tuple[str, ...]:
        """Return the names of the block variables."""
        return () if self.block is None else (self.block,) if isinstance(self.block, str) else tuple(self.block)

    @property
    def tests(self) -> dict[str, Any]:
        """Return the number of permutations and the seed, as keyword arguments of all tests."""
        return {"n_permutations": self.n_permutations, "random_state": self.random_state}

    @property
    def design(self) -> tuple[str, ...]:
        """Return the names of the covariates, or of all variables of the formula."""
        if self.formula is not None:
            return tuple(formula_names(self.formula))
        return tuple(dict.fromkeys([*self.adjust, *([] if self.align_batch is None else [self.align_batch])]))

    @property
    def kept_variables(self) -> tuple[str, ...]:
        """Return the names of the variables whose effects are not removed when batches are aligned."""
        named = self.variables or () if self.formula is None else formula_names(self.formula)
        return tuple(name for name in named if name != self.align_batch)

    @property
    def required(self) -> tuple[str, ...]:
        """Return the names of all variables that the parameters mention."""
        named = (*(self.variables or ()), *self.blocks, *self.design, *self.numeric, *self.categorical)
        further = (name for name in (self.align_batch, self.anchors) if name is not None)
        return tuple(dict.fromkeys((*named, *further)))

    @classmethod
    def named(cls, parameters: StudyParameters | None, changes: Mapping[str, Any]) -> StudyParameters:
        """Return parameters with changes by name, or raise if no parameter has this name."""
        find_all(changes, list(descriptions(cls)), "a parameter of a study", most=30)
        if parameters is None:
            return cls(**changes)
        if not isinstance(parameters, cls):
            raise InvalidInputError(
                "the argument parameters to be StudyParameters",
                type(parameters).__name__,
                "pass StudyParameters, or each parameter by name",
            )
        return replace(parameters, **changes)

    def record(self) -> dict[str, Any]:
        """Return all parameters as plain values for JSON."""
        values = {name: getattr(self, name) for name in descriptions(type(self))}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
