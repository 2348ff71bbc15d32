"""A study in words: findings as rows of a table, what to keep in mind, and the methods as one would paste them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from heatmover._base.words import counted, listed, percent, unused, verb
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.report.markup import shortened
from heatmover.statistics import DesignResult, TestResult
from heatmover.study.cell_types import CellContrast
from heatmover.study.comparison import Comparison
from heatmover.study.examination import LEVEL, Finding
from heatmover.study.study import Study
from heatmover.study.tables import table_text

__all__ = ["BEFORE", "cautions", "findings_table", "methods", "references", "row", "term_rows", "terms_table"]

# Above what to keep in mind, in the page and in the terminal.
BEFORE = "Before you believe it"

NAMES = {"permanova": "PERMANOVA", "distance correlation": "distance correlation"}
BLOCKS = {
    "whole": "Samples of one block change places together: the evidence is the number of blocks.",
    "within": "Values change places only within a block: differences between blocks do not count.",
    "whole within": "Blocks change places as wholes, and only within larger blocks: the evidence is their number.",
}
# Fewer samples in a group: one unusual sample can make or hide a difference.
FEW_IN_GROUP = 5
# With fewer permutations p is coarse: of 19, the best possible is 0.05.
FEW_PERMUTATIONS = 99
FEW_SAMPLES = 10

KERNELS = {
    "gaussian": "edges were weighted by a Gaussian kernel exp(-d^2/b^2) of fixed bandwidth b = {bandwidth:.3g}",
    "adaptive": "edges were weighted by a Gaussian kernel exp(-d^2/(b_i b_j)) whose bandwidth follows the local "
    "distance to neighbours (median {bandwidth:.3g})",
    "box": "edges had equal weights",
}
METRIC_NAMES = {
    "euclidean": "Euclidean",
    "cosine": "cosine",
    "correlation": "correlation",
    "haversine": "great-circle",
    "manhattan": "Manhattan",
    "chebyshev": "Chebyshev",
}
NORMS = {
    "levels": "the sum over k of 2^(-(K-k) alpha) times the L1 distance between the two densities after 2^k steps",
    "increments": "the sum over k of 2^(-(K-k-1) alpha) times the L1 distance between the changes of the two densities "
    "from 2^k to 2^(k+1) steps, plus the L1 distance after 2^K steps",
    "coarsest": "the sum over k of 2^(-(K-k) alpha) times the L1 distance between the differences of the two densities "
    "from their values after 2^K steps, plus the L1 distance after 2^K steps",
}
WAYS = {
    "chebyshev": "Chebyshev polynomials",
    "spectral": "Chebyshev polynomials at fine scales and leading eigenvectors at coarse ones",
    "interpolative": "Chebyshev polynomials at fine scales and nested interpolative decompositions at coarse ones",
    "exact": "a dense eigendecomposition",
}
TESTS = {
    "permanova": "PERMANOVA for groups (Anderson, 2001)",
    "distance correlation": "distance correlation for numbers (Szekely et al., 2007)",
}
FURTHER = {
    "dispersion": "unequal spread of groups by bounded distances within them, a robust PERMDISP (Anderson, 2006)",
    "neighbor enrichment": "whether a sample's nearest samples share its group",
    "smoothness": "smoothness over the graph of nearest samples (sum of squared differences along its edges)",
}
GROUNDS = {
    "euclidean": "straight lines between points",
    "geodesic": "shortest paths along the graph",
    "cost": "given costs",
}
MOVES = {
    "whole": "samples of the same {block} changed places together",
    "within": "values changed places only within the same {block}",
    "whole within": "blocks of {block} changed places as wholes, and only within larger ones",
}
CITED = {
    "Tong et al.": "Tong A, Huguet G, Natik A, MacDonald K, Kuchroo M, Coifman R, Wolf G, Krishnaswamy S. Diffusion "
    "Earth Mover's Distance and Distribution Embeddings. Proceedings of the 38th International Conference on Machine "
    "Learning (ICML), 2021.",
    "(Freedman and Lane, 1983)": "Freedman D, Lane D. A nonstochastic interpretation of reported significance levels. "
    "Journal of Business and Economic Statistics 1, 1983.",
    "(Anderson, 2001)": "Anderson MJ. A new method for non-parametric multivariate analysis of variance. Austral "
    "Ecology 26, 2001.",
    "(Anderson, 2006)": "Anderson MJ. Distance-based tests for homogeneity of multivariate dispersions. Biometrics 62, "
    "2006.",
    "Szekely et al.": "Szekely GJ, Rizzo ML, Bakirov NK. Measuring and testing dependence by correlation of distances. "
    "Annals of Statistics 35, 2007.",
    "Benjamini and Hochberg": "Benjamini Y, Hochberg Y. Controlling the false discovery rate. Journal of the Royal "
    "Statistical Society B 57, 1995.",
}


def row(finding: Finding) -> dict[str, Any]:
    """Return what the table of findings shows of a variable, in words."""
    answer = finding.answer
    return {
        "variable": finding.variable,
        "kind": _kind(finding),
        "samples": finding.n_samples,
        "missing": finding.n_missing,
        "verdict": _verdict(finding),
        "test": "" if answer is None else NAMES[answer.test],
        "effect": "" if answer is None else _effect(finding, answer),
        "p": None if answer is None else answer.p_value,
        "q": finding.q_value,
        "floor": f"smallest possible: {finding.limit[1]:.3g}" if finding.undecided else "",
        "adjusted": finding.beside.removeprefix(", "),
        "pairs": _within_pairs(finding),
        "nearest": _nearest(finding),
        "spread": _spread(finding),
        "smooth": _smooth(finding),
        "words": " ".join(part for part in (finding.describe(), BLOCKS.get(finding.blocks, "")) if part),
    }


def _within_pairs(finding: Finding) -> str:
    pairs = finding.pairs
    return "" if pairs is None else f"{pairs.share} of what varies within the {counted(pairs.n_blocks, pairs.noun)}"


def term_rows(design: DesignResult | None) -> list[dict[str, Any]]:
    """Return what the table of terms shows of a design; the last row is the residual."""
    if design is None:
        return []
    terms = [
        {
            "term": term.term,
            "freedom": term.degrees_of_freedom,
            "share": percent(min(max(term.r_squared, 0.0), 1.0)),
            "left": percent(min(max(term.partial_r_squared, 0.0), 1.0)),
            # Whole blocks of which each is a group of its own can only change names.
            "p": term.p_value if term.smallest_p < 1 else None,
        }
        for term in design.terms
    ]
    total = design.total_sum_of_squares
    share = percent(max(design.residual_sum_of_squares / total, 0.0)) if total > 0 else ""
    rest = {"term": "residual", "freedom": design.residual_degrees_of_freedom, "share": share, "left": "", "p": None}
    return [*terms, rest]


def findings_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of `row` as CSV."""
    columns = ["variable", "kind", "samples", "missing", "verdict", "test", "adjusted", "effect", "pairs", "p", "floor"]
    columns += ["q", "nearest", "spread", "smooth"]
    named = [dict(one) | {"verdict": one["verdict"]["text"]} for one in rows]
    return table_text(columns, [[one[name] for name in columns] for one in named])


