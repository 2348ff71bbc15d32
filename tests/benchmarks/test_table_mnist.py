"""The rows of Table 1 are what its methods give: plain nearest neighbors in the distances of the package."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import heatmover as hm
from heatmover.statistics.metrics import precision_at_k, spearman
from heatmover.transport.baselines import METHODS

N_IMAGES, N_DIGITS, SEED = 160, 40, 3


@pytest.fixture
def table(script):
    return script("table_mnist")


@pytest.fixture
def task(table):
    images, labels = load_digits(return_X_y=True)
    images, labels = images[:N_IMAGES].reshape(-1, 8, 8), labels[:N_IMAGES]
    data = table.spherical_mnist(images)
    digits = np.arange(N_DIGITS)
    # Any distances may stand for the truth; those of pixels take no time.
    truth = table.euclidean(*2 * [images[:N_DIGITS].reshape(N_DIGITS, -1)])
    return table.Task(images, labels, data, digits, truth, SEED, table.Clock())


def accuracy(table, task, distances, split):
    train, test = table.halves(N_IMAGES, SEED, split)
    nearest = train[distances[np.ix_(test, train)].argmin(axis=1)]
    return 100 * (task.labels[nearest] == task.labels[test]).mean()


@pytest.mark.parametrize(
    ("name", "delta", "rule", "words"),
    [
        ("paper_1e-6", 1e-6, "auto", "auto"),
        ("paper_1e-3", 1e-3, "auto", "auto"),
        ("paper_lemma_1", 1e-6, 0.25, "Lemma 1"),
    ],
)
def test_algorithm_4_is_the_preset(table, task, monkeypatch, name, delta, rule, words):
    asked, preset = [], hm.DiffusionEMD.from_paper
    monkeypatch.setattr(
        hm.DiffusionEMD, "from_paper", lambda graph, **options: asked.append(options) or preset(graph, **options)
    )
    (row,) = task.rows(name, 2, [])
    assert [options["algorithm"] for options in asked] == ["interpolative"]  # Algorithm 1 has the same figures
    graph = hm.Graph.from_points(task.data.points)
    model = preset(graph, algorithm="interpolative", compress=delta, max_scale=rule)
    distances = hm.pairwise_distances(model.fit_transform(task.data.masses))
    some = distances[:N_DIGITS, :N_DIGITS]
    assert row.precision == pytest.approx(precision_at_k(task.truth, some, k=10), abs=0.01)
    assert row.spearman == pytest.approx(spearman(task.truth, some), abs=1e-6)
    assert row.accuracies == pytest.approx([accuracy(table, task, distances, split) for split in (0, 1)], abs=1.3)
    assert f"delta {delta:g}, max_scale {model.max_scale_} ({words})" in row.label


@pytest.mark.parametrize("n_trees", [1, 10])
@pytest.mark.parametrize(
    ("method", "options"), [("cluster_tree", {"n_clusters": 10, "depth": 5}), ("quad_tree", {"depth": 20})]
)
def test_each_split_has_trees_of_its_own(table, task, method, options, n_trees):
    name = f"{n_trees}_{method}"
    (row,) = task.rows(name, 2, task.rows(name, 1, []))

    def distances(masses, seed):
        return METHODS[method](task.data.points, masses, random_state=seed, n_trees=n_trees, **options)

    expected = [accuracy(table, task, distances(task.data.masses, SEED + split), split) for split in (0, 1)]
    assert row.accuracies == pytest.approx(expected, abs=1.3)  # one image of 80 may have two nearest
    agreed = []
    for seed in range(SEED, SEED + table.N_DRAWS):
        found = distances(task.data.masses[:N_DIGITS], seed)
        agreed.append((precision_at_k(task.truth, found, k=10), spearman(task.truth, found)))
    assert (row.precision, row.spearman) == pytest.approx(np.mean(agreed, axis=0))
    assert row.deviations == pytest.approx(np.std(agreed, axis=0, ddof=1))
    assert row.label.endswith(f"n_trees {n_trees}")
    cells = [cell.split(" (")[0] for cell in row.cells()[2:4]]
    assert cells[0] == f"{row.precision:.3f} ± {row.deviations[0]:.3f}"
    assert cells[1] == f"{row.spearman:.3f} ± {row.deviations[1]:.3f}"


def test_the_table_of_the_preset_has_the_first_row_of_what_is_tuned(table, task, tmp_path):
    keep, out = tmp_path / "keep", table.Exhibit("table_mnist", tmp_path, quick=True, seed=SEED)
    names = table.TABLES["preset"]
    for place, name in enumerate(names):
        rows = [table.Row(f"{name} {row}", "", 0.1 * place, 0.5, 1, accuracies=[90.0]) for row in ("first", "second")]
        table.write_rows(keep, name, rows)
    arguments = table.Namespace(tables=("preset",), keep=keep, only=None, splits=1)
    table.fill(out, task, arguments)
    lines = (tmp_path / "numbers/table_mnist_preset.md").read_text(encoding="utf-8").splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines[: len(names)]] == [f"{name} first" for name in names]
    assert lines[len(names)] == ""
    assert not (tmp_path / "numbers/table_mnist.md").exists()
