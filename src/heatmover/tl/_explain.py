"""`explain`: which cells of an AnnData differ between two groups of its samples, written to ``.obs``."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heatmover._base.validation import LabelNames, check_integer
from heatmover._base.words import counted, find, find_all, quoted
from heatmover.attribution import GroupContrast, explain_groups
from heatmover.attribution.contrast import choose_groups, first_of_order
from heatmover.cohort.samples import factorize
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError
from heatmover.measures import Measures, is_missing, measures_from_weights
from heatmover.study.cell_types import Annotation, CellContrast, CellMasses, annotate, contrast_cells
from heatmover.study.comparison import Comparison, compare, in_units
from heatmover.study.examination import label
from heatmover.study.parameters import COMPARED
from heatmover.tl._distances import _from_neighbors, _from_representation
from heatmover.tl.layout import KEY, Labels, check_anndata, check_stored, read_labels, unpack, write
from heatmover.transport.calibration import Calibration, Curve

__all__ = ["explain"]

# What `sample_distances` writes beside it.
TAKEN = ("params", "names", "sizes", "distances", "embedding", "scales", "landmarks", "drawn", "intervals", "units")
# Distances that are computed again differ by rounding in float32, and by no more.
SAME = 1e-3


def explain(
    adata: Any,
    groupby: str,
    *,
    group: str | None = None,
    reference: str | None = None,
    annotation: str | None = None,
    features: Sequence[str] | None = None,
    sample_key: str | None = None,
    blocks: str | None = None,
    key: str = KEY,
    key_added: str | None = None,
    n_permutations: int = 999,
    random_state: int = 0,
    copy: bool = False,
) -> Any:
    """Find the cells that differ between two groups of samples and write their scores to ``.obs``.

    `sample_distances` must have been called before. Graph and diffusion are made again as it made them, which takes as
    long, and the distances must come out the same. Everything is computed first and written last: if anything fails,
    ``adata`` is as it was.

    Parameters
    ----------
    adata
        Cells in rows, those that `sample_distances` saw.
    groupby
        Column of ``.obs`` with the group of each sample, the same in all its cells. Samples without one do not take
        part.
    group, reference
        The group to explain, and the one to compare it with. Default of two groups: the reference is the one that is
        called so (control, healthy, untreated ...), else the first of an ordered category, else the second by name. Of
        more, ``group`` must be named, and ``reference`` is all other samples.
    annotation
        Column of ``.obs`` with the type of each cell: test types too. Cells without one are a
        type of their own.
    features
        Names of ``.var``, such as markers or genes: which of them differ, in the values of ``.X``, within each type of
        ``annotation``.
    sample_key
        Column with the sample of each cell; default that of `sample_distances`, and it can be no other.
    blocks
        Column that ties samples together, such as the patient or the batch. If every block is of one group, its samples
        are averaged, else samples are compared within their block.
    key
        Where `sample_distances` wrote.
    key_added
        Name of these scores, if there are to be several; default ``key``.
    n_permutations, random_state
        As in `explain_groups`.
    copy
        Return a copy with the results instead of writing to ``adata``.

    Returns
    -------
    AnnData or None
        The copy if ``copy``, else None. ``.obs`` has, each with ``key_added`` in front,

        - ``"_score"``: how surely the density around a cell differs; positive where the group has more;
        - ``"_log_ratio"``: natural logarithm of how many times denser the group is there, relative to most cells;
        - ``"_q_value"``: share of false discoveries among all cells at least as sure;
        - ``"_witness"``: the function that tells the two groups apart best, see `Explanation`.

        Where landmarks stood for the cells, a cell has the values of its landmark. Cells that were not drawn, with
        ``equal_cells``, have NaN. ``.uns[key]["explain"]``, or
        ``.uns[key][key_added]`` if that was given, holds ``"params"``, ``"distance"`` between the means of the groups
        and, with ``annotation``, ``"types"``: a DataFrame with a row for each type, see `heatmover.study.CellType`;
        with ``features`` also ``"drivers"``, with a row for each type and feature, see `heatmover.attribution.Drivers`.
        ``"no_calls"`` says why all q-values are 1 where so few samples cannot reach a p-value of 0.05.

    See Also
    --------
    heatmover.explain_groups : the same without AnnData.

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
    place, prefix = _place(key, key_added)
    stored = unpack(adata, key)
    samples = _samples(adata, stored, sample_key)
    groups = _of_samples(adata, samples, groupby, "groupby")
    tied = None if blocks is None else _blocks(_of_samples(adata, samples, blocks, "blocks"), blocks)
    names = _check_groups(groups, groupby, group, reference, first_of_order(adata.obs[groupby]))
    annotated = None if annotation is None else _annotation(adata, annotation)
    given = _features(adata, features, annotation)
    result, cells = _again(adata, stored)
    # A graph that was given has all cells as its points, also those that were not drawn.
    drawn = None if result.drawn is None or "neighbors_key" in stored["params"] else result.drawn.rows
    if annotated is not None and drawn is not None:
        annotated = annotated._replace(codes=annotated.codes[drawn])
        given = None if given is None else given[drawn]
    design: dict[str, Any] = {"n_permutations": n_permutations, "random_state": random_state}
    design |= {"group": names[0], "reference": names[1]}
    points = _contrast(result, groups, tied, design)
    # Of the L1 distance between the means, and of what tells them apart, the same as of other distances.
    factor = result.unit_factor(points.distance)
    types = None
    if annotated is not None:
        types = contrast_cells(
            result,
            annotated,
            groups,
            variable=groupby,
            blocks=tied,
            cells=cells,
            features=given,
            feature_names=features,
            **design,
        )
    asked = {"groupby": groupby, "annotation": annotation, "blocks": blocks, "key_added": prefix, **design}
    columns = _columns(points, None if cells is None else cells.nodes, prefix)
    columns[f"{prefix}_witness"] *= factor
    if drawn is not None:
        columns = {name: _at(drawn, values, adata.n_obs) for name, values in columns.items()}
    target = adata.copy() if copy else adata
    packed = _packed(points, types, asked)
    packed["distance"] *= factor
    write(target, key, {**target.uns[key], place: packed}, columns)
    return target if copy else None


