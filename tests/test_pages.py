"""Every block of code on the pages runs as it is printed, or is marked as output.

What counts as what is in `docs/pages.py`. Blocks of one page share a namespace and a folder, in order, as a reader
types them; what a page takes for granted (its data, a file, a cluster) is made by its entry in `SET_UP`. A page that
needs something new gets an entry there. Output is marked by the language ``text``, or by ``:class: output``; after a
command, or a block of Python that prints, it has to be what is printed, where ``...`` stands for any lines. A ``text``
whose ``:caption:`` is the name of a file that the page wrote is the beginning of that file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import re
import shlex
import shutil
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import anndata
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import heatmover as hm
from heatmover.cli import app

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "docs").exists():
    pytest.skip("the documentation is not here", allow_module_level=True)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


pages = load(ROOT / "docs" / "pages.py")
PYTHON, COMMANDS, DATA = {"python"}, {"console", "bash", "sh"}, {"toml", "json", "yaml"}
# Programs of others: what they do here is not ours to test, but what is not in this list is a mistake.
ELSEWHERE = {
    *("source", "export", "until", "srun", "helm", "dask", "address=$(python", "git", "cd", "pre-commit"),
    *("conda", "docker", "rattler-build"),
}
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])


# ---------------------------------------------------------------- what pages take for granted


def small_cohort(n_samples: int = 12, n_cells: int = 40) -> tuple[Any, pd.DataFrame]:
    """Cells of a few samples with the variables that pages name."""
    data = hm.datasets.cohort(n_samples, cells_per_sample=n_cells, effect=3.0)
    obs = pd.DataFrame({"sample": data.labels}, index=[f"cell{i}" for i in range(len(data.labels))])
    number = obs["sample"].str.split("-").str[1].astype(int)
    obs["condition"] = obs["sample"].str.split("-").str[0]
    obs["patient"] = obs["sample"]
    obs["age"] = 30.0 + number
    obs["cell_type"] = [f"branch {int(branch)}" for branch in data.coordinates[:, 0]]
    return data, obs


def points_and_labels(_later: ExitStack) -> dict[str, Any]:
    data, _ = small_cohort()
    return {"points": data.points, "labels": data.labels}


def graph_alone(_later: ExitStack) -> dict[str, Any]:
    data = hm.datasets.swiss_roll(4, points_per_measure=40, n_dimensions=3)
    return {"hm": hm, "graph": hm.Graph.from_points(data.points, n_neighbors=10)}


def cells_h5ad(_later: ExitStack) -> dict[str, Any]:
    data, obs = small_cohort()
    anndata.AnnData(data.points, obs=obs).write_h5ad("cells.h5ad")
    return {}


def first_page(later: ExitStack) -> dict[str, Any]:
    data, obs = small_cohort()
    cells = pd.DataFrame(data.points.round(4), columns=[f"CD{i}" for i in range(1, 11)])
    cells.insert(0, "sample", obs["sample"].to_numpy())
    cells.insert(1, "condition", obs["condition"].to_numpy())
    cells.to_csv("cells.csv", index=False)
    return points_and_labels(later)


def cohort_h5ad(_later: ExitStack) -> dict[str, Any]:
    """Pairs: every patient, or donor, has a case and a control."""
    data, obs = small_cohort()
    number = obs["sample"].str.split("-").str[1]
    obs = obs.assign(patient="p" + number, donor="d" + number, treatment=obs["condition"] == "case")
    obs["treatment"] = obs["treatment"].map({True: "treated", False: "untreated"})
    anndata.AnnData(data.points, obs=obs).write_h5ad("cohort.h5ad")
    return {}


def write_zarr(adata: anndata.AnnData, path: Path) -> None:
    with anndata.settings.override(zarr_write_format=3), warnings.catch_warnings():
        # The writer warns that its own defaults will change; only what reads is on trial.
        warnings.simplefilter("ignore")
        adata.write_zarr(path)


def tables(_later: ExitStack) -> dict[str, Any]:
    data, obs = small_cohort()
    cells = pd.DataFrame(data.points, columns=[f"marker {i}" for i in range(1, 11)], index=obs.index)
    cells = cells.join(obs[["sample", "condition"]])
    new = cells["sample"].isin(["case-06", "control-06"])
    cells[~new].to_csv("reference.csv", index=False)
    cells[new].to_csv("today.csv", index=False)
    kept = ~new.to_numpy()
    write_zarr(anndata.AnnData(data.points[kept], obs=obs.loc[kept, ["sample"]]), Path("reference.zarr"))
    return {}


def cells_zarr(_later: ExitStack) -> dict[str, Any]:
    data, obs = small_cohort()
    for folder in (Path(), Path("shared")):
        folder.mkdir(exist_ok=True)
        write_zarr(anndata.AnnData(data.points, obs=obs[["sample"]]), folder / "cells.zarr")
    obs.drop_duplicates("sample")[["sample", "condition", "age"]].to_csv("samples.csv", index=False)
    return {}


def on_clusters(later: ExitStack) -> dict[str, Any]:
    """Clusters of other machines are not here: all of them are one thread of this process, and take the same calls."""
    distributed = pytest.importorskip("distributed")
    worker = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=50
    )
    later.enter_context(worker)

    class Cluster(ExitStack):
        def __init__(self, **_job):
            super().__init__()

        def __getattr__(self, name):
            return getattr(worker, name)

        def scale(self, jobs):
            """As many as there are."""

    def spec(*_arguments, **_options):
        return {"spec": {"worker": {"spec": {"containers": [{}]}}}}

    jobqueue, kubernetes = ModuleType("dask_jobqueue"), ModuleType("dask_kubernetes")
    jobqueue.SLURMCluster = Cluster
    kubernetes.operator = ModuleType("dask_kubernetes.operator")
    kubernetes.operator.KubeCluster, kubernetes.operator.make_cluster_spec = Cluster, spec
    modules = {each.__name__: each for each in (jobqueue, kubernetes, kubernetes.operator)}
    later.enter_context(mock.patch.dict(sys.modules, modules))
    later.enter_context(mock.patch.object(distributed, "LocalCluster", Cluster))
    return cells_zarr(later) | {"scheduler": worker.scheduler_address}


def quick_neighbors(later: ExitStack) -> dict[str, Any]:
    """Scanpy's default kernel is umap's, which compiles for ten seconds."""
    scanpy = pytest.importorskip("scanpy")
    gauss = partial(scanpy.pp.neighbors, method="gauss")
    later.enter_context(mock.patch.object(scanpy.pp, "neighbors", gauss))
    return {}


SET_UP: dict[str, Callable[[ExitStack], dict[str, Any]]] = {
    "README.md": cohort_h5ad,
    "docs/atlas.md": tables,
    "docs/howto/anndata.md": quick_neighbors,
    "docs/howto/dask.md": on_clusters,
    "docs/howto/larger-than-memory.md": cells_zarr,
    "docs/howto/report.md": cells_h5ad,
    "docs/index.md": first_page,
    "docs/paper.md": graph_alone,
    "docs/tutorial-cohort.md": cohort_h5ad,
}
# Pages whose cells `make docs` alone runs, as it runs those of all pages: they take longest, as measured in seconds of
# work, and the suite is to stay short. Their other blocks run here.
BY_MAKE_DOCS = {
    "docs/tutorial-cohort.md": 12,  # whole commands, each a process of its own
    "docs/howto/search.md": 9,
    "docs/datasets.md": 6,
    "docs/howto/baselines.md": 4,
    "docs/howto/explain.md": 3,
    "docs/howto/landmarks.md": 3,
}
# Pages whose blocks are alternatives: before each, what earlier ones wrote is taken away.
ALTERNATIVES = {"docs/howto/larger-than-memory.md", "docs/howto/dask.md"}
# Sizes that a page prints and a test does not need; nothing else of a block changes.
SMALLER = {
    "docs/howto/larger-than-memory.md": {"27000": "60", "27_000": "60", "landmarks=4000": "landmarks=60"},
    "docs/howto/dask.md": {"27000": "60", "27_000": "60", "4000": "60"},
}


# ---------------------------------------------------------------- how blocks are run


class Reader:
    """Types the blocks of a page in order: Python into one namespace, commands into one folder."""

    def __init__(self, page: Path, namespace: dict[str, Any]) -> None:
        self.page, self.name = page, page.relative_to(ROOT).as_posix()
        self.namespace = {"__name__": "__main__"} | namespace
        self.printed = ""
        self.given = {path.name for path in Path().iterdir()}

    def read(self) -> None:
        for block in pages.blocks(self.page):
            text = block.text
            for large, small in SMALLER.get(self.name, {}).items():
                text = text.replace(large, small)
            if self.name in ALTERNATIVES:
                self.clear()
            if block.is_cell and self.name in BY_MAKE_DOCS:
                continue
            if block.is_output:
                self.compare(block, text)
            elif block.language in PYTHON and text != pages.PASTE:
                printed = self.run_python(block.line, text)
                self.printed = "" if block.is_cell else printed  # a cell shows its own output
            elif block.language in COMMANDS:
                self.run_commands(block.line, text, console=block.language == "console")
            elif block.language in DATA:
                parse(block.language, text)

    def clear(self) -> None:
        for path in [*Path().glob("*"), *Path("shared").glob("*")]:
            if path.name not in {*self.given, "cells.zarr"}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def where(self, line: int) -> str:
        return f"{self.name}:{line}"

    def run_python(self, line: int, text: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * line + text, str(self.page), "exec"), self.namespace)
        return out.getvalue()

    def compare(self, block: Any, expected: str) -> None:
        """A text is what the block before it printed, or the file that its caption names; any other is a drawing."""
        printed, self.printed = self.printed, ""
        if block.caption and Path(block.caption).exists():
            printed = Path(block.caption).read_text(encoding="utf-8")
        if printed:
            assert agrees(expected, printed), f"{self.where(block.line)}:\n{expected}\nis not:\n{printed}"

    def run_commands(self, line: int, text: str, *, console: bool) -> None:
        for command, output in commands(text) if console else ((each, "") for each, _ in commands(as_console(text))):
            printed = self.run_command(line, command)
            if command.startswith("ls "):  # in columns, down before right
                assert sorted(output.split()) == printed.split(), self.where(line)
            elif output.strip():
                assert agrees(output, printed), f"{self.where(line)}: {command}\n{output}\nis not:\n{printed}"

    def run_command(self, line: int, command: str) -> str:
        program, *arguments = shlex.split(command, comments=True) or [""]
        if program == "heatmover":
            return self.run_heatmover(line, arguments)
        if program == "make":
            assert [each for each in arguments if "=" not in each][-1] in TARGETS, f"{self.where(line)}: {command}"
        elif program == "pip":
            named = re.findall(r"heatmover\[([a-z,]+)\]", command)
            assert {extra for names in named for extra in names.split(",")} <= EXTRAS, f"{self.where(line)}: {command}"
        elif program == "python":
            assert (ROOT / arguments[0]).exists() or arguments[0] == "-m", f"{self.where(line)}: {command}"
        elif program == "ls":
            return "\n".join(sorted(path.name for path in Path(arguments[0]).iterdir()))
        else:
            assert program in {"", *ELSEWHERE}, f"{self.where(line)}: what is {program!r}?"
        return ""

    def run_heatmover(self, line: int, arguments: list[str]) -> str:
        if "--scheduler" in arguments:
            arguments[arguments.index("--scheduler") + 1] = self.namespace["scheduler"]
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
        assert result.exit_code in (0, 1, 2), f"{self.where(line)}: {arguments}"
        assert result.exception is None or isinstance(result.exception, SystemExit), self.where(line)
        # Neither the stages, which come and go, nor where the report lies on this machine.
        passing = re.compile(r"^.* \.\.\.$|^Open in a browser: .*$", flags=re.MULTILINE)
        printed = result.stdout + passing.sub("", result.stderr)
        printed = passing.sub("", printed)
        assert result.exit_code != 2 or "Error: " in printed
        # An error is an output that the page shows, or the page is wrong.
        assert result.exit_code != 2 or "Error: " in self.page.read_text(encoding="utf-8"), printed
        return printed


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console, each after a dollar sign, with what is printed after them."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        command = lines.pop(0)
        while command.endswith("\\"):
            command = command[:-1] + lines.pop(0).strip()
        yield command.removesuffix("&").strip(), "\n".join(lines)


def as_console(text: str) -> str:
    """The lines of a shell script, each with a dollar sign; a line may go on after a backslash."""
    joined = re.sub(r"\\\n\s*", "", text)
    return "".join(f"$ {line}\n" for line in joined.split("\n") if line.strip() and not line.startswith("#"))


# What depends on the machine.
VARIES = re.compile(r"about [\d.]+ (?:seconds?|minutes?) and [\d.]+ [MG]B|(?<=  )\s+")


def agrees(expected: str, printed: str) -> bool:
    """Compare line by line; ``...`` on a line of its own stands for any lines."""
    wanted, said = (
        "\n".join(VARIES.sub("~", line.strip()) for line in text.strip().split("\n")) for text in (expected, printed)
    )
    words = [re.escape(part.strip()) for part in re.split(r"(?:^|(?<=\n))\.\.\.(?=\n|$)", wanted)]
    return re.fullmatch(".*?".join(words), said.strip(), flags=re.DOTALL) is not None


def parse(language: str, text: str) -> None:
    if language == "json":
        json.loads(text)
    elif language == "toml":
        tomllib.loads(text)
    else:
        import yaml

        list(yaml.safe_load_all(text))


# ---------------------------------------------------------------- what the answers of the gallery say


def cohort_answer(found: SimpleNamespace) -> None:
    table = found.contrast.types.table()
    assert found.test.p_value <= 0.01
    assert table["contributions"].idxmax() == "branch 4"
    assert table["contributions"]["branch 4"] > table["contributions"].sum() / 2
    assert list(table.index[table["abundance_q"] <= 0.1]) == ["branch 4"]
    assert table["state_q"].min() > 0.1


def paired_answer(found: SimpleNamespace) -> None:
    ways = np.array(
        [
            np.diff(
                [found.xy[(found.patient == name) & (found.visit == time)][0] for time in ("before", "after")], axis=0
            )[0]
            for name in np.unique(found.patient)
        ]
    )
    assert np.mean(ways @ ways.mean(axis=0) > 0) > 0.75
    assert within_order(found.within.p_value, 0.01, found.free.p_value)
    assert np.median(found.groups[0]) < np.median(found.groups[1])


def documents_answer(found: SimpleNamespace) -> None:
    chance, nearest = found.shares.values()
    assert within_order(0.1, chance, 0.2, 0.5, nearest)


def images_answer(found: SimpleNamespace) -> None:
    assert list(found.orders["Diffusion EMD"]) == list(range(16)) != list(found.orders["pixels"])
    assert np.ptp(found.pixels[~np.eye(16, dtype=bool)]) < 0.05 * found.pixels.max()


def point_clouds_answer(found: SimpleNamespace) -> None:
    a, b, c = found.a, found.b, found.c
    assert abs(found.air[a, b] / found.air[a, c] - 1) < 0.3
    assert found.truth[a, b] > 3 * found.truth[a, c]
    assert found.along[a, b] > 2 * found.along[a, c]
    assert within_order(
        hm.metrics.spearman(found.truth, found.air), 0.6, 0.95, hm.metrics.spearman(found.truth, found.along)
    )


def scanpy_answer(found: SimpleNamespace) -> None:
    memory, regulatory = "CD4+/CD45RO+ Memory", "CD4+/CD25 T Reg"
    pairs = {
        (memory, regulatory),
        (regulatory, memory),
        ("CD56+ NK", "CD8+ Cytotoxic T"),
        ("CD14+ Monocyte", "Dendritic"),
    }
    assert pairs <= set(found.nearest.items())
    assert (found.adata.obs["bulk_labels"].value_counts() < 20).sum() == 3


def torch_answer(found: SimpleNamespace) -> None:
    along, plane = ((found.off[name] > 0.6).double().mean().item() for name in found.paths)
    assert within_order(along, 0.12, 0.2, plane)
    assert all(found.in_plane(path[-1]) < 0.2 for path in found.paths.values())


def barycenter_answer(found: SimpleNamespace) -> None:
    mean, middle, zeros = found.filled.values()
    assert mean > 2 * zeros
    assert abs(middle / zeros - 1) < 0.15


def atlas_answer(found: SimpleNamespace) -> None:
    assert list(found.found.values) == ["case", "control", "case"]
    assert within_order(found.mapped.coverage.p_values[2], 0.01, 0.05, min(found.mapped.coverage.p_values[:2]))


def memory_answer(found: SimpleNamespace) -> None:
    assert found.test.p_value <= 0.01
    assert found.rank > 0.9
    assert found.result.landmark_agreement.spearman > 0.95


def within_order(*numbers: float) -> bool:
    return all(small < large for small, large in itertools.pairwise(numbers))


# Words of the last paragraph, as far as they are about numbers.
ANSWERS: dict[str, Callable[[SimpleNamespace], None]] = {
    "atlas": atlas_answer,
    "barycenter": barycenter_answer,
    "cohort": cohort_answer,
    "documents": documents_answer,
    "images": images_answer,
    "larger-than-memory": memory_answer,
    "paired": paired_answer,
    "point-clouds": point_clouds_answer,
    "scanpy-graph": scanpy_answer,
    "torch-loss": torch_answer,
}
EXAMPLES = pages.examples()


# ---------------------------------------------------------------- the tests

PAGES = [path for path in pages.pages() if any(not block.is_output for block in pages.blocks(path))]


def test_every_block_is_code_that_runs_or_is_marked_as_output():
    known = PYTHON | COMMANDS | DATA | {"text"}
    neither = [
        f"{path.relative_to(ROOT)}:{block.line}: {block.language or 'no language'}"
        for path in pages.pages()
        for block in pages.blocks(path)
        if block.language not in known and not block.is_output
    ]
    assert neither == []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    import matplotlib
    from matplotlib import pyplot

    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    with matplotlib.rc_context():
        yield tmp_path
    pyplot.close("all")


# Scanpy's, with a newer matplotlib.
@pytest.mark.filterwarnings("ignore:The set_bad function:PendingDeprecationWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_page_runs_as_it_is_printed(page, folder):
    if "import torch\n" in page.read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    name = page.relative_to(ROOT).as_posix()
    with ExitStack() as later:
        set_up = SET_UP.get(name)
        reader = Reader(page, set_up(later) if set_up else {})
        reader.read()
        if page in EXAMPLES:
            ANSWERS[page.stem](SimpleNamespace(**reader.namespace))


def test_every_entry_is_about_a_page():
    here = {path.relative_to(ROOT).as_posix() for path in pages.pages()}
    assert {*SET_UP, *SMALLER, *BY_MAKE_DOCS, *ALTERNATIVES} <= here
    for name, sizes in SMALLER.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert [size for size in sizes if size not in text] == [], name


def test_output_that_differs_is_found():
    printed = "a  b\nabout 12 seconds and 0.3 GB of memory here\n\nlast line   \n"
    assert agrees("a b\n...\nlast line", printed.replace("  ", " "))
    assert agrees("a  b\nabout 1.5 minutes and 2 GB of memory here\n\nlast line", printed)
    assert not agrees("a  b\n...\nlast word", printed)
    assert not agrees("a  b", printed)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```\nx\n```\n", ""),
        ("    indented code\n", ""),
        ("```ruby\nx\n```\n", "ruby"),
        ("````{note}\n```ruby\nx\n```\n````\n", "ruby"),
        (":::{container} cards\n```ruby\nx\n```\n:::\n", "ruby"),
    ],
)
def test_a_block_that_nobody_runs_is_found(text, found, tmp_path):
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    (block,) = pages.blocks(tmp_path / "page.md")
    assert block.language == found
    assert not block.is_output


MOST_COMMANDS = 5


def test_the_landing_page_leads_from_a_csv_to_a_report(folder):
    page = ROOT / "docs" / "index.md"
    first_page(ExitStack())
    steps = [
        command
        for block in pages.blocks(page)
        if block.language in COMMANDS
        for command, _ in commands(as_console(block.text))
    ]
    assert len(steps) <= MOST_COMMANDS
    assert "heatmover compare cells.csv --sample-key sample --color condition --out results" in steps
    for command in steps:
        program, *arguments = shlex.split(command)
        if program == "heatmover":
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, f"{command}\n{result.output}"
    assert (folder / "results" / "report.html").stat().st_size > 0
    assert "condition" in (folder / "results" / "index.txt").read_text(encoding="utf-8").partition("\n")[0]


# ---------------------------------------------------------------- the gallery

MOST_LINES, MOST_BYTES = 40, 40_000


def test_the_gallery_has_ten_examples_and_its_index_shows_all():
    index = (pages.GALLERY / "index.md").read_text(encoding="utf-8")
    assert len(EXAMPLES) == 10
    for page in EXAMPLES:
        assert f"(thumbnails/{page.stem}.png)]({page.name})" in index, page.name
        assert re.search(rf"^{page.stem}$", index, flags=re.MULTILINE), page.name


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_an_example_is_short_and_opens_with_its_picture(page):
    text = page.read_text(encoding="utf-8")
    code = [block.text for block in pages.blocks(page) if block.text != pages.PASTE]
    assert sum(1 for block in code for line in block.split("\n") if line.strip()) < MOST_LINES
    assert re.search(
        r"^# .+\n\n(?:[^\n]+\n)*[^\n]+\?\n\n```\{glue:figure\} picture\n:alt: .+\n```\n", text, flags=re.MULTILINE
    )
    assert pages.PASTE in [block.text for block in pages.blocks(page)]
    assert "**Answer.**" in text.split("```")[-1]
    assert "TODO" not in text


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_an_example_has_a_thumbnail(page):
    content = (pages.GALLERY / "thumbnails" / f"{page.stem}.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < MOST_BYTES
