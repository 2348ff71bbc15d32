"""Describe a study in words: findings table, cautions and methods text, for the report and the terminal; no files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from heatmover._base.words import counted, listed, percent, unused, verb
from heatmover.attribution.cell_types import LEVEL as DISCOVERIES
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.report.markup import shortened
from heatmover.statistics import DesignResult, TestResult
from heatmover.study.comparison import Comparison
from heatmover.study.contrasts import CellContrast
from heatmover.study.examination import Finding
from heatmover.study.study import Study
from heatmover.study.tables import table_text

# Heading of the cautions, in the report and in the terminal.
BEFORE = "Cautions"

# CSS classes of the badges in the report.
MARKS = {"untested": "untested", "undecided": "maybe", "significant": "yes", "suggestive": "maybe", "none": "no"}
NAMES = {"permanova": "PERMANOVA", "distance correlation": "distance correlation"}
BLOCKS = {
    "whole": "Whole blocks were permuted, so the sample size is the number of blocks, not the number of samples.",
    "within": "Values were permuted only within blocks, so differences between blocks have no influence.",
    "whole within": "Whole blocks were permuted within larger blocks. The number of whole blocks is the sample size.",
}
# Headings of the table of findings as CSV, where they differ from the keys of `row`. The page has these headings too.
CSV_HEADS = {
    "verdict": "result",
    "floor": "smallest_p",
    "nearest": "five_nearest_samples",
    "spread": "dispersion",
    "smooth": "roughness",
}
# With fewer samples in a group, one outlier can create or hide a difference.
FEW_IN_GROUP = 5
# With fewer permutations, p-values are coarse: with 19 permutations, the smallest possible p-value is 0.05.
FEW_PERMUTATIONS = 99
FEW_SAMPLES = 10

KERNELS = {
    "gaussian": "edges were weighted by a Gaussian kernel exp(-d^2/b^2) of fixed bandwidth b = {bandwidth:.3g}",
    "adaptive": "edges were weighted by a Gaussian kernel exp(-d^2/(b_i b_j)) whose bandwidth follows the local "
    "distance to neighbors (median {bandwidth:.3g})",
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
    "from 2^k to 2^(k+1) steps; the L1 distance after 2^K steps is added once",
    "coarsest": "the sum over k of 2^(-(K-k) alpha) times the L1 distance between the differences of the two densities "
    "from their values after 2^K steps; the L1 distance after 2^K steps is added once",
}
WAYS = {
    "chebyshev": "Chebyshev polynomials",
    "spectral": "Chebyshev polynomials at fine scales and leading eigenvectors at coarse scales",
    "interpolative": "Chebyshev polynomials at fine scales and nested interpolative decompositions at coarse scales",
    "exact": "a dense eigendecomposition",
}
TESTS = {
    "permanova": "PERMANOVA for groups (Anderson, 2001) with a Welch statistic (Alekseyenko, 2016)",
    "distance correlation": "distance correlation for numbers (Szekely et al., 2007)",
}
FURTHER = {
    "dispersion": "differences in dispersion by a robust PERMDISP on bounded distances within groups (Anderson, 2006)",
    "neighbor enrichment": "enrichment of a sample's group among its nearest samples",
    "smoothness": "smoothness over the graph of nearest samples (sum of squared differences between neighbors)",
}
GROUNDS = {
    "euclidean": "with costs along straight lines between points",
    "geodesic": "with costs along shortest paths in the graph",
    "cost": "with the given costs",
}
MOVES = {
    "whole": "samples of the same {block} were permuted together",
    "within": "values were permuted only within the same {block}",
    "whole within": "whole blocks of {block} were permuted within larger blocks",
}
CITED = {
    "Tong et al.": "Tong A, Huguet G, Natik A, MacDonald K, Kuchroo M, Coifman R, Wolf G, Krishnaswamy S. Diffusion "
    "Earth Mover's Distance and Distribution Embeddings. Proceedings of the 38th International Conference on Machine "
    "Learning (ICML), 2021.",
    "(Freedman and Lane, 1983)": "Freedman D, Lane D. A nonstochastic interpretation of reported significance levels. "
    "Journal of Business and Economic Statistics 1, 1983.",
    "(Anderson, 2001)": "Anderson MJ. A new method for non-parametric multivariate analysis of variance. Austral "
    "Ecology 26, 2001.",
    "(Alekseyenko, 2016)": "Alekseyenko AV. Multivariate Welch t-test on distances. Bioinformatics 32, 2016.",
    "(Anderson, 2006)": "Anderson MJ. Distance-based tests for homogeneity of multivariate dispersions. Biometrics 62, "
    "2006.",
    "Szekely et al.": "Szekely GJ, Rizzo ML, Bakirov NK. Measuring and testing dependence by correlation of distances. "
    "Annals of Statistics 35, 2007.",
    "(Smyth, 2004; limma-trend)": "Smyth GK. Linear models and empirical Bayes methods for assessing differential "
    "expression in microarray experiments. Statistical Applications in Genetics and Molecular Biology 3, 2004. Law CW "
    "et al. voom: precision weights unlock linear model analysis tools for RNA-seq read counts. Genome Biology 15, "
    "2014.",
    "Benjamini and Hochberg": "Benjamini Y, Hochberg Y. Controlling the false discovery rate. Journal of the Royal "
    "Statistical Society B 57, 1995.",
}


def row(finding: Finding) -> dict[str, Any]:
    """Return the row of one variable in the table of findings, in words."""
    answer = finding.answer
    return {
        "variable": finding.variable,
        "kind": _kind(finding),
        "samples": finding.n_samples,
        "missing": finding.n_missing,
        "verdict": {"mark": MARKS[finding.label[0]], "text": finding.label[1]},
        "test": "" if answer is None else NAMES[answer.test],
        "effect": finding.size,
        "interval": "" if finding.interval is None else "95% CI {} to {}".format(*map(percent, finding.interval)),
        "p": None if answer is None else answer.p_value,
        "q": finding.q_value,
        "floor": f"smallest possible: {finding.limit[1]:.3g}" if finding.undecided else "",
        "adjusted": finding.adjustment.removeprefix(", "),
        "nearest": _nearest(finding),
        "spread": _spread(finding),
        "smooth": _smooth(finding),
        "words": " ".join(part for part in (finding.describe(), BLOCKS.get(finding.blocks, "")) if part),
    }


def term_rows(design: DesignResult | None) -> list[dict[str, Any]]:
    """Return the rows of the table that lists the terms of a design; the last row is the residual."""
    if design is None:
        return []
    terms = [
        {
            "term": term.term,
            "freedom": term.degrees_of_freedom,
            "share": percent(min(max(term.r_squared, 0.0), 1.0)),
            "left": percent(min(max(term.partial_r_squared, 0.0), 1.0)),
            # If every block is a group of its own, permutations only rename groups, and there is no p-value.
            "p": term.p_value if term.smallest_p < 1 else None,
        }
        for term in design.terms
    ]
    total = design.total_sum_of_squares
    share = percent(max(design.residual_sum_of_squares / total, 0.0)) if total > 0 else ""
    rest = {"term": "residual", "freedom": design.residual_degrees_of_freedom, "share": share, "left": "", "p": None}
    return [*terms, rest]


def findings_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows from `row` as CSV."""
    columns = ["variable", "kind", "samples", "missing", "verdict", "test", "adjusted", "effect", "interval"]
    columns += ["p", "floor", "q", "nearest", "spread", "smooth"]
    named = [dict(one) | {"verdict": one["verdict"]["text"]} for one in rows]
    heads = [CSV_HEADS.get(name, name) for name in columns]
    return table_text(heads, [[one[name] for name in columns] for one in named])


