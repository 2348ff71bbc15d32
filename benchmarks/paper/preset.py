"""From the paper to the defaults of heatmover, one step at a time, on the swiss roll, next to the authors' package.

100 and 40 measures of 100 points in 10-D; the truth is the exact EMD on the unrolled sheet. The first rows are
MultiscaleEMD, the later package of the paper's authors, on the same graph. The next rows are the preset
`DiffusionEMD.from_paper` and its options. Each row with + changes one more parameter of Algorithm 1 to its default.
Means over some draws of the data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from exhibit import Exhibit, exhibit, parser, stage

import heatmover as hm
from heatmover.statistics.metrics import precision_at_k, spearman

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from contenders import RIVAL_PACKAGES, multiscale_embedding
from rivals import installed

PRESETS = {
    "the paper, Algorithm 1": {},
    'the paper, Algorithm 1, `density="adjoint"`': {"density": "adjoint"},
    "the paper, all K + 1 terms of Eq. 7 (`n_scales=None`)": {"n_scales": None},
    "the paper, K by Lemma 1 (`max_scale=0.25`)": {"max_scale": 0.25},
    "the paper, Algorithm 1 at the centers, delta = 1e-6": {"compress": 1e-6},
    "the paper, Algorithm 4, delta = 1e-6": {"algorithm": "interpolative"},
}
# Number of terms of the polynomials of MultiscaleEMD: with 200 terms its powers are exact to three digits.
ORDERS = {"MultiscaleEMD on this graph, its defaults": 32, "MultiscaleEMD on this graph, polynomials of order 200": 200}
# Largest scales of the paper's Fig. 5a, and beyond.
SCALES = (8, 9, 10, 11, 12, 13, 14, 16)
# From Algorithm 1 to the defaults: what each row changes, in addition to the rows before.
STEPS = {
    'mass diffuses (`density="adjoint"`)': {"density": "adjoint"},
    'densities are compared, not their differences (`norm="levels"`)': {"norm": "levels"},
    "`alpha=0.5`": {"alpha": 0.5},
    "all scales that carry weight (`n_scales=None`)": {"n_scales": None},
    'a tolerance of 1e-3 (`tol`, `dtype="auto"`, `method="auto"`): the defaults': {
        "tol": 1e-3,
        "dtype": "auto",
        "method": "auto",
        "compress": None,
        "compress_by": "regions",
    },
}

# A function of the graph and the measures that returns an embedding and K.
Embed = Callable[[hm.Graph, hm.Measures], tuple[np.ndarray, int]]


@dataclass(frozen=True)
class Score:
    """What one method gave on one draw."""

    max_scale: int
    n_features: int
    precision: float
    rank: float


def by_package(graph: hm.Graph, measures: hm.Measures, *, order: int) -> tuple[np.ndarray, int]:
    """Embed with MultiscaleEMD, whose default of K is 10."""
    return multiscale_embedding(graph.affinity, measures.masses.toarray().T, cheb_order=order), 10


def by_model(graph: hm.Graph, measures: hm.Measures, *, preset: dict, changed: dict) -> tuple[np.ndarray, int]:
    model = hm.DiffusionEMD.from_paper(graph, **preset).set_params(**changed)
    return model.fit_transform(measures), model.max_scale_


def methods() -> dict[str, Embed]:
    found: dict[str, Embed] = {}
    if installed("MultiscaleEMD", "MultiscaleEMD"):
        found |= {name: partial(by_package, order=order) for name, order in ORDERS.items()}
    found |= {name: partial(by_model, preset=options, changed={}) for name, options in PRESETS.items()}
    changed: dict = {}
    for name, step in STEPS.items():
        changed = changed | step
        found[f"+ {name}"] = partial(by_model, preset={}, changed=changed)
    assert hm.DiffusionEMD.from_paper().set_params(**changed).get_params() == hm.DiffusionEMD().get_params()
    return found


def study(n_measures: int, seeds: range) -> dict[str, list[Score]]:
    scores: dict[str, list[Score]] = {}
    for seed in seeds:
        data = hm.datasets.swiss_roll(n_measures, random_state=seed)
        truth, graph, measures = data.exact_emd(), hm.Graph.from_points(data.points), data.measures()
        for name, embed in methods().items():
            with stage(f"{n_measures} measures, seed {seed}: {name}"):
                embedding, max_scale = embed(graph, measures)
            distances = hm.pairwise_distances(np.ascontiguousarray(embedding))
            found = precision_at_k(truth, distances), spearman(truth, distances)
            scores.setdefault(name, []).append(Score(max_scale, embedding.shape[1], *found))
    return scores


def cells(scores: list[Score]) -> list[str]:
    """Return K, and the means of the number of features, P@10 and Spearman."""
    scales = sorted({score.max_scale for score in scores})
    _, features, precision, rank = np.mean([astuple(score) for score in scores], axis=0)
    return [" or ".join(map(str, scales)), f"{features:,.0f}", f"{precision:.3f}", f"{rank:.3f}"]


def run(show: Exhibit, n_measures: int, n_few: int, n_seeds: int) -> None:
    seeds = range(show.seed, show.seed + n_seeds)
    many, few = study(n_measures, seeds), study(n_few, seeds)
    rows = []
    for name, scores in many.items():
        max_scale, *fewer = cells(few[name])
        rows.append([name, *cells(scores), max_scale, *fewer[1:]])
    note = (
        f"Means over {n_seeds} draws of {n_measures} measures with {n_measures * 100:,} points in total; the columns "
        f'"{n_few}" are for {n_few} measures with {n_few * 100:,} points. Each row with + adds one change to '
        "Algorithm 1 and keeps the changes of the rows with + above it."
    )
    heads = ["what", "K", "features", "P@10", "Spearman", f"{n_few}: K", f"{n_few}: P@10", f"{n_few}: Spearman"]
    show.table(heads, rows, note=note, packages=("numpy", "scipy", "scikit-learn", "numba", "POT", *RIVAL_PACKAGES))


def stability(show: Exhibit, n_measures: int, n_seeds: int) -> None:
    """The paper's Fig. 5a with polynomials of low order, of high order, and exact: is accuracy stable for large K?"""
    scores: dict[int, list[list[float]]] = {}
    for seed in range(show.seed, show.seed + n_seeds):
        data = hm.datasets.swiss_roll(n_measures, random_state=seed)
        truth, graph = data.exact_emd(), hm.Graph.from_points(data.points)
        measures = data.measures()
        masses = measures.masses.toarray().T
        for max_scale in SCALES:
            with stage(f"seed {seed}: K = {max_scale}"):
                embeddings = [
                    multiscale_embedding(graph.affinity, masses, cheb_order=order, max_scale=max_scale)
                    for order in ORDERS.values()
                ]
                model = hm.DiffusionEMD.from_paper(graph, max_scale=max_scale).set_params(tol=1e-4)
                embeddings.append(model.fit_transform(measures))
            found: list[float] = []
            for embedding in embeddings:
                distances = hm.pairwise_distances(np.ascontiguousarray(embedding))
                found += [precision_at_k(truth, distances), spearman(truth, distances)]
            scores.setdefault(max_scale, []).append(found)
    rows = [[str(k), *(f"{value:.3f}" for value in np.mean(found, axis=0))] for k, found in scores.items()]
    columns = [*(f"order {order}" for order in ORDERS.values()), "the preset"]
    heads = ["K", *(f"{score}, {column}" for column in columns for score in ("P@10", "Spearman"))]
    note = (
        "MultiscaleEMD with polynomials of the stated order, and the preset, whose powers are exact to 1e-4, all with "
        f"six scales on one graph. Means over {n_seeds} draws of {n_measures} measures."
    )
    packages = ("numpy", "scipy", "numba", "POT", *RIVAL_PACKAGES)
    show.table(heads, rows, note=note, suffix="_stability", packages=packages)


if __name__ == "__main__":
    arguments = parser(__doc__).parse_args()
    shown = exhibit("preset", arguments)
    run(shown, *((30, 20, 1) if arguments.quick else (100, 40, 10)))
    if installed("MultiscaleEMD", "MultiscaleEMD"):
        stability(shown, *((30, 1) if arguments.quick else (100, 2)))