def terms_table(design: DesignResult) -> str:
    """Return what each term of a design explains as CSV, with all digits."""
    columns = ["degrees_of_freedom", "r_squared", "partial_r_squared", "p_value", "smallest_p"]
    return table_text(
        ["term", *columns], [[term.term, *(getattr(term, name) for name in columns)] for term in design.terms]
    )


def cautions(study: Study) -> tuple[str, ...]:
    """Return what the reader should know before believing the result."""
    return (*study.notes, *_advised(study), *_few(study))


def _advised(study: Study) -> Iterator[str]:
    advice = study.comparison.diagnosis.advice
    if advice:
        yield f"The graph that carries the distances is not perfect ({counted(len(advice), 'remark')} below)."


def _few(study: Study) -> Iterator[str]:
    for finding in study.findings:
        if finding.answer is not None:
            yield from (f"{shortened(finding.variable)!r}: {caution}" for caution in _doubts(finding, finding.answer))
    if study.findings and len(study.comparison.names) < FEW_SAMPLES:
        yield f"{counted(len(study.comparison.names), 'sample')} are few: only a large difference can show."


def _doubts(finding: Finding, answer: TestResult) -> Iterator[str]:
    small = sum(size < FEW_IN_GROUP for size in finding.groups.values())
    if small:
        yield (
            f"{small} of {counted(len(finding.groups), 'group')} {verb(small, 'has', 'have')} fewer than "
            f"{FEW_IN_GROUP} samples; one unusual sample can make or hide a difference."
        )
    possible = len(answer.null)
    if possible < FEW_PERMUTATIONS:
        yield (
            f"only {counted(possible, 'permutation')} could be tried, so that p cannot fall below "
            f"{answer.smallest_p:.2g}."
        )
    spread = finding.tests.get("dispersion")
    if finding.sure and spread is not None and spread.p_value <= LEVEL:
        yield "its groups are unequally spread, and part of their difference may be this."