def terms_table(design: DesignResult) -> str:
    """Return the table that lists the terms of a design as CSV, with all digits."""
    columns = ["degrees_of_freedom", "r_squared", "partial_r_squared", "p_value", "smallest_p"]
    return table_text(
        ["term", *columns], [[term.term, *(getattr(term, name) for name in columns)] for term in design.terms]
    )


def cautions(study: Study) -> tuple[str, ...]:
    """Return all cautions that readers should know before they trust the result."""
    return (*study.notes, *_advised(study), *_few(study))


def recorded(study: Study) -> dict[str, Any]:
    """Return the study as plain values for JSON, with the sentences of the page: headline, cautions and methods."""
    sentences = {"cautions": list(cautions(study)), "methods": list(methods(study))}
    return {"headline": study.headline(), **study.plain(), **sentences}


def _advised(study: Study) -> Iterator[str]:
    advice = study.comparison.diagnosis.advice
    if advice:
        yield f"The diagnosis of the graph has {counted(len(advice), 'remark')}; see below."


def _few(study: Study) -> Iterator[str]:
    for finding in study.findings:
        if finding.answer is not None:
            yield from (f"{shortened(finding.variable)!r}: {caution}" for caution in _doubts(finding, finding.answer))
    if study.findings and len(study.comparison.names) < FEW_SAMPLES:
        yield f"With {counted(len(study.comparison.names), 'sample')}, only a large difference can be significant."


