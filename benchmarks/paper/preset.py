"""From the paper to the defaults of heatmover, one step at a time, on the swiss roll.

100 measures of 100 points, 10,000 points in 10-D; the truth is the exact EMD on the unrolled sheet. The first rows are
the preset `DiffusionEMD.from_paper`; each further row changes one more parameter to its default. Means over some draws
of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from exhibit import Exhibit, exhibit, parser, stage

import heatmover as hm
from heatmover.statistics.metrics import precision_at_k, spearman

PRESETS = {
    "the paper, Algorithm 1": {},
    "the paper, Algorithm 1 at the centers, delta = 1e-6": {"compress": 1e-6},
    "the paper, Algorithm 4, delta = 1e-6": {"algorithm": "interpolative"},
}
# From Algorithm 1 to the defaults: what each row changes, on top of those before.
STEPS = {
    'K where two points have half mixed (`max_scale="auto"`)': {"max_scale": "auto"},
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


@dataclass(frozen=True)
class Score:
    """What one model gave on one draw."""

    max_scale: int
    n_features: int
    precision: float
    rank: float


def models(graph: hm.Graph) -> dict[str, hm.DiffusionEMD]:
    found = {name: hm.DiffusionEMD.from_paper(graph, **options) for name, options in PRESETS.items()}
    changed: dict = {}
    for name, step in STEPS.items():
        changed |= step
        found[name] = hm.DiffusionEMD.from_paper(graph).set_params(**changed)
    assert found[name].get_params() == hm.DiffusionEMD(graph).get_params()
    return found


def study(n_measures: int, seeds: range) -> dict[str, list[Score]]:
    scores: dict[str, list[Score]] = {}
    for seed in seeds:
        data = hm.datasets.swiss_roll(n_measures, random_state=seed)
        truth, graph, measures = data.exact_emd(), hm.Graph.from_points(data.points), data.measures()
        for name, model in models(graph).items():
            with stage(f"seed {seed}: {name}"):
                embedding = model.fit_transform(measures)
            distances = hm.pairwise_distances(embedding)
            scores.setdefault(name, []).append(
                Score(
                    model.max_scale_, embedding.shape[1], precision_at_k(truth, distances), spearman(truth, distances)
                )
            )
    return scores


def run(show: Exhibit, n_measures: int, n_seeds: int) -> None:
    scores = study(n_measures, range(show.seed, show.seed + n_seeds))
    rows = []
    for name, found in scores.items():
        mean = {key: float(np.mean([getattr(score, key) for score in found])) for key in Score.__annotations__}
        scales = sorted({score.max_scale for score in found})
        rows.append(
            [
                name if name in PRESETS else f"+ {name}",
                " or ".join(map(str, scales)),
                f"{mean['n_features']:,.0f}",
                f"{mean['precision']:.3f}",
                f"{mean['rank']:.3f}",
            ]
        )
    note = (
        f"Means over {n_seeds} draws of {n_measures} measures with {n_measures * 100:,} points in total. Each row "
        "with + adds one change to Algorithm 1 and keeps the changes of the rows with + above it."
    )
    show.table(["what", "K", "features", "P@10", "Spearman"], rows, note=note)


if __name__ == "__main__":
    arguments = parser(__doc__).parse_args()
    run(exhibit("preset", arguments), n_measures=30 if arguments.quick else 100, n_seeds=1 if arguments.quick else 3)