def _place(key: str, key_added: str | None) -> tuple[str, str]:
    """Return where in the results of the distances to write, and what the columns begin with."""
    if key_added is None:
        return "explain", key
    if not isinstance(key_added, str) or not key_added or "/" in key_added or key_added in TAKEN:
        raise InvalidInputError("key_added to be a name of its own without '/'", repr(key_added))
    return key_added, key_added


def _samples(adata: Any, stored: Mapping[str, Any], sample_key: str | None) -> Labels:
    """Return the sample of each cell, or raise if these are not the cells of the stored distances."""
    known = str(stored["params"]["sample_key"])
    if sample_key is not None and sample_key != known:
        raise InvalidInputError(
            f"sample_key={quoted(known)}, as in hm.tl.sample_distances",
            quoted(sample_key),
            "call hm.tl.sample_distances with it first",
        )
    labels = read_labels(adata, known, [])
    if len(check_stored(stored, labels.names, labels.sizes)) < len(stored["names"]):
        raise InvalidInputError(
            f"the cells of all {counted(len(stored['names']), 'sample')} whose distances are stored",
            f"those of {len(labels.names)}",
            "call hm.tl.sample_distances on these cells first",
        )
    return labels


def _of_samples(adata: Any, samples: Labels, column: str, argument: str) -> list[Any]:
    """Return the value of each sample in a column, None where it is missing; it must be the same in all cells."""
    find(column, list(adata.obs.columns), f"{argument} to be a column of obs")
    codes, uniques = factorize(adata.obs[column])
    first = codes[samples.first]
    varying = np.unique(samples.codes[codes != first[samples.codes]])
    if varying.size:
        raise InvalidInputError(
            f"{argument}={quoted(column)} to be the same in all cells of a sample",
            f"that it varies within {varying.size} of {counted(len(samples.names), 'sample')} (first: "
            f"{quoted(samples.names[varying[0]])})",
            "choose a variable of samples, not of cells" + (", or annotation= for it" if argument == "groupby" else ""),
        )
    return [None if code < 0 else uniques[code] for code in first.tolist()]


def _blocks(values: list[Any], name: str) -> list[str]:
    missing = sum(value is None for value in values)
    if missing:
        raise InvalidInputError(f"a block in {quoted(name)} for every sample", f"none for {missing} of {len(values)}")
    return LabelNames(name).add_all(values)


def _check_groups(
    groups: list[Any], groupby: str, group: str | None, reference: str | None, first: str | None
) -> tuple[str, str | None]:
    """Return the names of the group and of the reference, None for all others."""
    counts = Counter(label(value) for value in groups if value is not None)
    if group is None and len(counts) > 2:
        example = next(name for name in sorted(counts) if name != str(reference))
        raise InvalidInputError(
            "group= to say which group to explain", f"{len(counts)} in {quoted(groupby)}", f"there is {example!r}"
        )
    asked = {"group": group, "reference": reference}
    names = {word: None if name is None else str(name) for word, name in asked.items()}
    return choose_groups(counts, **names, first=first, where=f" in {quoted(groupby)}")


def _annotation(adata: Any, name: str) -> Annotation:
    find(name, list(adata.obs.columns), "annotation to be a column of obs")
    return annotate(name, adata.obs[name], adata.n_obs)