def _doubts(finding: Finding, answer: TestResult) -> Iterator[str]:
    small = sum(size < FEW_IN_GROUP for size in finding.groups.values())
    if small:
        yield (
            f"{small} of {counted(len(finding.groups), 'group')} {verb(small, 'has', 'have')} fewer than "
            f"{FEW_IN_GROUP} samples; one outlier can create or hide a difference."
        )
    possible = len(answer.null)
    if possible < FEW_PERMUTATIONS:
        yield (
            f"only {counted(possible, 'permutation')} {verb(possible, 'exists', 'exist')}, so the smallest possible "
            f"p-value is {answer.smallest_p:.2g}."
        )
    if finding.sure and finding.dispersion():
        yield finding.dispersion(figures=False)


def _kind(finding: Finding) -> str:
    return counted(len(finding.groups), "group") if finding.kind == "groups" else "number"


def _nearest(finding: Finding) -> str:
    test = finding.tests.get("neighbor enrichment")
    if test is None:
        return ""
    times = f", {test.effect:.2g} times as many as by chance" if np.isfinite(test.effect) else ""
    return f"{100 * test.statistic:.0f}% in the same group{times} ({finding.p_and_q('neighbor enrichment')})"


def _spread(finding: Finding) -> str:
    test = finding.tests.get("dispersion")
    if test is None:
        return ""
    if not finding.significant("dispersion"):
        return f"no evidence of a difference ({finding.p_and_q('dispersion')})"
    wider = f"largest {test.effect:.2g} times the smallest" if np.isfinite(test.effect) else "zero in one group"
    return f"unequal: {wider} ({finding.p_and_q('dispersion')})"


def _smooth(finding: Finding) -> str:
    test = finding.tests.get("smoothness")
    if test is None or not np.isfinite(test.statistic):
        return ""
    return f"{test.statistic:.2f} (chance: 1, p = {test.p_value:.2g})"


def methods(study: Study) -> tuple[str, ...]:
    """Describe the methods in one or two paragraphs: the computation of distances, and the tests if there were any."""
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
    tests = " ".join((*_tests(study), *_contrast(study), *_cell_calls(study)))
    return (distances, tests) if tests else (distances,)


def references(paragraphs: tuple[str, ...]) -> list[str]:
    """Return the references that the paragraphs cite."""
    text = " ".join(paragraphs)
    return [reference for mark, reference in CITED.items() if mark in text]


def _samples(study: Study) -> str:
    comparison, source = study.comparison, study.record.input
    dimensions = ""
    if source:
        named = listed(source["dimensions"])
        dimensions = f", described by {counted(len(source['dimensions']), 'feature')} ({named}),"
    left = f" Other columns were {unused(source['unused'])}." if source and source.get("unused") else ""
    drawn = "" if comparison.drawn is None else f" {comparison.drawn}. The draw was random, without replacement."
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
        f" The resulting distances have a Spearman correlation of {agreement.spearman:.3f} with distances on a graph "
        f"over {counted(agreement.n_points, 'cell')}."
        if np.isfinite(agreement.spearman)
        else ""
    )
    yield (
        f"The cells were approximated by {counted(agreement.n_landmarks, 'k-means center')}. The centers leave "
        f"{percent(agreement.unexplained)} of the variance unexplained.{correlation}"
    )


def _graph(study: Study) -> str:
    how = study.comparison.graph.construction
    nodes = "cell" if study.comparison.landmarks is None else "center"
    if how.get("source") == "points":
        kernel = KERNELS[how["kernel"]].format(bandwidth=how["bandwidth"] or 0.0)
        metric = METRIC_NAMES[how.get("metric", "euclidean")]
        near = (
            f"its {counted(how['n_neighbors'], 'nearest neighbor')} ({metric} distance)"
            if how["n_neighbors"]
            else f"all {nodes}s within a fixed radius"
        )
        copies = (
            f" Identical {nodes}s share a node ({counted(how['n_copies'], 'duplicate')})."
            if how.get("n_copies")
            else ""
        )
        return f"Every {nodes} was connected to {near}, and {kernel}.{copies}"
    if how.get("source") == "distances":
        kernel = KERNELS[how["kernel"]].format(bandwidth=how["bandwidth"] or 0.0)
        return f"Every {nodes} was connected to its nearest neighbors in precomputed distances, and {kernel}."
    if how.get("source") == "grid":
        return f"The graph was a grid of {' x '.join(map(str, how['shape']))} nodes."
    return f"The graph has {counted(study.comparison.graph.n_points, 'node')}; its affinities were given by the user."