def _kind(finding: Finding) -> str:
    return counted(len(finding.groups), "group") if finding.kind == "groups" else "number"


def _verdict(finding: Finding) -> dict[str, str]:
    if finding.answer is None:
        return {"mark": "untested", "text": "not tested"}
    if finding.undecided:
        return {"mark": "maybe", "text": "too few to decide"}
    if finding.sure:
        return {"mark": "yes", "text": "goes with the distances"}
    if finding.answer.p_value <= LEVEL:
        return {"mark": "maybe", "text": "may go with them"}
    return {"mark": "no", "text": "no sign of it"}


def _effect(finding: Finding, answer: TestResult) -> str:
    if finding.kind == "groups":
        return f"explains {percent(finding.explained)} of the variation{' left' if finding.adjusted else ''}"
    return f"correlation {answer.statistic:.2f} ({answer.statistic - answer.effect:.2f} by chance)"


def _nearest(finding: Finding) -> str:
    test = finding.tests.get("neighbor enrichment")
    if test is None:
        return ""
    times = f", {test.effect:.2g} times chance" if np.isfinite(test.effect) else ""
    return f"{100 * test.statistic:.0f} % of the same group{times} (p = {test.p_value:.2g})"


def _spread(finding: Finding) -> str:
    test = finding.tests.get("dispersion")
    if test is None:
        return ""
    if test.p_value > LEVEL:
        return f"about equal (p = {test.p_value:.2g})"
    wider = f"widest {test.effect:.2g} times the narrowest" if np.isfinite(test.effect) else "one has none"
    return f"unequal: {wider} (p = {test.p_value:.2g})"


def _smooth(finding: Finding) -> str:
    test = finding.tests.get("smoothness")
    if test is None or not np.isfinite(test.statistic):
        return ""
    return f"{test.statistic:.2f} of what chance gives (p = {test.p_value:.2g})"


def methods(study: Study) -> tuple[str, ...]:
    """Return the method in paragraphs: the distances, and the tests if there are any."""
    distances = " ".join(
        (
            _samples(study),
            *_batches(study),
            *_landmarks(study.comparison),
            _graph(study),
            _diffusion(study.comparison),
            *_units(study.comparison),
            *_noise(study.comparison),
            _numerics(study),
        )
    )
    tests = " ".join((*_tests(study), *_contrast(study)))
    return (distances, tests) if tests else (distances,)


def references(paragraphs: tuple[str, ...]) -> list[str]:
    """Return what the paragraphs cite."""
    text = " ".join(paragraphs)
    return [reference for mark, reference in CITED.items() if mark in text]


def _samples(study: Study) -> str:
    comparison, source = study.comparison, study.record.input
    dimensions = ""
    if source:
        named = listed(source["dimensions"])
        dimensions = f", described by {counted(len(source['dimensions']), 'feature')} ({named}),"
    left = f" Other columns were {unused(source['unused'])}." if source and source.get("unused") else ""
    drawn = "" if comparison.drawn is None else f" {comparison.drawn}, at random and without replacement."
    return (
        f"{counted(len(comparison.names), 'sample')} with {counted(int(comparison.sizes.sum()), 'cell')} in "
        f"total{dimensions} were "
        "compared by Diffusion Earth Mover's Distances (Tong et al., 2021) as implemented in heatmover "
        f"{study.record.versions.get('heatmover', '')}.{drawn}{left}"
    )