def _features(adata: Any, names: Sequence[str] | None, annotation: str | None) -> Any:
    """Return the values of some variables, ``(n_cells, n_features)``, or None if there are none to look at."""
    if names is None:
        return None
    if isinstance(names, str) or not len(names):
        raise InvalidInputError("features to be a list of names of var", repr(names))
    if annotation is None:
        raise InvalidInputError(
            "annotation= with features=, for they are compared within each type",
            "features= alone",
            "name a column of obs",
        )
    find_all(names, [str(name) for name in adata.var_names], "features to be names of var")
    return adata[:, list(names)].X


def _again(adata: Any, stored: Mapping[str, Any]) -> tuple[Comparison, CellMasses | None]:
    """Compare the samples as the stored distances were made, or raise if they do not come out the same."""
    asked = stored["params"]
    many = "landmarks" in stored
    if "random_state" not in asked or (many and "landmarks" not in asked):
        raise InvalidInputError(
            "distances that can be computed again",
            "those of an earlier version, through landmarks" if "random_state" in asked else "random_state=None",
            "call hm.tl.sample_distances again",
        )
    model = DiffusionEMD(**{name: _plain(value) for name, value in asked["model"].items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all was said when the distances were made
        places, measures = _input(adata, asked)
        # Units come from what is stored.
        settings = {
            name: _plain(asked[name]) for name in COMPARED if name in asked and name not in ("landmarks", "units")
        }
        result = compare(
            places, measures, model=model, landmarks=_plain(asked["landmarks"]) if many else None, **settings
        )
    if "units" in stored:
        result = in_units(result, _calibration(result.model, stored["units"]))
    order = [result.names.index(str(name)) for name in stored["names"]]
    before = np.asarray(stored["distances"], dtype=np.float64)
    if not np.allclose(result.distances[np.ix_(order, order)], before, rtol=SAME, atol=SAME * float(before.max())):
        raise InvalidInputError(
            "the cells from which the distances were computed", "other cells, or other cells near them",
            "call hm.tl.sample_distances again",
        )  # fmt: skip
    marks = result.landmarks
    if marks is None:
        return result, None
    if result.drawn is None:
        return result, CellMasses(measures.masses, marks.assign(places))
    rows = result.drawn.rows
    own = measures_from_weights(measures.masses[:, rows])
    return result, CellMasses(own.masses, marks.assign(places[rows]))


def _calibration(model: DiffusionEMD, stored: Mapping[str, Any]) -> Calibration:
    """Return the calibration that was stored, without its pairs."""
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


def _input(adata: Any, asked: Mapping[str, Any]) -> tuple[Any, Measures]:
    sample_key = str(asked["sample_key"])
    if "neighbors_key" in asked:
        return _from_neighbors(adata, sample_key, str(asked["neighbors_key"]))
    used = asked["use_rep"]
    representation = str(used) if isinstance(used, str) else [str(name) for name in used]
    return _from_representation(adata, sample_key, representation, standardize=bool(asked["standardize"]))


def _plain(value: Any) -> Any:
    """Return a Python value for what a file gave back."""
    return value.item() if isinstance(value, np.generic) else value


def _contrast(
    result: Comparison, groups: list[Any], tied: list[str] | None, design: Mapping[str, Any]
) -> GroupContrast:
    known = [i for i, value in enumerate(groups) if not is_missing(value)]
    labels = [label(groups[i]) for i in known]
    blocks = None if tied is None else [tied[i] for i in known]
    return explain_groups(result.model, result.measures.masses[known], labels, blocks=blocks, **design)


def _columns(contrast: GroupContrast, nodes: Any, prefix: str) -> dict[str, Any]:
    values = {
        "score": contrast.scores,
        "log_ratio": contrast.log_ratios,
        "q_value": contrast.q_values,
        "witness": contrast.explanation.witness,
    }
    return {f"{prefix}_{name}": np.array(value if nodes is None else value[nodes]) for name, value in values.items()}


def _at(rows: Any, values: Any, n_cells: int) -> Any:
    """Return a value for every cell, NaN for those that were not drawn."""
    result = np.full(n_cells, np.nan)
    result[rows] = values
    return result


def _packed(contrast: GroupContrast, types: CellContrast | None, asked: Mapping[str, Any]) -> dict[str, Any]:
    params = {name: value for name, value in asked.items() if value is not None}
    packed: dict[str, Any] = {
        "params": params | {"group": contrast.group, "reference": contrast.reference},
        "distance": contrast.distance,
        "n_samples": np.array(contrast.n_samples),
        "scale": int(contrast.scale),
    }
    if types is None:
        return packed
    drivers = {} if types.drivers is None else {"drivers": types.drivers.table()}
    reason = {"no_calls": types.no_calls} if types.no_calls else {}
    return packed | {"types": types.table()} | drivers | reason
