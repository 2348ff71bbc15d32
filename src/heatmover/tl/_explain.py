"""Find cells of an AnnData that differ between two groups of samples, write ``.obs``, ``.uns``; for users (`explain`).

Users call `explain` after `sample_distances`. The function reads the results in ``.uns`` and adds its own results.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heatmover._base.progress import SILENT
from heatmover._base.validation import LabelNames, check_integer
from heatmover._base.words import counted, find, find_all, quoted
from heatmover.attribution import GroupContrast, explain_groups
from heatmover.attribution.contrast import choose_groups, first_of_order
from heatmover.attribution.drivers import LISTED
from heatmover.cohort.formats.anndata import open_anndata
from heatmover.cohort.reader import Selection
from heatmover.cohort.samples import factorize
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError
from heatmover.graphs.graph import Graph
from heatmover.measures import is_missing, measures_from_weights
from heatmover.statistics import Design
from heatmover.study.cell_types import CellMasses, annotate
from heatmover.study.comparison import Comparison, compare, in_units
from heatmover.study.contrasts import CellContrast, along_numbers, check_trend, contrast_cells
from heatmover.study.examination import design_of, label
from heatmover.study.genes import NONE, Genes, Rows, choose_genes, pseudobulk
from heatmover.study.parameters import COMPARED
from heatmover.tl.layout import KEY, Labels, check_anndata, check_stored, read_input, read_labels, unpack, write
from heatmover.transport.calibration import Calibration, Curve

# Keys that `sample_distances` writes and `explain` must not overwrite.
TAKEN = ("params", "names", "sizes", "distances", "embedding", "scales", "landmarks", "drawn", "intervals", "units")
# Relative tolerance of distances that are computed again; they may differ from stored distances only by float32
# rounding.
SAME = 1e-3


def explain(
    adata: Any,
    groupby: str,
    *,
    group: str | None = None,
    reference: str | None = None,
    annotation: str | None = None,
    features: Sequence[str] | None = None,
    layer: str = "auto",
    sample_key: str | None = None,
    blocks: str | None = None,
    adjust: Sequence[str] = (),
    trend: bool = False,
    key: str = KEY,
    key_added: str | None = None,
    n_permutations: int = 999,
    random_state: int = 0,
    copy: bool = False,
) -> Any:
    """Find the cells that differ between two groups of samples and write their scores to ``.obs``.

    Call `sample_distances` first. The graph and the diffusion are computed again, which takes as long as the first
    time; if the distances differ from the stored distances, an error is raised. Results are written last, so ``adata``
    does not change if an error occurs.

    Parameters
    ----------
    adata
        AnnData that was passed to `sample_distances`, with the same cells.
    groupby
        Column of ``.obs`` with the group of each sample, constant within samples. Samples without a group are left out.
    group, reference
        The group to explain, and the group to compare it with. With two groups, the default reference is the group with
        a typical name (control, healthy, untreated ...), else the first group of an ordered category, else the second
        group by name. With more groups, ``group`` is required, and ``reference`` defaults to all other samples.
    annotation
        Column of ``.obs`` with the type of each cell. If given, cell types are tested too. Cells without a type form a
        separate type.
    features
        Names of variables, such as markers or genes, to test for differences within each type of ``annotation``;
        default: all.
    layer
        Matrix of these variables: the name of a layer, ``"raw"``, ``"X"``, or ``"none"`` to test no variables. Counts
        (whole numbers) are log-normalized; other values are used as they are. ``"auto"``: the layer "counts", else raw,
        else X. If the distances were computed from X, its values are used as they are.
    sample_key
        Column with the sample of each cell; must be the column that `sample_distances` used, which is the default.
    blocks
        Column that identifies dependent samples, such as the patient or the batch. If all samples of every block are in
        one group, the samples of each block are averaged. Otherwise, samples are compared within blocks.
    adjust
        Columns of covariates to hold fixed in all tests, such as batch or age; constant within samples.
    trend
        Read ``groupby`` as numbers or an ordered category, and find the cells and types that follow it.
    key
        Key of ``.uns`` under which `sample_distances` stored its results.
    key_added
        Prefix of the new columns, to store several results; default: ``key``.
    n_permutations, random_state
        As in `explain_groups`.
    copy
        Return a copy with the results instead of writing to ``adata``.

    Returns
    -------
    AnnData or None
        The copy if ``copy``, else None. ``.obs`` has the following columns, each with the prefix ``key_added``:

        - ``"_score"``: evidence that the density of cells around a cell differs between the groups; positive if the
          density is higher in the group;
        - ``"_log_ratio"``: natural logarithm of the density in the group divided by the density in the reference,
          relative to the most common change among cells;
        - ``"_q_value"``: q-value (false-discovery rate) of the difference in density;
        - ``"_witness"``: witness of the distance between the group means, positive where the group is denser and
          negative where the reference is denser; see `Explanation`.

        If landmarks approximate the cells, each cell has the values of its landmark. With ``equal_cells``, cells that
        were not drawn have NaN.

        ``.uns[key]["explain"]``, or ``.uns[key][key_added]`` if ``key_added`` is given, contains ``"params"`` and the
        ``"distance"`` between the means of the groups. With ``annotation``, the dictionary also contains ``"types"``, a
        DataFrame with a row for each type (see `heatmover.study.CellType`), ``"drivers"``, a DataFrame with a row
        for each type and significant variable, and for at least the first 100 variables of each type (see
        `heatmover.attribution.Drivers`), and ``"drivers_test"``, a description of their test.
        If there are too few samples to reach a p-value of 0.05, ``"no_calls"`` explains why all q-values are 1.

    See Also
    --------
    heatmover.explain_groups : the same method for arrays.

    Examples
    --------
    >>> import anndata
    >>> import pandas as pd
    >>> import heatmover as hm
    >>> from heatmover.tl import explain, sample_distances
    >>> data = hm.datasets.cohort(20, cells_per_sample=50, effect=3.0)
    >>> obs = pd.DataFrame({"sample": data.labels}, index=[f"cell-{i}" for i in range(1000)])
    >>> obs["condition"] = obs["sample"].str.split("-").str[0]
    >>> obs["branch"] = data.coordinates[:, 0].astype(int).astype(str)
    >>> adata = anndata.AnnData(data.points, obs=obs)
    >>> sample_distances(adata, "sample")
    >>> explain(adata, "condition", group="case", annotation="branch")
    >>> adata.obs.groupby("branch")["heatmover_log_ratio"].mean().idxmax()
    '4'
    >>> adata.uns["heatmover"]["explain"]["types"].index[0]
    '4'
    """
    check_anndata(adata, copy)
    check_integer("n_permutations", n_permutations, minimum=1)
    check_integer("random_state", random_state, minimum=0)
    if key_added is not None and (
        not isinstance(key_added, str) or not key_added or "/" in key_added or key_added in TAKEN
    ):
        raise InvalidInputError("key_added to be a new name without '/'", repr(key_added))
    prefix = key if key_added is None else key_added
    stored = unpack(adata, key)
    samples = _samples(adata, stored, sample_key)
    groups = _of_samples(adata, samples, groupby, "groupby")
    tied = None
    if blocks is not None:
        block_of = _of_samples(adata, samples, blocks, "blocks")
        missing = sum(value is None for value in block_of)
        if missing:
            count = f"none for {missing} of {counted(len(block_of), 'sample')}"
            raise InvalidInputError(f"a block in {quoted(blocks)} for every sample", count)
        tied = LabelNames(blocks).add_all(block_of)
    known = [i for i, value in enumerate(groups) if not is_missing(value)]
    if trend:
        ordered = first_of_order(adata.obs[groupby]) is not None
        groups = type(adata.obs[groupby])(groups, dtype=adata.obs[groupby].dtype if ordered else object)
        check_trend(groupby, groups)
    numbers = along_numbers(groupby, groups) if trend else None
    first = first_of_order(adata.obs[groupby])
    names = (None, None) if trend else _check_groups(groups, groupby, group, reference, first)
    fixed = _covariates(adata, samples, adjust)
    annotated = None
    if annotation is not None:
        find(annotation, list(adata.obs.columns), "the argument annotation to be the name of a column of obs")
        annotated = annotate(annotation, adata.obs[annotation], adata.n_obs)
    genes = _genes(adata, stored, features, layer, annotation)
    result, cells = _again(adata, stored)
    # All cells are points of an existing graph, even if they were not drawn.
    drawn = None if result.drawn is None or "neighbors_key" in stored["params"] else result.drawn.rows
    given = None
    if annotated is not None:
        if genes is not None:
            inside = np.ones(adata.n_obs, dtype=bool) if drawn is None else np.isin(np.arange(adata.n_obs), drawn)
            rows = Rows(np.where(inside, samples.codes, -1), len(samples.names), annotated.codes, annotated.types)
            given = pseudobulk(genes, rows, SILENT, features=features, name="layer")
        annotated = annotated if drawn is None else annotated._replace(codes=annotated.codes[drawn])
    design: dict[str, Any] = {"n_permutations": n_permutations, "random_state": random_state}
    design |= {"group": names[0], "reference": names[1]}
    points = explain_groups(
        result.model,
        result.measures.masses[known],
        [label(groups[i]) if numbers is None else numbers[i] for i in known],
        blocks=None if tied is None else [tied[i] for i in known],
        adjust=None if fixed is None else fixed.take(np.isin(np.arange(len(groups)), known)),
        trend=groupby if trend else None,
        cells=result.sizes @ result.measures.masses,
        **design,
    )
    # Factor that converts the witness and the L1 distance between the group means to the unit of the distances.
    factor = result.unit_factor(points.distance)
    types = None
    if annotated is not None:
        types = contrast_cells(
            result, annotated, groups, variable=groupby, blocks=tied, adjust=fixed, trend=trend, cells=cells,
            features=given, **design,
        )  # fmt: skip
    asked = {"groupby": groupby, "annotation": annotation, "blocks": blocks, "key_added": prefix, **design}
    asked |= {"adjust": list(adjust), "trend": trend} if adjust or trend else {}
    columns = {
        f"{prefix}_score": points.scores,
        f"{prefix}_log_ratio": points.log_ratios,
        f"{prefix}_q_value": points.q_values,
        f"{prefix}_witness": points.explanation.witness * factor,
    }
    for name, values in columns.items():
        of_cells = np.array(values if cells is None else values[cells.nodes])
        columns[name] = of_cells
        if drawn is not None:
            columns[name] = np.full(adata.n_obs, np.nan)
            columns[name][drawn] = of_cells
    target = adata.copy() if copy else adata
    packed = _packed(points, factor * points.distance, types, asked)
    write(target, key, {**target.uns[key], key_added or "explain": packed}, columns)
    return target if copy else None


def _samples(adata: Any, stored: Mapping[str, Any], sample_key: str | None) -> Labels:
    """Return the sample of each cell, or raise if the stored distances were computed from other cells."""
    before = str(stored["params"]["sample_key"])
    if sample_key is not None and sample_key != before:
        raise InvalidInputError(
            f"sample_key={quoted(before)}, as in hm.tl.sample_distances",
            quoted(sample_key),
            "call hm.tl.sample_distances with this column first",
        )
    labels = read_labels(adata, before, [])
    if len(check_stored(stored, labels.names, labels.sizes)) < len(stored["names"]):
        raise InvalidInputError(
            f"the cells of all {counted(len(stored['names']), 'sample')} whose distances are stored",
            f"cells of {counted(len(labels.names), 'sample')}",
            "call hm.tl.sample_distances on these cells first",
        )
    return labels


def _of_samples(adata: Any, samples: Labels, column: str, argument: str) -> list[Any]:
    """Return the value of each sample in a column, None if missing, or raise if the column varies within samples."""
    find(column, list(adata.obs.columns), f"the argument {argument} to be the name of a column of obs")
    codes, uniques = factorize(adata.obs[column])
    first = codes[samples.first]
    varying = np.unique(samples.codes[codes != first[samples.codes]])
    if varying.size:
        raise InvalidInputError(
            f"{argument}={quoted(column)} to be the same in all cells of a sample",
            f"that it varies within {varying.size} of {counted(len(samples.names), 'sample')} (first: "
            f"{quoted(samples.names[varying[0]])})",
            "choose sample metadata, not an annotation of cells"
            + (", or pass the column as annotation=" if argument == "groupby" else ""),
        )
    return [None if code < 0 else uniques[code] for code in first.tolist()]


def _covariates(adata: Any, samples: Labels, names: Sequence[str]) -> Design | None:
    """Return the covariates of the samples; None without names."""
    if isinstance(names, str):
        raise InvalidInputError("the argument adjust to be a list of columns of obs", repr(names), f"write [{names!r}]")
    columns = {name: _of_samples(adata, samples, name, "adjust") for name in names}
    return design_of(columns) if columns else None


def _check_groups(
    groups: list[Any], groupby: str, group: str | None, reference: str | None, first: str | None
) -> tuple[str, str | None]:
    """Return the names of the group and of the reference; the reference None means all other samples."""
    counts = Counter(label(value) for value in groups if value is not None)
    if group is None and len(counts) > 2:
        example = next(name for name in sorted(counts) if name != str(reference))
        raise InvalidInputError(
            "the argument group, which names the group to explain",
            f"{counted(len(counts), 'group')} in {quoted(groupby)}",
            f"for example group={example!r}",
        )
    asked = {"group": group, "reference": reference}
    names = {word: None if name is None else str(name) for word, name in asked.items()}
    return choose_groups(counts, **names, first=first, where=f" in {quoted(groupby)}")


def _genes(
    adata: Any, stored: Mapping[str, Any], names: Sequence[str] | None, layer: str, annotation: str | None
) -> Genes | None:
    """Return the matrix of variables to test; None without an annotation, or if there are no variables."""
    if names is not None and (isinstance(names, str) or not len(names)):
        raise InvalidInputError("the argument features to be a list of variable names", repr(names))
    if annotation is None:
        if names is None:
            return None
        raise InvalidInputError(
            "annotation= with features=, because features are compared within each type",
            "features= alone",
            "name a column of obs",
        )
    used = stored["params"].get("use_rep")
    key = used if isinstance(used, str) else None if used is None else "X"
    reader = open_anndata("", "AnnData", adata, Selection(str(stored["params"]["sample_key"]), key, ()))
    genes = choose_genes(reader, layer, projected=used is None, name="layer")
    if genes is None and layer != NONE and adata.X is not None and adata.n_vars:
        genes = Genes(reader.of_matrix("X"), "X", counted=False)
    if genes is not None and names is not None:
        find_all(
            names, genes.reader.features, f"every name in the argument features to be one of var_names of {genes.name}"
        )
    return genes


def _again(adata: Any, stored: Mapping[str, Any]) -> tuple[Comparison, CellMasses | None]:
    """Repeat the comparison with the stored parameters; raise if the distances differ from the stored distances."""
    asked = stored["params"]
    if "random_state" not in asked:
        raise InvalidInputError(
            "distances that can be computed again",
            "random_state=None",
            "call hm.tl.sample_distances with an integer random_state",
        )
    model = DiffusionEMD(**{name: _plain(value) for name, value in asked["model"].items()})
    # Do not calibrate again: the stored calibration gives the units.
    settings = {name: _plain(asked[name]) for name in COMPARED if name in asked and name != "units"}
    if "landmarks" not in stored:
        settings["landmarks"] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `sample_distances` already showed all warnings
        places, measures = read_input(adata, asked)
        result = compare(places, measures, model=model, **settings)
    if "units" in stored:
        result = in_units(result, _calibration(result.model, stored["units"]))
    order = [result.names.index(str(name)) for name in stored["names"]]
    before = np.asarray(stored["distances"], dtype=np.float64)
    if not np.allclose(result.distances[np.ix_(order, order)], before, rtol=SAME, atol=SAME * float(before.max())):
        raise InvalidInputError(
            "the cells from which the distances were computed", "other cells or other neighbors of the cells",
            "call hm.tl.sample_distances again",
        )  # fmt: skip
    marks = result.landmarks
    if marks is None or isinstance(places, Graph):
        return result, None
    if result.drawn is None:
        return result, CellMasses(measures.masses, marks.assign(places))
    rows = result.drawn.rows
    own = measures_from_weights(measures.masses[:, rows])
    return result, CellMasses(own.masses, marks.assign(places[rows]))


def _calibration(model: DiffusionEMD, stored: Mapping[str, Any]) -> Calibration:
    """Return the stored calibration, which does not include the pairs and their exact distances."""
    figures = ("median_error", "error_90", "linear_error", "spearman", "spearman_uncalibrated", "drawing_bias")
    none: Any = np.empty(0)
    return Calibration(
        model=model,
        curve=Curve(*(np.asarray(stored[name], dtype=np.float64) for name in ("knots", "values"))),
        shrinkage=float("nan"),
        ground=str(stored["ground"]),
        pairs=np.empty((0, 2), dtype=np.int64),
        exact=none,
        predicted=none,
        n_drawn=int(stored["n_drawn"]),
        **{name: float(stored[name]) for name in figures},
    )


def _plain(value: Any) -> Any:
    """Return a Python value for a NumPy scalar that was read from a file."""
    return value.item() if isinstance(value, np.generic) else value


def _packed(
    contrast: GroupContrast, distance: float, types: CellContrast | None, asked: Mapping[str, Any]
) -> dict[str, Any]:
    params = {name: value for name, value in asked.items() if value is not None}
    packed: dict[str, Any] = {
        "params": params | {"group": contrast.group, "reference": contrast.reference},
        "distance": distance,
        "n_samples": np.array(contrast.n_samples),
        "scale": int(contrast.scale),
    }
    if types is None:
        return packed
    drivers: dict[str, Any] = {}
    if types.drivers is not None:
        drivers = {"drivers": types.drivers.table(LISTED), "drivers_test": types.drivers.describe()}
    reason = {"no_calls": types.no_calls} if types.no_calls else {}
    return packed | {"types": types.table()} | drivers | reason