def _landmarks(comparison: Comparison) -> Iterator[str]:
    agreement = comparison.landmark_agreement
    if agreement is None:
        return
    correlation = (
        f"; distances through them agreed with those on a graph over {counted(agreement.n_points, 'cell')} with a "
        f"Spearman "
        f"correlation of {agreement.spearman:.3f}"
        if np.isfinite(agreement.spearman)
        else ""
    )
    yield (
        f"{counted(agreement.n_landmarks, 'centre')} of k-means stood for the cells (leaving "
        f"{percent(agreement.unexplained)} "
        f"of the variance unexplained{correlation})."
    )


def _graph(study: Study) -> str:
    how = study.comparison.graph.construction
    nodes = "cell" if study.comparison.landmarks is None else "centre"
    if how.get("source") == "points":
        kernel = KERNELS[how["kernel"]].format(bandwidth=how["bandwidth"] or 0.0)
        metric = METRIC_NAMES[how.get("metric", "euclidean")]
        near = (
            f"its {counted(how['n_neighbors'], 'nearest neighbour')} ({metric} distance)"
            if how["n_neighbors"]
            else "all others within a fixed radius"
        )
        copies = f" Equal {nodes}s are one node ({counted(how['n_copies'], 'copy')})." if how.get("n_copies") else ""
        return f"Every {nodes} was joined with {near}, and {kernel}.{copies}"
    if how.get("source") == "distances":
        kernel = KERNELS[how["kernel"]].format(bandwidth=how["bandwidth"] or 0.0)
        return f"Every {nodes} was joined with its nearest neighbours by distances that were given, and {kernel}."
    if how.get("source") == "grid":
        return f"The graph was a grid of {' x '.join(map(str, how['shape']))} nodes."
    return f"The graph over {counted(study.comparison.graph.n_points, 'node')} was given by its affinities."


def _diffusion(comparison: Comparison) -> str:
    model = comparison.model
    walk = "the random walk on this graph" if model.density == "adjoint" else "averaging over neighbours on this graph"
    return (
        f"The mass of each sample, one in total, was diffused by {walk} (affinities divided by the degrees of both "
        f"ends) for 2^k steps, k = {int(model.scales_[0])} to K = {int(model.max_scale_)}, and the distance between "
        f"two samples is {NORMS[model.norm]}, with {_weights(model)}. K: {comparison.max_scale_reason}."
    )


def _weights(model: DiffusionEMD) -> str:
    if model.weights is None:
        return f"alpha = {model.alpha:g}"
    weights = ", ".join(f"{weight:.3g}" for weight in np.asarray(model.weights, dtype=np.float64))
    return f"the weights {weights} of the terms in place of the powers of two"


def _units(comparison: Comparison) -> Iterator[str]:
    fit = comparison.calibration
    if fit is None:
        return
    yield (
        f"Weights, K and an increasing curve from these sums to real units were fitted to {len(fit.pairs)} exact "
        f"Earth Mover's Distances ({GROUNDS[fit.ground]}) by nested cross-validation (median error of pairs left out "
        f"{100 * fit.median_error:.1f} %, 90th percentile {100 * fit.error_90:.1f} %)."
    )


def _noise(comparison: Comparison) -> Iterator[str]:
    noise = comparison.uncertainty
    if noise is not None and comparison.bias == "corrected":
        yield (
            "The embeddings of the samples were shrunk towards their centre, scale by scale and along every direction "
            "in which they clearly differ, by the share of their variance that is due to the number of cells "
            "(constrained empirical Bayes)."
        )
    if noise is not None and comparison.intervals is not None:
        yield (
            f"Intervals of distances ({100 * noise.confidence:g} %) come from {noise.n_bootstrap:,} replicates of a "
            "bootstrap over cells."
        )


