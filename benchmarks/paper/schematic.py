"""The method in one picture, after the paper's Fig. 1: every panel shows what the library computed.

Points lie on a spiral in the plane and belong to many datasets, three of which are followed: A and C are near each
other through the air and far along the spiral. The densities are the blocks of the embedding that `DiffusionEMD`
returns, without their weights; the distances and the map are made from that embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
from exhibit import Exhibit, exhibit, parser
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

import heatmover as hm

N_DATASETS = 30
# Places along the spiral, from 0 to 1: A and C one turn apart, B between them.
FOLLOWED = {"A": 0.24, "B": 0.47, "C": 0.76}
COLORS = {"A": "#0072B2", "B": "#009E73", "C": "#D55E00"}
GREY, INK = "#C9CDD2", "#333333"
# Of the scales that the model keeps, as many are drawn, from the finest to the coarsest.
N_SHOWN = 4


def spiral(places: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Return points of the plane for places in 0 to 1 along a spiral, evenly by its length, and across it."""
    start, turns, gap = 1.0, 1.6, 1.0
    angles = np.linspace(0, 2 * np.pi * turns, 4001)
    radius = start + gap * angles / (2 * np.pi)
    curve = np.column_stack([radius * np.cos(angles), radius * np.sin(angles)])
    length = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=1))])
    angle = np.interp(places * length[-1], length, angles)
    radius = start + gap * angle / (2 * np.pi) + across
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])


@dataclass(frozen=True)
class Computed:
    """The cloud of all datasets, what the library makes of it, and which datasets are followed."""

    points: np.ndarray
    labels: np.ndarray
    places: np.ndarray
    followed: dict[str, int]
    graph: hm.Graph
    densities: dict[int, np.ndarray]
    distances: np.ndarray
    coordinates: np.ndarray


def compute(seed: int, points_per_dataset: int) -> Computed:
    rng = np.random.default_rng(seed)
    # Evenly along the spiral, the ends left free: what lies beyond an end cannot be drawn.
    places = np.linspace(0.05, 0.95, N_DATASETS)
    followed = {name: int(np.abs(places - place).argmin()) for name, place in FOLLOWED.items()}
    along = rng.normal(places[:, None], 0.035, (N_DATASETS, points_per_dataset)).clip(0, 1).ravel()
    points = spiral(along, rng.uniform(-0.2, 0.2, along.size))
    labels = np.repeat(np.arange(N_DATASETS), points_per_dataset)
    graph = hm.Graph.from_points(points, n_neighbors=15, random_state=seed)
    model = hm.DiffusionEMD(graph, compress=False, random_state=seed)
    embedding = model.fit_transform(hm.measures_from_labels(labels))
    scales = range(model.max_scale_ - model.n_scales_ + 1, model.max_scale_ + 1)
    blocks = np.split(embedding, model.n_scales_, axis=1)
    # Without its weight a block sums to 1: it is the density itself.
    # The columns of a block are the nodes of the graph, which have an order of their own.
    densities = {
        2**scale: (block / block.sum(axis=1, keepdims=True))[:, graph.place]
        for scale, block in zip(scales, blocks, strict=True)
    }
    distances = hm.pairwise_distances(embedding)
    coordinates = hm.manifold.diffusion_map(distances, k=8)
    return Computed(points, labels, places, followed, graph, densities, distances, coordinates)


def plain(axis: Axes, title: str = "") -> None:
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=9, color=INK)
    axis.grid(False)
    axis.spines[:].set_visible(False)


def edges(found: Computed, most: int, rng: np.random.Generator) -> np.ndarray:
    """Return some edges of the graph as lines, (n_edges, 2, 2)."""
    pairs = sp.triu(found.graph.affinity, 1).tocoo()
    chosen = rng.permutation(pairs.nnz)[:most]
    return np.stack([found.points[pairs.row[chosen]], found.points[pairs.col[chosen]]], axis=1)


def draw_graph(axis: Axes, found: Computed) -> None:
    axis.add_collection(LineCollection(edges(found, 9000, np.random.default_rng(0)), colors=GREY, linewidths=0.25))
    axis.scatter(*found.points.T, s=2, c="#9AA1A9", linewidths=0)
    for name, dataset in found.followed.items():
        own = found.points[found.labels == dataset]
        axis.scatter(*own.T, s=9, c=COLORS[name], linewidths=0.2, edgecolors="white", zorder=3)
        name_beside(axis, name, own.mean(axis=0), found.points.mean(axis=0))
    axis.set_aspect("equal")


def name_beside(axis: Axes, name: str, place: np.ndarray, center: np.ndarray) -> None:
    """Write the name of a dataset on the side of it that looks away from the center."""
    outwards = (place - center) / np.linalg.norm(place - center)
    axis.annotate(
        name, place, xytext=tuple(20 * outwards), textcoords="offset points", ha="center", va="center", fontsize=10,
        fontweight="bold", color=COLORS[name], zorder=4,
    )  # fmt: skip


def draw_density(axis: Axes, found: Computed, name: str, steps: int) -> None:
    density = found.densities[steps][found.followed[name]]
    order = np.argsort(density)
    colors = LinearSegmentedColormap.from_list(name, ["#ECEEF0", COLORS[name]])
    # The square root shows the thin part of a density as well as its peak; a rounded zero may be negative.
    axis.scatter(*found.points[order].T, s=1.6, c=np.sqrt(np.maximum(density[order], 0)), cmap=colors, linewidths=0)
    axis.set_aspect("equal")