def _diffusion(comparison: Comparison) -> str:
    model = comparison.model
    walk = "the random walk on this graph" if model.density == "adjoint" else "averaging over neighbors on this graph"
    return (
        f"The distribution of each sample was diffused by {walk} (each affinity divided by the degrees of its two "
        f"nodes) for 2^k steps, k = {int(model.scales_[0])} to K = {int(model.max_scale_)}. The distance between two "
        f"samples is {NORMS[model.norm]}, {_weights(model)}. Choice of K: {comparison.max_scale_reason}."
    )


def _weights(model: DiffusionEMD) -> str:
    if model.weights is None:
        return f"with alpha = {model.alpha:g}"
    weights = ", ".join(f"{weight:.3g}" for weight in np.asarray(model.weights, dtype=np.float64))
    return f"where the weights ({weights}, finest scale first) replace the powers of two"


def _units(comparison: Comparison) -> Iterator[str]:
    fit = comparison.calibration
    if fit is None:
        return
    yield (
        "K, the weights of the scales and an increasing curve that converts distances to real units were fitted "
        f"to {len(fit.pairs)} exact Earth Mover's Distances ({GROUNDS[fit.ground]}). In nested cross-validation, the "
        f"median error of held-out pairs was {100 * fit.median_error:.1f}%, and the 90th percentile of the error was "
        f"{100 * fit.error_90:.1f}%."
    )


def _noise(comparison: Comparison) -> Iterator[str]:
    noise = comparison.uncertainty
    if noise is not None and comparison.bias == "corrected":
        yield (
            "The embeddings of the samples were shrunk toward their center by the share of variance that is due to "
            "sampling noise (constrained empirical Bayes). This share was estimated separately for each scale and for "
            "each direction with clear differences."
        )
    if noise is not None and comparison.intervals is not None:
        yield (
            f"Confidence intervals of distances ({100 * noise.confidence:g}%) come from {noise.n_bootstrap:,} "
            "bootstrap replicates of cells."
        )


def _numerics(study: Study) -> str:
    model = study.comparison.model
    kept = int(model.n_regions_.sum())
    compact = (
        ""
        if model.compress_ is None
        else f" The embedding keeps the densities at {counted(kept, 'point')}, counted over all scales."
        if model.compress_by == "centers"
        else f" The embedding keeps the masses of {counted(kept, 'region')} of points, counted over all scales."
    )
    return (
        f"Densities were computed by {WAYS[model.method_]}, each with a certified relative error of at most "
        f"{float(np.max(model.error_bound_)):.1g}.{compact} The random seed was "
        f"{study.record.parameters['random_state']}."
    )


def _batches(study: Study) -> Iterator[str]:
    batch = study.record.parameters.get("align_batch")
    if batch is None:
        return
    anchors = study.record.parameters.get("anchors")
    source, held = "sample", ", with the tested variables held fixed"
    if anchors is not None:
        source, held = f"anchor sample ({shortened(anchors)})", ""
    yield (
        f"First, the effect of each batch ({shortened(batch)}) was subtracted from its cells. Batch effects were "
        f"estimated by least squares from the mean of each {source} in each cluster of cells{held}."
    )


