"""Distances on scanpy's graph of cells beside those on heatmover's own: Spearman with the exact distances.

"loops" puts ones on the diagonal of scanpy's connectivities, at the largest scale chosen without them. Needs scanpy.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import scipy.sparse as sp
from provenance import PACKAGES, add_record, write_table
from rivals import installed, required

import heatmover as hm

warnings.simplefilter("ignore")


def shapes(small: bool) -> dict[str, hm.datasets.Dataset]:
    cells = 50 if small else 200
    return {
        "swiss roll": hm.datasets.swiss_roll(30, points_per_measure=cells // 2),
        "cohort": hm.datasets.cohort(30, cells_per_sample=cells, effect=2.0),
        "cohort, no effect": hm.datasets.cohort(30, cells_per_sample=cells, effect=0.0, random_state=1),
    }


def connectivities(points: np.ndarray, k: int) -> sp.csr_array:
    import anndata
    import scanpy as sc

    adata = anndata.AnnData(points.astype(np.float32))
    sc.pp.neighbors(adata, n_neighbors=k, use_rep="X")
    return sp.csr_array(adata.obsp["connectivities"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    add_record(parser)
    args = parser.parse_args()
    required("ot", "POT", "accuracy is judged by its exact EMD")
    neighbors = (15, 30) if installed("scanpy", "scanpy") else ()
    rows = []
    for name, data in shapes(args.small).items():
        truth = data.exact_emd()
        figures = [hm.compare(data.points, data.labels).distances]
        for k in neighbors:
            affinity = connectivities(data.points, k)
            plain = hm.compare(hm.Graph.from_affinity(affinity), data.labels)
            loops = hm.Graph.from_affinity(sp.csr_array(affinity + sp.eye_array(affinity.shape[0], format="csr")))
            same = hm.DiffusionEMD(max_scale=plain.model.max_scale_)
            figures += [plain.distances, hm.compare(loops, data.labels, model=same).distances]
        rows.append([name, *(f"{hm.metrics.spearman(truth, found):.3f}" for found in figures)])
    heads = ["data", "own graph", *(f"scanpy, k={k}{loops}" for k in neighbors for loops in ("", ", loops"))]
    note = (
        "The table shows the Spearman correlation with the exact distances, for 30 samples. scanpy's graph has "
        'default settings except for k. "Loops" are self-loops of weight one; the largest scale is the scale that was '
        "chosen without loops."
    )
    write_table("connectivities", heads, rows, note, folder=args.record, packages=(*PACKAGES, "POT", "scanpy"))


if __name__ == "__main__":
    main()
