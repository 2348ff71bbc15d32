"""What a result folder and the terminal say twice is equal: every number is computed once and carried."""

from __future__ import annotations

import csv
import json
import re
from html import unescape

import anndata
import numpy as np
import pytest

from heatmover.report.folder import CELL_TYPES, INTERVALS

# With landmarks and a block, in memory and in pieces: everything that a result can say is there.
SURE = ("--bias", "corrected", "--bootstrap", 20, "--units", "euclidean", "--equal-cells")
WAYS = {
    "in memory": ("--landmarks", 60),
    "in pieces": ("--landmarks", 60, "--memory", "1 GB"),
    "in memory, with noise and units": ("--landmarks", 60, *SURE),
    "in pieces, with noise and units": ("--landmarks", 60, "--memory", "1 GB", *SURE),
}


def visible(html):
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(text).split())


class Said:
    """Everything that one run wrote and printed."""

    def __init__(self, folder, stdout):
        self.record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        self.samples = anndata.read_h5ad(folder / "samples.h5ad")
        self.page = (folder / "report.html").read_text(encoding="utf-8")
        with (folder / "distances.csv").open(newline="", encoding="utf-8") as stream:
            self.distances = np.array([row[1:] for row in list(csv.reader(stream))[1:]], dtype=np.float64)
        with (folder / CELL_TYPES).open(newline="", encoding="utf-8") as stream:
            self.cell_types = list(csv.DictReader(stream))
        self.intervals = None
        if (folder / INTERVALS).exists():
            with (folder / INTERVALS).open(newline="", encoding="utf-8") as stream:
                self.intervals = list(csv.DictReader(stream))
        self.terminal = " ".join(stdout.split())
        self.text = visible(self.page)
        self.data = json.loads(re.search(r'id="report-data">(.*?)</script>', self.page, flags=re.DOTALL)[1])

    def section(self, key):
        """The text of a section of the page."""
        part = re.search(rf'<section id="{key}".*?</section>', self.page, flags=re.DOTALL)[0]
        return visible(part)


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: way.replace(",", "").replace(" ", "-"))
def said(request, make, tmp_path_factory, cli):
    frame = make.frame(12, 60)
    frame["Cell type"] = np.where(frame["CD4"] > 1.5, "right", "left")
    folder = tmp_path_factory.mktemp("said")
    file = make.h5ad(frame, folder / "cells.h5ad")
    result = cli.run(
        "compare", file, "-s", "sample", "-c", "condition", "-c", "age", "--block", "patient", "--cells", "Cell type",
        "-o", folder / "out", "--permutations", 99, "--neighbors", 8, *WAYS[request.param], columns=200,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return Said(folder / "out", result.stdout)


def test_the_page_holds_the_record(said):
    text = unescape(re.search(r'<pre tabindex="0">(.*?)</pre>', said.page, flags=re.DOTALL)[1])
    own = {"command", "created", "files", "session"}
    # The page is written before its own writing has been timed.
    assert said.record["seconds"].pop("write results") >= 0
    assert json.loads(text) == {key: value for key, value in said.record.items() if key not in own}


def test_distances(said):
    np.testing.assert_array_equal(said.samples.obsp["distances"], said.distances)
    others = said.distances + np.diag(np.full(len(said.distances), np.inf))
    assert said.data["shared"]["nearest"] == others.argmin(axis=1).tolist()
    assert said.data["shared"]["nearest_distance"] == [float(f"{value:.5g}") for value in others.min(axis=1)]
    packed = said.data["sections"]["heatmap"]
    assert packed["largest"] == said.distances.max()
    first, nearest = said.samples.obs_names[0], said.samples.obs_names[others[0].argmin()]
    assert re.search(rf"{first} control {nearest} ~?{others[0].min():.3f}", said.terminal)


def test_shares_of_the_scales(said):
    stored = said.samples.uns["heatmover"]["scales"]
    recorded = said.record["scale_shares"]
    assert dict(zip(map(str, stored["scale"].tolist()), stored["share"].tolist(), strict=True)) == recorded
    assert sum(recorded.values()) == pytest.approx(1)
    for share in recorded.values():
        assert f"{100 * share:.0f}%" in said.section("scales")
    # From all pairs, by brute force.
    embedding = said.samples.obsm["X_heatmover"]
    widths = np.array_split(embedding, len(recorded), axis=1)
    sums = np.array([np.abs(part[:, None] - part[None]).sum() for part in widths])
    np.testing.assert_allclose(list(recorded.values()), sums / sums.sum(), rtol=1e-5)
    assert int(stored["max_scale"]) == said.record["max_scale"]["value"]
    assert stored["reason"] == said.record["max_scale"]["reason"]
    assert f"The coarsest scale is {stored['max_scale']}: {stored['reason']}" in said.terminal
    assert stored["reason"] in said.section("scales")
    assert stored["reason"] in said.section("methods")


def test_headline_and_notes(said):
    headline = re.search(r'id="headline">(.*?)</p>', said.page, flags=re.DOTALL)[1]
    assert " ".join(unescape(headline).split()) == said.record["headline"]
    assert said.record["headline"] in said.terminal
    assert set(said.record["notes"]) < set(said.record["cautions"])
    for caution in said.record["cautions"]:
        assert caution in said.terminal
        assert caution in said.text
    box = re.search(r'<aside class="caution".*?</aside>', said.page, flags=re.DOTALL)[0]
    assert len(re.findall("<li>", box)) == len(said.record["cautions"])


def test_methods(said):
    for paragraph in said.record["methods"]:
        assert paragraph in said.section("methods")


def test_findings(said):
    for finding in said.record["findings"]:
        answer = finding["tests"]["permanova" if finding["kind"] == "groups" else "distance correlation"]
        p, q = f"{answer['p_value']:.2g}", f"{finding['q_value']:.2g}"
        assert re.search(rf"{finding['variable']} .*? {re.escape(p)} {re.escape(q)}", said.terminal)
        assert re.search(rf"{finding['variable']} .*? {re.escape(p)} {re.escape(q)}", said.section("statistics"))


def test_cell_types(said):
    for row, recorded in zip(said.cell_types, said.record["contrasts"][0]["types"], strict=True):
        assert row["cell_type"] == recorded["name"]
        for name, value in recorded.items():
            if name in {"abundance_limit", "state_limit"}:
                assert row[name] == value
            elif name not in {"name", "direction", "moved"}:
                assert float(row[name]) == value
        assert row["moved"] == str(recorded["moved"])
        assert row["direction"] == recorded["direction"]
        assert f"{100 * recorded['share']:.0f}%" in said.section("cells")
    assert sum(int(row["cells"]) for row in said.cell_types) == said.record["cells"]


def test_numbers_of_samples_and_cells(said):
    assert said.record["samples"] == said.samples.n_obs == len(said.distances) == 12
    assert said.record["cells"] == said.samples.obs["n_cells"].sum() == sum(said.data["shared"]["cells"]) == 720
    assert "720 cells" in said.text


def test_agreement_of_the_landmarks(said):
    recorded = said.record["landmarks"]
    stored = said.samples.uns["heatmover"]["landmarks"]
    assert {name: stored[name] for name in recorded} == recorded
    assert f"Spearman {recorded['spearman']:.3f}" in said.terminal
    assert f"{recorded['spearman']:.3f} Spearman" in said.section("graph")
    assert f"Spearman correlation of {recorded['spearman']:.3f}" in said.section("methods")


def test_parameters(said):
    stored, recorded = said.samples.uns["heatmover"]["params"], said.record["parameters"]
    for name in ("block", "cells", "n_neighbors", "landmarks", "n_permutations", "random_state", "allow_components",
                 "equal_cells", "bias", "n_bootstrap"):  # fmt: skip
        assert stored[name] == recorded[name]
    assert stored.get("units") == recorded["units"]
    assert f"{recorded['n_permutations']:,} permutations" in said.section("methods")
    assert f"The random seed was {recorded['random_state']}" in said.section("methods")
    assert f"{recorded['n_neighbors']} nearest neighbors" in said.section("methods")


def test_units(said):
    recorded, stored = said.record["units"], said.samples.uns["heatmover"].get("units")
    if recorded is None:
        assert stored is None
        assert "exact" not in said.section("methods").split("Densities")[0].split("K:")[0]
        return
    assert {name: stored[name] for name in recorded} == recorded
    assert recorded["ground"] == said.record["parameters"]["units"]
    median, most = f"{100 * recorded['median_error']:.1f}%", f"{100 * recorded['error_90']:.1f}%"
    for text in (said.terminal, said.text):
        assert f"exact distances of {recorded['n_pairs']} pairs of samples were computed" in text
        assert f"by a median of {median}, and for 90% of the pairs by at most {most}" in text
    assert f"{recorded['n_pairs']} exact Earth Mover's Distances" in said.section("methods")
    assert f"{median}, and the 90th percentile of the error was {most}" in said.section("methods")
    # The distances are the L1 distances of the embedding on the curve that is stored.
    embedding = said.samples.obsm["X_heatmover"].astype(np.float64)
    linear = np.abs(embedding[:, None] - embedding[None]).sum(axis=2)
    inside = linear <= stored["knots"][-1]
    np.testing.assert_allclose(
        np.interp(linear, stored["knots"], stored["values"])[inside], said.distances[inside], rtol=1e-4, atol=1e-6
    )


def test_intervals_and_noise(said):
    recorded = said.record["uncertainty"]
    if recorded["pairs"] is None:  # no replicates
        assert said.intervals is None
        assert "intervals" not in said.samples.uns["heatmover"]
        assert "are distinguishable" not in said.text
        ((cells, floor),) = recorded["noise_floor"].items()
        assert f"Every sample, {cells} cells {floor:.2g} apart by sampling noise" in said.section("noise")
        return
    names, stored = said.samples.obs_names.tolist(), said.samples.uns["heatmover"]["intervals"]
    assert len(said.intervals) == recorded["pairs"] == 66
    told = 0
    for row in said.intervals:
        i, j = names.index(row["sample"]), names.index(row["other"])
        assert float(row["distance"]) == said.distances[i, j]
        assert (float(row["lower"]), float(row["upper"])) == (stored["lower"][i, j], stored["upper"][i, j])
        assert row["distinguishable"] == ("true" if stored["lower"][i, j] > 0 else "false")
        told += row["distinguishable"] == "true"
    assert told == recorded["pairs_distinguishable"]
    assert f"{told} of 66 pairs of samples are distinguishable" in said.terminal
    assert f"{told} of 66 pairs of samples are distinguishable" in said.section("noise")
    assert f"({66 - told} of 66 pairs)" in said.section("heatmap")
    ((cells, floor),) = recorded["noise_floor"].items()
    assert f"two identical samples of {cells} cells {floor:.2g} apart" in said.terminal
    assert f"Every sample, {cells} cells {floor:.2g} apart by sampling noise" in said.section("noise")
    assert f"Split-half retrieval: {100 * recorded['retrieval']:.0f}%." in said.section("noise")
    others = said.distances + np.diag(np.full(12, np.inf))
    for i, j in enumerate(others.argmin(axis=1)):
        lower, upper = stored["lower"][i, j], stored["upper"][i, j]
        words = "yes" if lower > 0 else "no"
        row = f"{names[i]} 60 {names[j]} {float(f'{others[i, j]:.5g}'):.4g} {lower:.3g} to {upper:.3g} {words}"
        assert row in said.section("samples")


def test_cells_that_were_drawn(said):
    recorded = said.record["drawn"]
    if recorded is None:
        assert "were drawn" not in said.section("methods")
        return
    assert {name: said.samples.uns["heatmover"]["drawn"][name] for name in recorded} == recorded
    sentence = "60 cells were drawn from every sample, 720 of 720 cells in total (samples have 60 to 60 cells)"
    for text in (said.terminal, said.text, said.section("methods")):
        assert sentence in text


def test_means_within_and_between_groups(said):
    groups = said.samples.obs["condition"].to_numpy().astype(str)
    same, pairs = groups[:, None] == groups, np.triu(np.ones(said.distances.shape, dtype=bool), 1)
    between, within = said.distances[pairs & ~same].mean(), said.distances[pairs & same].mean()
    assert f"mean distance {between:.2f} against {within:.2f}" in said.terminal