def _tests(study: Study) -> Iterator[str]:
    done = [finding for finding in study.findings if finding.answer is not None]
    if not done:
        return
    used = {name for finding in done for name in finding.tests}
    permutations = study.record.parameters["n_permutations"]
    names = [words for test, words in TESTS.items() if test in used]
    yield (
        f"Associations of sample metadata with the distances were tested by {' and '.join(names)}, with "
        f"{counted(permutations, 'permutation')} each (exhaustive where fewer permutations exist)."
    )
    if study.comparison.bias == "corrected":
        yield (
            "Tests used Euclidean distances between embeddings that were divided by their standard errors, so that the "
            "number of cells has no influence."
        )
    if any(finding.interval is not None for finding in done):
        units = f"the blocks of {shortened(study.block)!r}" if study.block else "samples"
        yield f"Confidence intervals of R2 were computed by a bootstrap over {units}."
    further = [words for test, words in FURTHER.items() if test in used]
    if further:
        yield f"Further tests: {_listed(further)}."
    held = dict.fromkeys(finding.adjusted for finding in done)
    for adjusted in held if any(held) else ():
        own = [finding.variable for finding in done if finding.adjusted == adjusted]
        tests = f"The {'test' if len(own) == 1 else 'tests'} of {_quoted(own)} {verb(len(own), 'was', 'were')}"
        if adjusted:
            yield (
                f"{tests} adjusted for {_quoted(adjusted)}: residuals of a linear model of the covariates were "
                "permuted (Freedman and Lane, 1983)."
            )
        else:
            yield f"{tests} not adjusted for covariates."
    tied = {finding.blocks for finding in done} & set(MOVES)
    if tied:
        block = repr(shortened(study.block))
        moves = " or ".join(MOVES[how].format(block=block) for how in sorted(tied))
        yield f"In the permutations, {moves}{', depending on the variable' if len(tied) > 1 else ''}."
    if len(done) > 1:
        yield (
            f"P-values of the {counted(len(done), 'variable')} were adjusted for the false discovery rate (Benjamini "
            "and Hochberg, 1995)."
        )


def _contrast(study: Study) -> Iterator[str]:
    contrast = study.contrast
    if contrast is None:
        return
    rate = (
        ""
        if contrast.no_calls
        else " and were adjusted for the false discovery rate over types and contrasts (Benjamini and Hochberg, 1995)"
    )
    sides = (
        f"along {shortened(contrast.variable)!r} in {counted(sum(contrast.n_samples), 'independent sample')}"
        if contrast.trend
        else f"between {counted(contrast.n_samples[0], 'independent sample')} of {shortened(contrast.group)!r} and "
        f"{contrast.n_samples[1]:,} of {shortened(contrast.reference)!r}"
    )
    held = f" with {_quoted(contrast.adjusted)} held fixed (Freedman and Lane, 1983)" if contrast.adjusted else ""
    yield (
        f"Cell types ({shortened(contrast.annotation)}) were compared {sides}{held}. Abundances were compared by "
        f"studentized differences of {_measured(contrast)}. States were compared by studentized distances between the "
        f"diffused distributions of the cells of each type. The p-values come from "
        f"{counted(contrast.n_permutations, 'permutation')}{rate}. The distance between the group means was divided "
        "among cell types by the witness function of this distance, and each contribution was divided into abundance "
        "and state."
    )
    if contrast.abundance_share is not None:
        yield (
            "The share of abundance in the distance is corrected for sampling noise: the witness was computed without "
            "the samples on which it was evaluated, in folds. The 95% interval is a bootstrap over samples."
        )
    if len(study.contrasts) > 1:
        yield f"{counted(len(study.contrasts), 'contrast')} of cell types were tested in the same way."
    if study.omnibus:
        yield (
            "All groups together were tested by the largest studentized difference between a group and all other "
            "samples, with common permutations."
        )
    if contrast.drivers is not None:
        yield contrast.drivers.describe()
    if contrast.no_calls:
        yield contrast.no_calls


def _cell_calls(study: Study) -> Iterator[str]:
    calls = study.cell_calls
    if calls is None:
        return
    between = f"along {shortened(calls.variable)!r}"
    if not calls.trend:
        between = f"between {shortened(calls.groups[0])!r} and {shortened(calls.groups[1])!r}"
    adjusted = f", adjusted for {_quoted(calls.adjusted)}" if calls.adjusted else ""
    yield (
        f"Without cell types, the densities of the samples around every cell were compared {between}{adjusted}, as "
        "studentized log-ratios with moderated variances. The null distribution comes from "
        f"{counted(calls.n_permutations, 'permutation')} of the samples and all cells; the false discovery rate over "
        f"cells is {DISCOVERIES:.0%}."
    )


def _measured(contrast: CellContrast) -> str:
    count = len(contrast.stable)
    if contrast.alternative:
        return (
            "shares and of log-ratios to each of two sets of reference types that serve nearly equally well, and the "
            "largest of the three p-values was used"
        )
    return (
        f"shares and of log-ratios to {counted(count, 'reference type')} (the types whose mutual ratios change least), "
        "and the larger of the two p-values was used"
        if count
        else "shares, because no reference types could be identified"
    )


def _quoted(names: Sequence[str]) -> str:
    return _listed([repr(shortened(name)) for name in names])


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