def _numerics(study: Study) -> str:
    model = study.comparison.model
    kept = int(model.n_regions_.sum())
    compact = (
        ""
        if model.compress_ is None
        else f" The densities were kept at {counted(kept, 'point')} over all scales."
        if model.compress_by == "centers"
        else f" The densities were kept as masses in {counted(kept, 'region')} of points over all scales."
    )
    return (
        f"Densities were computed by {WAYS[model.method_]}; the certified relative error of each is at most "
        f"{float(np.max(model.error_bound_)):.1g}.{compact} Seed {study.record.parameters['random_state']}."
    )


def _batches(study: Study) -> Iterator[str]:
    batch = study.record.parameters.get("align_batch")
    if batch is None:
        return
    anchors = study.record.parameters.get("anchors")
    held = "with the variables tested held fixed"
    source = held if anchors is None else f"of the anchor samples ({shortened(anchors)})"
    name = shortened(batch)
    yield (
        f"Cells of each batch ({name}) were first moved by the shift that they had in common, learnt by least squares "
        f"of the means of samples within clusters of cells, {source}."
    )


def _tests(study: Study) -> Iterator[str]:
    done = [finding for finding in study.findings if finding.answer is not None]
    if not done:
        return
    used = {name for finding in done for name in finding.tests}
    permutations = study.record.parameters["n_permutations"]
    names = [words for test, words in TESTS.items() if test in used]
    yield (
        f"Whether a variable goes with the distances was tested by {' and '.join(names)}, with "
        f"{counted(permutations, 'permutation')} each (all of them where there are no more)."
    )
    if study.comparison.bias == "corrected":
        yield (
            "Tests used Euclidean distances between the embeddings of samples in units of their own standard "
            "deviations, so that numbers of cells make no difference."
        )
    further = [words for test, words in FURTHER.items() if test in used]
    if further:
        yield f"Also tested were {_listed(further)}."
    held = dict.fromkeys(finding.adjusted for finding in done)
    for adjusted in held if any(held) else ():
        own = [finding.variable for finding in done if finding.adjusted == adjusted]
        tests = f"The {'test' if len(own) == 1 else 'tests'} of {_quoted(own)} {verb(len(own), 'was', 'were')}"
        if adjusted:
            yield (
                f"{tests} adjusted for {_quoted(adjusted)}: residuals of a linear model of these covariates were "
                "permuted (Freedman and Lane, 1983)."
            )
        else:
            yield f"{tests} not adjusted."
    tied = {finding.blocks for finding in done} & set(MOVES)
    if tied:
        block = repr(shortened(study.block))
        yield f"In permutations {' or '.join(MOVES[how].format(block=block) for how in sorted(tied))}."
    if len(done) > 1:
        yield (
            f"P-values of the {counted(len(done), 'variable')} were adjusted for the false discovery rate (Benjamini "
            f"and "
            "Hochberg, 1995)."
        )


def _contrast(study: Study) -> Iterator[str]:
    contrast = study.contrast
    if contrast is None:
        return
    rate = (
        ""
        if contrast.no_calls
        else (", each adjusted for the false discovery rate over types (Benjamini and Hochberg, 1995)")
    )
    yield (
        f"Cell types ({shortened(contrast.annotation)}) were compared between {contrast.n_samples[0]:,} and "
        f"{counted(contrast.n_samples[1], 'independent sample')} of {shortened(contrast.group)!r} and "
        f"{shortened(contrast.reference)!r}: "
        f"their numbers by studentised differences of shares and of log-ratios to {_reference(contrast)}, the less "
        "sure of the two counting, and their states by studentised distances between the diffused distributions of "
        f"their own cells, with {counted(contrast.n_permutations, 'permutation')}{rate}. The distance "
        "between the means of the two groups was divided among cell types by its witness function, and each part into "
        "abundance and state."
    )
    if contrast.no_calls:
        yield contrast.no_calls


def _reference(contrast: CellContrast) -> str:
    count = len(contrast.stable)
    return (
        f"the {counted(count, 'type')} that {verb(count, 'is', 'are')} stable"
        if count
        else "no reference, for no types are known to be stable"
    )


def _quoted(names: Sequence[str]) -> str:
    return _listed([repr(shortened(name)) for name in names])


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