def draw_distances(axis: Axes, found: Computed) -> None:
    axis.imshow(found.distances, cmap="magma", interpolation="nearest")
    at = list(found.followed.values())
    axis.set_xticks(at, found.followed, fontweight="bold", fontsize=10)
    axis.tick_params(length=2, color=GREY)
    for label in axis.get_xticklabels():
        label.set_color(COLORS[label.get_text()])
    # What the eye should compare: from A to B, and from A to C.
    first, *others = at
    for other in others:
        axis.text(
            other, first, f"{found.distances[first, other]:.1f}", ha="center", va="center", fontsize=8, color=INK,
            bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
        )  # fmt: skip
    axis.set_yticks([first], ["A"], fontweight="bold", fontsize=10, color=COLORS["A"])


def draw_map(axis: Axes, found: Computed) -> None:
    near = np.argsort(found.distances, axis=1)[:, 1:4]
    pairs = {tuple(sorted((i, int(j)))) for i, row in enumerate(near) for j in row}
    lines = [found.coordinates[list(pair)] for pair in sorted(pairs)]
    axis.add_collection(LineCollection(lines, colors=GREY, linewidths=0.7, zorder=0))
    axis.scatter(*found.coordinates.T, s=22, c="#9AA1A9", edgecolors="white", linewidths=0.5)
    for name, dataset in found.followed.items():
        place = found.coordinates[dataset]
        axis.scatter(*place, s=60, c=COLORS[name], edgecolors="white", linewidths=0.8, zorder=3)
        name_beside(axis, name, place, found.coordinates.mean(axis=0))
    axis.margins(0.18)
    axis.set_box_aspect(1)


def arrow(figure: Figure, left: Axes, right: Axes, words: str) -> None:
    """Draw an arrow from the middle of one panel's side to that of another, with a word on it."""
    start, end = left.get_position(), right.get_position()
    height = 0.5
    x0, x1 = start.x1 + 0.006, end.x0 - 0.006
    figure.add_artist(
        FancyArrowPatch((x0, height), (x1, height), transform=figure.transFigure, arrowstyle="-|>", mutation_scale=13,
                        linewidth=1.4, color=INK, shrinkA=0, shrinkB=0)
    )  # fmt: skip
    figure.text((x0 + x1) / 2, height + 0.025, words, ha="center", va="bottom", fontsize=8, color=INK)


def draw(show: Exhibit, found: Computed) -> None:
    figure = plt.figure(figsize=(13, 3.7), layout="none")
    kept = list(found.densities)
    steps = [kept[place] for place in np.linspace(0, len(kept) - 1, N_SHOWN).round().astype(int)]
    outer = figure.add_gridspec(
        1, 4, left=0.02, right=0.985, top=0.83, bottom=0.07, wspace=0.3, width_ratios=[3.3, 4.6, 2.7, 2.5]
    )
    cloud = figure.add_subplot(outer[0])
    plain(cloud)
    draw_graph(cloud, found)
    grid = outer[1].subgridspec(len(FOLLOWED), len(steps), hspace=0.04, wspace=0.04)
    panels = np.array([[figure.add_subplot(grid[i, j]) for j in range(len(steps))] for i in range(len(FOLLOWED))])
    for row, name in zip(panels, FOLLOWED, strict=True):
        for axis, step in zip(row, steps, strict=True):
            plain(axis, f"t = {step:,}" if name == "A" else "")
            draw_density(axis, found, name, step)
        row[0].set_ylabel(name, rotation=0, fontsize=10, fontweight="bold", color=COLORS[name], va="center", labelpad=8)
    matrix, places = figure.add_subplot(outer[2]), figure.add_subplot(outer[3])
    plain(matrix)
    draw_distances(matrix, found)
    plain(places)
    draw_map(places, found)
    titles = {
        cloud: "Datasets on one data graph",
        panels[0, 0]: "Densities after t steps of diffusion",
        matrix: "Diffusion EMD between datasets",
        places: "Map of the datasets",
    }
    figure.canvas.draw()
    for number, (axis, title) in enumerate(titles.items(), 1):
        spot = axis.get_position()
        middle = (spot.x0 + (panels[0, -1].get_position() if axis is panels[0, 0] else spot).x1) / 2
        figure.text(middle, 0.93, f"{number}  {title}", ha="center", fontsize=10, fontweight="bold", color=INK)
    arrow(figure, cloud, panels[0, 0], "diffuse")
    arrow(figure, panels[0, -1], matrix, "weigh, $L^1$")
    arrow(figure, matrix, places, "embed")
    show.save(figure)


def report(found: Computed) -> None:
    """Say in numbers what the picture shows: A and C are near through the air and far along the spiral."""
    pairs = (("A", "B"), ("B", "C"), ("A", "C"))
    for first, second in pairs:
        i, j = found.followed[first], found.followed[second]
        air = np.linalg.norm(found.points[found.labels == i].mean(0) - found.points[found.labels == j].mean(0))
        print(f"{first} to {second}: means {air:.2f} apart in the plane, Diffusion EMD {found.distances[i, j]:.2f}")


if __name__ == "__main__":
    arguments = parser(__doc__).parse_args()
    computed = compute(arguments.seed, points_per_dataset=60 if arguments.quick else 120)
    report(computed)
    draw(exhibit("schematic", arguments), computed)
