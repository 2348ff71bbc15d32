"""Does the present code still compute what it computed when a table was made?

A panel of small computations goes through every part of the package whose figures are recorded. Its numbers at a commit
are kept in docs/results/panel.json. A table stands as long as its script and the numbers of the parts it rests on are
those of the commit that made it: rerunning it would show the same. Times are another matter; versions.py compares them.

    python benchmarks/panel.py                    # the present code beside the commits of all tables
    python benchmarks/panel.py a502841 5eb49fc    # compute and keep the numbers of these commits
    python benchmarks/panel.py HEAD               # and those of the present commit
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from provenance import ROOT

KEPT = ROOT / "docs" / "results" / "panel.json"
# Sums in another order differ by rounding of float32: some 1e-7, and 1.3e-5 after the 2^14 steps of the line. A change
# of what is computed is larger, and half a unit in the fourth digit, the last that most tables show, is 5e-5 and more.
TOLERANCE = 3e-5

# Runs with the code of any commit, so that it knows the public interface alone. What a commit does not have is left
# out, and counts as changed.
RUN = '''
import json, sys, tempfile, warnings
from pathlib import Path
import numpy as np
import heatmover as hm

warnings.simplefilter("ignore")
SHAPES = ("line", "ring", "swiss_roll", "s_curve", "sphere", "torus", "gaussians", "star")


def told(values):
    """A few numbers that change when any of the values does."""
    flat = np.asarray(values, dtype=float).ravel()
    drawn = np.random.default_rng(0).normal(size=(3, flat.size))
    return [float(x) for x in (*(drawn @ flat), flat.sum())]


def made(shape, n=12, points=40):
    return getattr(hm.datasets, shape)(n, points_per_measure=points, random_state=1)


def distances():
    for shape in SHAPES:
        data = made(shape, 20)
        graph = hm.Graph.from_points(data.points, random_state=0)
        yield shape, hm.pairwise_distances(hm.DiffusionEMD(graph, random_state=0).fit_transform(data.measures()))
        yield f"{shape}, truth", data.exact_emd()
    data = made("swiss_roll", 20)
    graph, measures = hm.Graph.from_points(data.points, random_state=0), data.measures()
    for options in (
        {"method": "exact"}, {"method": "chebyshev"}, {"method": "spectral"},
        {"method": "interpolative"}, {"norm": "increments"}, {"norm": "coarsest"}, {"density": "function"},
        {"compress": 0.2}, {"n_scales": 6}, {"alpha": 0.2, "max_scale": 7},
    ):
        model = hm.DiffusionEMD(graph, random_state=0, **options)
        yield str(options), hm.pairwise_distances(model.fit_transform(measures))
    yield "paper", hm.pairwise_distances(hm.DiffusionEMD.from_paper(graph).fit_transform(measures))
    embedding = hm.DiffusionEMD(graph, random_state=0).fit_transform(measures)
    yield "nearest", np.concatenate([np.asarray(part, dtype=float) for part in hm.nearest(embedding, k=3)])


def baselines():
    sys.path.append(str(Path(hm.__file__).parents[2] / "benchmarks" / "paper"))
    try:
        from alternatives import METHODS
    except ImportError:  # a commit at which they were all in the package
        METHODS = hm.baselines.METHODS

    for shape in ("sphere", "ring"):
        data = made(shape, 8, 30)
        graph = hm.Graph.from_points(data.points, random_state=0)
        for name, method in METHODS.items():
            ground = graph if name in ("exact_emd", "sinkhorn", "convolutional_sinkhorn") else data.points
            yield f"{name}, {shape}", method(ground, data.measures())


def calibration():
    data = made("swiss_roll", 20)
    graph = hm.Graph.from_points(data.points, random_state=0)
    model = hm.DiffusionEMD(graph, random_state=0).fit(data.measures())
    for ground in ("euclidean", "geodesic"):
        found = hm.calibrate(model, data.measures(), points=data.points, ground=ground, n_pairs=40, random_state=0)
        yield ground, hm.pairwise_distances(found.model.transform(data.measures()))


def cohort(sizes=(15, 30, 60, 90)):
    rng = np.random.default_rng(3)
    sizes = np.tile(sizes, 4)
    labels = np.repeat([f"s{i:02d}" for i in range(len(sizes))], sizes)
    shift = np.repeat(np.arange(len(sizes)) % 2, sizes)
    kinds = rng.integers(3, size=len(labels))
    points = rng.normal(size=(len(labels), 3)) + 3 * kinds[:, None] + 0.5 * shift[:, None]
    return points, labels, kinds, np.where(np.arange(len(sizes)) % 2, "case", "control")


def comparison():
    points, labels, _, _ = cohort()
    yield "compared", hm.compare(points, labels, n_neighbors=15).distances
    yield "landmarks", hm.compare(points, labels, n_neighbors=15, landmarks=200).distances


def noise():
    points, labels, _, groups = cohort()
    found = hm.compare(points, labels, n_neighbors=15, bias="corrected", n_bootstrap=50)
    yield "corrected", found.distances
    yield "limits", np.stack([found.uncertainty.lower, found.uncertainty.upper])


def noise_tests():
    points, labels, _, groups = cohort()
    yield "tests", hm.compare(points, labels, n_neighbors=15, bias="corrected").test_distances


def statistics():
    points, labels, _, groups = cohort()
    matrix, blocks = hm.compare(points, labels, n_neighbors=15).distances, np.arange(16) // 2
    for name in ("permanova", "dispersion", "neighbor_enrichment"):
        for tied in (None, blocks):
            result = getattr(hm.statistics, name)(matrix, groups, blocks=tied, n_permutations=199)
            yield f"{name}, {tied is None}", [result.statistic, result.effect, result.p_value]
    result = hm.statistics.distance_correlation(matrix, np.sin(np.arange(16)), n_permutations=199)
    yield "distance correlation", [result.statistic, result.effect, result.p_value]


def attribution():
    points, labels, kinds, groups = cohort()
    compared = hm.compare(points, labels, n_neighbors=15)
    masses = compared.measures.masses
    found = hm.explain(compared.model, masses[[0]], masses[[1]])
    yield "pair", found.contributions
    contrast = hm.explain_groups(compared.model, compared.measures, groups, n_permutations=99)
    yield "groups", np.concatenate([contrast.scores, contrast.p_values])


def gradients():
    import torch
    points, labels, _, _ = cohort()
    compared = hm.compare(points, labels, n_neighbors=15)
    loss = hm.differentiable.DiffusionEMDLoss(compared.graph, max_scale=5)
    rows = torch.as_tensor(compared.measures.masses[:2].toarray(), dtype=torch.float64, device="cpu")
    rows.requires_grad_(True)
    value = loss(rows[:1], rows[1:])
    value.sum().backward()
    yield "loss", value.detach().numpy()
    yield "gradient", rows.grad.numpy()


def pieces():
    points, labels, kinds, groups = cohort()
    of = dict(zip(sorted(set(labels)), groups))
    rows = [f"{s},{of[s]},{x},{y},{z}" for s, (x, y, z) in zip(labels, points)]
    path = Path(tempfile.mkdtemp()) / "cells.csv"
    path.write_text("\\n".join(["sample,condition,x,y,z", *rows]))
    read = hm.read_cohort(path, sample_key="sample")
    yield "in pieces", hm.scale.compare_cohort(read, memory="200MB", landmarks=150, n_neighbors=15).distances


parts = {}
every = distances, baselines, calibration, comparison, noise, noise_tests, statistics, attribution, gradients, pieces
for part in every:
    parts[part.__name__] = {}
    try:
        for name, values in part():
            parts[part.__name__][name] = told(values)
    except Exception as error:
        print(f"{part.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
        parts[part.__name__]["missing"] = []
print(json.dumps(parts))
'''

Panel = Mapping[str, Mapping[str, Sequence[float]]]


def compute(source: Path) -> Panel:
    """Return the panel of the package in a folder."""
    settings = {"PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=os.environ | settings,
        cwd=source,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])  # other packages may print as well


def compute_at(commit: str) -> Panel:
    """Return the panel of the package at a commit."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "package"
        place.mkdir()
        packed = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit, "src", "benchmarks"], stdout=subprocess.PIPE, check=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", str(place)], input=packed, check=True)
        return compute(place)


