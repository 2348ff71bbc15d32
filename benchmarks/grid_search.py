"""A search over alpha, norm and the number of scales, with and without ``memory=`` of `DiffusionEMD`.

GridSearchCV fits 16 combinations of parameters on three folds, 48 fits in all, and the best on everything; nearest
neighbors, whose distances scikit-learn computes, or a support vector machine on LaplacianKernel classify. Both ways
run in turn in one process, in CPU seconds; the least of some rounds counts. The folder of the memory is new in every
round. The scores must be bit-identical.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings

import numpy as np
from provenance import add_record, write_table
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

import heatmover as hm

GRID = {
    "diffusionemd__alpha": [0.2, 0.3, 0.4, 0.5],
    "diffusionemd__norm": ["levels", "increments"],
    "diffusionemd__n_scales": [4, 8],
}
FOLDS = 3
WAYS = ("without memory", "with memory")
CLASSIFIERS = {
    "nearest neighbors": lambda: [KNeighborsClassifier(3, metric="manhattan", n_jobs=1)],
    "support vectors": lambda: [hm.LaplacianKernel(), SVC(kernel="precomputed")],
}


def search(graph: hm.Graph, memory: str | None, classifier: str) -> GridSearchCV:
    model = hm.DiffusionEMD(graph, memory=memory)
    return GridSearchCV(make_pipeline(model, *CLASSIFIERS[classifier]()), GRID, cv=FOLDS)


def race(n_measures: int, per_measure: int, classifier: str, rounds: int, seed: int) -> list[list[str]]:
    """Return one row of a table for each way."""
    data = hm.datasets.swiss_roll(n_measures, points_per_measure=per_measure, random_state=seed)
    graph, measures = hm.Graph.from_points(data.points), data.measures()
    middle = np.asarray(measures.masses @ data.points[:, 0])
    classes = middle > np.median(middle)
    seconds, scores = dict.fromkeys(WAYS, np.inf), {}
    for _ in range(rounds):
        for name in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                start = time.process_time()
                done = search(graph, folder if name == "with memory" else None, classifier).fit(measures, classes)
                seconds[name] = min(seconds[name], time.process_time() - start)
            scores[name] = done.cv_results_["mean_test_score"]
    assert all(np.array_equal(scores[WAYS[0]], other) for other in scores.values())
    fits = FOLDS * len(scores[WAYS[0]])
    shape = f"{n_measures:,} x {graph.n_points:,}"
    return [
        [name, classifier, shape, f"{fits}", f"{spent:.1f}", f"{seconds[WAYS[0]] / spent:.1f}", f"{rounds}"]
        for name, spent in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a small graph: seconds instead of minutes")
    parser.add_argument("--rounds", type=int, help="of which the least counts (3, small 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the data (0)")
    add_record(parser)
    args = parser.parse_args()
    warnings.simplefilter("ignore", hm.GraphWarning)
    sizes = [(30, 20)] if args.small else [(60, 30), (100, 100)]
    rounds = args.rounds or (1 if args.small else 3)
    for classifier in CLASSIFIERS:
        race(9, 20, classifier, 1, args.seed)  # what is compiled or loaded now is not counted
    rows = [row for size in sizes for each in CLASSIFIERS for row in race(*size, each, rounds, args.seed)]
    heads = ["", "classifier", "measures x points", "fits", "CPU seconds", "times as fast", "rounds"]
    note = (
        "GridSearchCV over four values of alpha, two norms and two numbers of scales, with three folds and a final "
        "fit of the best model. scikit-learn computes the distances of the nearest neighbors. Runs with and without "
        "memory= alternate, and the table shows the fastest round. The scores with and without memory= are "
        "bit-identical."
    )
    write_table("grid_search", heads, rows, note, folder=args.record)


if __name__ == "__main__":
    main()
