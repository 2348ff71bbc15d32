"""Distances on scanpy's graph of cells beside those on heatmover's own: Spearman with the exact distances.

"loops" puts ones on the diagonal of scanpy's connectivities, at the largest scale chosen without them. Needs scanpy.
"""

from __future__ import annotations

import argparse
import warnings

import anndata
import numpy as np
import scanpy as sc
import scipy.sparse as sp

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
    adata = anndata.AnnData(points.astype(np.float32))
    sc.pp.neighbors(adata, n_neighbors=k, use_rep="X")
    return sp.csr_array(adata.obsp["connectivities"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    print(f"{'data':<20}{'own':>8}{'k=15':>8}{'loops':>8}{'k=30':>8}{'loops':>8}")
    for name, data in shapes(parser.parse_args().small).items():
        truth = data.exact_emd()
        figures = [hm.compare(data.points, data.labels).distances]
        for k in (15, 30):
            affinity = connectivities(data.points, k)
            plain = hm.compare(hm.Graph.from_affinity(affinity), data.labels)
            loops = hm.Graph.from_affinity(sp.csr_array(affinity + sp.eye_array(affinity.shape[0], format="csr")))
            same = hm.DiffusionEMD(max_scale=plain.model.max_scale_)
            figures += [plain.distances, hm.compare(loops, data.labels, model=same).distances]
        print(f"{name:<20}" + "".join(f"{hm.metrics.spearman(truth, found):8.3f}" for found in figures))


if __name__ == "__main__":
    main()