def short(commit: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=7", commit], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@cache
def kept() -> dict[str, Any]:
    """Return what is kept: ``parts``, distinct numbers of parts, and ``commits``, which of them each commit has."""
    if KEPT.exists():
        return json.loads(KEPT.read_text(encoding="utf-8"))
    return {"parts": {}, "commits": {}}


def keep(commit: str, panel: Panel) -> None:
    """Keep the panel of a commit; parts that are as at another commit are kept once."""
    book = kept()
    book["commits"][commit] = {part: _place(book["parts"].setdefault(part, []), rows) for part, rows in panel.items()}
    book["commits"] = dict(sorted(book["commits"].items()))
    KEPT.write_text(json.dumps(book, indent=1) + "\n", encoding="utf-8")


def _place(known: list[Any], rows: Mapping[str, Sequence[float]]) -> int:
    short_rows = {name: [float(f"{value:.7g}") for value in values] for name, values in rows.items()}
    for number, other in enumerate(known):
        if same(short_rows, other):
            return number
    known.append(short_rows)
    return len(known) - 1


def same(rows: Mapping[str, Sequence[float]], others: Mapping[str, Sequence[float]]) -> bool:
    """Whether two panels of a part have the same names and, up to rounding, the same numbers."""
    return rows.keys() == others.keys() and all(_close(rows[name], others[name]) for name in rows)


def _close(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    if len(ours) != len(theirs):
        return False
    # The numbers of a row are sums of the same values, so that they have one magnitude.
    size = max(map(abs, (*ours, *theirs)), default=0.0)
    return bool(np.all(np.abs(np.subtract(ours, theirs)) <= TOLERANCE * size))


def differs(commit: str, parts: Sequence[str], present: Panel | None = None) -> list[str]:
    """Return the parts whose numbers are not those of a commit; all of them if its panel is not kept.

    Parameters
    ----------
    present
        The panel of the present code; None for the one that is kept of the commit it was last computed at.
    """
    book = kept()
    if commit not in book["commits"]:
        return list(parts)
    now = newest() if present is None else present
    then = book["commits"][commit]
    return [part for part in parts if part not in then or not same(book["parts"][part][then[part]], now.get(part, {}))]


@cache
def newest() -> Panel:
    """Return the panel of the present code."""
    return compute(ROOT)


def meaning(text: str, part: str | None = None) -> str:
    """Return what code says, without comments, docstrings and positions; of a part, only what its function needs."""
    tree = ast.parse(text)
    tree.body = _needed(tree.body, part)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            first = body[0].value
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                del body[0]
    return ast.dump(tree)


def _needed(statements: list[ast.stmt], part: str | None) -> list[ast.stmt]:
    """Return the statements that define a function and all that it names, directly or not; all if there is none."""
    defined = {name: statement for statement in statements for name in _names(statement)}
    if part is None or part not in defined:
        return statements
    wanted, asked = set[str](), [part]
    while asked:
        name = asked.pop()
        if name in defined and name not in wanted:
            wanted.add(name)
            asked += [node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)]
    return [one for one in statements if wanted & set(_names(one))]


def _names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a script defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    if isinstance(statement, ast.Assign):
        return [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def script_changed(script: Path, commit: str, part: str | None = None) -> bool:
    """Whether a script, or the function of that name in it, does something else than it did at a commit."""
    path = script.resolve().relative_to(ROOT)
    done = subprocess.run(["git", "-C", str(ROOT), "show", f"{commit}:{path}"], capture_output=True, check=False)
    if done.returncode != 0:
        return True
    return meaning(done.stdout.decode(), part) != meaning(script.read_text(encoding="utf-8"), part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", help="commits whose panels to compute and keep")
    args = parser.parse_args()
    for commit in args.commits:
        print(f"{commit} ...", flush=True)
        keep(short(commit), compute_at(commit))
    if not args.commits:
        parts = list(newest())
        for commit in kept()["commits"]:
            print(commit, "differs in:", ", ".join(differs(commit, parts)) or "nothing")


if __name__ == "__main__":
    main()
