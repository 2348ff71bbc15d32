"""Random hostile inputs at the doors of atlases, indexes, sample metadata, readers and the command line.

Every case draws an input from its own seed and gives it to one door. The door must

- reject it with one sentence (`HeatmoverError`; at the command line exit code 2, one line, and nothing written); or
- accept it, with the result that the plain form of the same input has: metadata at its own sample, whatever the order
  of its index, and the same numbers whatever the type or layout of an array.

Anything else is a failure: another exception, a traceback, or a silent difference.

    python benchmarks/hostile.py                     # 10,000 cases, about ten minutes of one core
    python benchmarks/hostile.py --cases 500 --seed 7
    python benchmarks/hostile.py --case index:17     # one case again, with its traceback
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import math
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import heatmover as hm
from heatmover.errors import HeatmoverError

ODD_NAMES: tuple[Any, ...] = (
    "", " ", "a", "A", "1", 1, 1.0, True, None, math.nan, "nan", "None", "é", "x" * 300, "a\0", "\ud800", "a\nb",
    "../up", "=1+1", "<b>", (1, 2), b"a", np.int64(1), np.str_("a"), pd.NA, pd.Timestamp("2020-01-01"), "0", 0, -1,
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, math.nan, math.inf, -math.inf, "", "x", 0, 1, -1, 1e300, 5e-324, 2**70, True, b"x", [1], {"a": 1}, object(),
    "1", "1e5", 1 + 2j, np.float16(1), np.longdouble(1), pd.NA, pd.NaT, "\ud800", "a\0b", np.datetime64("2020"),
)  # fmt: skip
ODD_NUMBERS: tuple[Any, ...] = (0, 1, 2, 3, 5, 5.0, 2.5, -1, 10**9, 10**30, math.nan, math.inf, None, "3", True, [2])
TYPES = ("float16", "float32", "float64", "longdouble", ">f8", ">f4", "int8", "uint16", "int64", "bool", "complex64")
SHARES = {"variables": 0.3, "index": 0.25, "atlas": 0.15, "readers": 0.24, "options": 0.06}
NAMES = tuple(f"s{i}" for i in range(8))


class Difference(Exception):
    """An input was accepted with another result than its plain form."""


def demand(condition: Any, what: str) -> None:
    """Raise if an accepted input has another result than its plain form."""
    if not condition:
        raise Difference(what)


def chosen(rng: np.random.Generator, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


@cache
def cells() -> tuple[Any, Any]:
    """Return cells of eight samples, in values that every type of float keeps."""
    rng = np.random.default_rng(0)
    points = np.round(rng.normal(size=(240, 2)) * 16) / 16 + np.repeat([0.0, 2.0], 120)[:, None]
    return points, np.repeat(NAMES, 30)


def laid_out(array: Any, rng: np.random.Generator) -> Any:
    """Return the same values in another type, order or container."""
    kind = chosen(rng, TYPES)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = array.astype(kind)
    how = int(rng.integers(6))
    if how == 0:
        array = np.asfortranarray(array)
    elif how == 1:
        array = np.repeat(array, 2, axis=0)[::2]
    elif how == 2:
        array = array.copy()
        array.flags.writeable = False
    elif how == 3:
        return array.tolist()
    elif how == 4:
        return pd.DataFrame(array)
    return array


def plain(array: Any) -> Any:
    return np.asarray(array, dtype=np.float64)


# -- metadata of samples ----------------------------------------------------------------------------------------------


def truth_of(rng: np.random.Generator) -> list[Any]:
    """Return ordinary values of a variable, one per sample."""
    kind = int(rng.integers(4))
    if kind == 0:
        return [f"g{i % 2}" for i in range(8)]
    if kind == 1:
        return [float(i) for i in range(8)]
    if kind == 2:
        return [None if i == 3 else f"v{i}" for i in range(8)]
    return list(range(8))


def hostile_variables(rng: np.random.Generator) -> tuple[Any, dict[str, list[Any]] | None]:
    """Return variables in some container, and their values by name if they are in order."""
    truth = {"group": truth_of(rng), "age": truth_of(rng)}
    order = rng.permutation(8)
    index = [NAMES[i] for i in order]
    moved = {name: [values[i] for i in order] for name, values in truth.items()}
    how = int(rng.integers(12))
    if how == 0:
        return pd.DataFrame(moved, index=index), truth
    if how == 1:
        return {name: pd.Series(values, index=index) for name, values in moved.items()}, truth
    if how == 2:
        return truth, truth
    if how == 3:
        return pd.DataFrame(truth), truth
    if how == 4:  # a row too few, or too many
        frame = pd.DataFrame(moved, index=index)
        return frame.iloc[:-1] if rng.random() < 0.5 else pd.concat([frame, frame.iloc[:1].set_axis(["new"])]), None
    if how == 5:  # a name twice
        return pd.DataFrame(moved, index=[*index[:-1], index[0]]), None
    if how == 6:
        return {chosen(rng, ODD_NAMES): truth["group"], "age": truth["age"]}, None
    if how == 7:
        values = list(truth["age"])
        for place in rng.integers(8, size=int(rng.integers(1, 8))):
            values[place] = chosen(rng, ODD_VALUES)
        return {"age": values}, None
    if how == 8:
        return {"age": chosen(rng, (*ODD_VALUES, np.zeros((8, 2)), np.zeros(7), [], range(8), iter(range(8))))}, None
    if how == 9:
        return {1: truth["age"], "1": truth["group"]}, None
    if how == 10:
        return chosen(rng, ("age", 3, [1, 2], [("age", [1])], pd.Series([1] * 8, index=list(NAMES)), object())), None
    return {"age": [None] * 8}, {"age": [None] * 8}


def same_values(found: Any, expected: list[Any]) -> bool:
    def missing(value: Any) -> bool:
        return value is None or (isinstance(value, float) and math.isnan(value))

    return len(found) == len(expected) and all(
        (missing(one) and missing(other)) or one == other or str(one) == str(other)
        for one, other in zip(list(found), expected, strict=True)
    )


def check_variables(held: Any, truth: dict[str, list[Any]] | None) -> None:
    demand(all(isinstance(name, str) for name in held), "a variable whose name is no text")
    for name, values in held.items():
        demand(len(values) == 8, f"{len(values)} values of {name!r} for 8 samples")
        texts = [value for value in list(values) if isinstance(value, str)]
        demand(not any(" at 0x" in text for text in texts), "an object's address as a value")
    if truth is not None:
        demand(set(held) == set(truth), f"variables {sorted(held)} in place of {sorted(truth)}")
        for name, values in truth.items():
            demand(same_values(held[name], values), f"{name!r} is {list(held[name])} in place of {values}")


def variables_case(rng: np.random.Generator, folder: Path) -> None:
    given, truth = hostile_variables(rng)
    door = int(rng.integers(4))
    if door == 0:
        path = folder / "i" if rng.random() < 0.3 else None
        index = hm.MeasureIndex.from_embedding(np.arange(8.0)[:, None], names=list(NAMES), variables=given, path=path)
        held = (hm.MeasureIndex.open(path) if path else index).variables()
    elif door == 1:
        index = hm.MeasureIndex.from_embedding(
            [[9.0]], names=["first"], variables=None if truth is None else {name: [None] for name in truth}
        )
        index.add(np.arange(8.0)[:, None], names=list(NAMES), variables=given)
        held = index.variables(np.arange(1, 9))
    elif door == 2:
        points, labels = cells()
        held = hm.build_atlas(points, labels, variables=given, model=model()).variables
    else:
        study = hm.study_comparison(compared(), given, n_permutations=9)
        held = {name: study.variables[name].tolist() for name in study.variables.columns}
    check_variables(held, truth)


@cache
def compared() -> Any:
    return hm.compare(*cells(), n_neighbors=8)


def model() -> Any:
    return hm.DiffusionEMD(n_jobs=1, max_scale=4)


# -- indexes ----------------------------------------------------------------------------------------------------------


@cache
def rows() -> Any:
    return np.round(np.random.default_rng(1).normal(size=(30, 4)) * 8) / 8


@cache
def stored() -> Any:
    return hm.MeasureIndex.from_embedding(rows())


def nearest_of(query: Any, k: int) -> Any:
    """Return the k smallest distances of every query, by a plain loop."""
    return np.sort(np.abs(query[:, None] - rows()[None]).sum(axis=2), axis=1)[:, :k]


def index_case(rng: np.random.Generator, folder: Path) -> None:
    what = int(rng.integers(6))
    if what == 0:
        query = laid_out(rows()[:3] + 1 / 8, rng)
        expected = nearest_of(plain(query), 4) if np.asarray(query).dtype.kind != "c" else None
        found = stored().nearest(query, 4)
        demand(expected is not None and np.allclose(found.distances, expected), "other neighbors")
    elif what == 1:
        k = chosen(rng, ODD_NUMBERS)
        found = stored().nearest(rows()[:2], k)
        demand(np.allclose(found.distances, nearest_of(rows()[:2], int(k))), "other neighbors")
    elif what == 2:
        radius = chosen(rng, (*ODD_NUMBERS, 0.5, 1.0))
        found = stored().within(rows()[:2], radius)
        expected = [(distances <= radius).sum() for distances in np.abs(rows()[:2, None] - rows()).sum(axis=2)]
        demand([len(each) for each in found.rows] == expected, "others within the radius")
    elif what == 3:
        names = [chosen(rng, (*ODD_NAMES, "b", "c", "d")) for _ in range(3)]
        index = hm.MeasureIndex.from_embedding(rows()[:3], names=names, path=folder / "n")
        demand(hm.MeasureIndex.open(folder / "n").names == tuple(map(str, names)) == index.names, "other names")
        demand(not {"None", "nan", "<NA>"} & {str(n) for n in names if not isinstance(n, str)}, "a missing name")
    elif what == 4:
        path = chosen(rng, ("", ".", "a\0b", "\ud800", str(folder), str(folder / "no" / "where")))
        hm.MeasureIndex.open(path)
        demand(False, f"something opened at {path!r}")
    else:
        wrong = rows().copy()
        wrong[chosen(rng, range(30)), 0] = chosen(rng, (math.nan, math.inf, 1e39, -1e300))
        index = hm.MeasureIndex.from_embedding(wrong)
        demand(np.isfinite(wrong).all(), "NaN stored")
        demand(np.isfinite(index.nearest(wrong[:1], 2).distances).all(), "an infinite distance")


# -- atlases ----------------------------------------------------------------------------------------------------------


@cache
def atlas() -> Any:
    points, labels = cells()
    return hm.build_atlas(points, labels, model=model(), variables={"age": list(range(8))})


@cache
def mapped() -> Any:
    points, _ = cells()
    return atlas().map(points[:60], np.repeat(["x", "y"], 30)).distances


def atlas_case(rng: np.random.Generator, folder: Path) -> None:
    points, labels = cells()
    what = int(rng.integers(4))
    new = np.repeat(["x", "y"], 30)
    if what == 0:
        given = laid_out(points[:60], rng)
        expected = atlas().map(plain(given), new).distances if np.asarray(given).dtype.kind != "c" else None
        found = atlas().map(given, new)
        demand(expected is not None and np.array_equal(found.distances, expected), "mapped to another place")
    elif what == 1:
        given = laid_out(points, rng)
        expected = plain(given) if np.asarray(given).dtype.kind != "c" else None
        found = hm.build_atlas(given, labels, model=model())
        demand(
            expected is not None
            and np.array_equal(found.embedding, hm.build_atlas(expected, labels, model=model()).embedding),
            "another atlas",
        )
    elif what == 2:
        wrong = [chosen(rng, ODD_NAMES) if rng.random() < 0.05 else name for name in new]
        found = atlas().map(points[:60], wrong)
        expected = {name.decode() if isinstance(name, bytes) else str(name) for name in wrong}
        demand(set(found.names) == expected, f"samples {found.names} in place of {expected}")
    else:
        path = chosen(rng, ("", "a\0b", "\ud800", str(folder), str(folder / "a.atlas")))
        atlas().save(path)
        demand(np.array_equal(hm.load(path).embedding, atlas().embedding), "another atlas after save and load")


# -- readers ----------------------------------------------------------------------------------------------------------


def table_text(rng: np.random.Generator) -> str:
    """Return a CSV of cells, plain."""
    lines = ["sample,group,CD4,CD8"]
    lines += [f"s{i % 4},g{i % 2},{rng.normal():.3f},{rng.normal():.3f}" for i in range(40)]
    return "\n".join(lines) + "\n"


def damaged(text: str, rng: np.random.Generator) -> bytes:
    """Return the table with one to three things wrong or odd."""
    lines = text.splitlines()
    for _ in range(int(rng.integers(1, 4))):
        place, how = int(rng.integers(len(lines))), int(rng.integers(14))
        fields = lines[place].split(",")
        field = int(rng.integers(len(fields)))
        if how == 0:
            fields[field] = str(
                chosen(rng, ("", "NA", "nan", "inf", "-inf", "1e400", "9" * 400, "0x10", "1_000", "1,5"))
            )
        elif how == 1:
            fields = fields[:-1]
        elif how == 2:
            fields.append("7")
        elif how == 3:
            fields[field] = '"' + fields[field]
        elif how == 4:
            fields[field] = f'"{fields[field]}\n"'
        elif how == 5:
            fields[field] = chosen(rng, ("é", "\u202e", "a\0b", "=1+1", "<script>", " ", "#", "\ufeff", "x" * 5000))
        elif how == 6:
            fields = [""] if rng.random() < 0.5 else fields + [""] * 3
        elif how == 7:
            lines.insert(place, lines[place])
            continue
        elif how == 8:
            lines = [line.replace(",", chosen(rng, (";", "\t", "|"))) for line in lines]
            continue
        elif how == 9:
            lines = lines[:place]
            if not lines:
                lines = [""]
            continue
        elif how == 10:
            lines[0] = ",".join(str(chosen(rng, ("sample", "CD4", "", "1", "x"))) for _ in range(4))
            continue
        elif how == 11:
            lines.insert(place, "# a remark")
            continue
        elif how == 12:
            fields[-1] = fields[-1].replace(".", ",")
        else:
            fields = [f" {each} " for each in fields]
        lines[place] = ",".join(fields)
    end = chosen(rng, ("\n", "\r\n", "\r"))
    return (end.join(lines) + end).encode(chosen(rng, ("utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1")), "replace")


def readers_case(rng: np.random.Generator, folder: Path) -> None:
    path = folder / f"cells.{chosen(rng, ('csv', 'csv', 'tsv', 'csv.gz', 'parquet', 'h5ad', 'fcs'))}"
    data = damaged(table_text(rng), rng)
    path.write_bytes(data)
    cohort = hm.read_cohort(path, sample_key="sample")
    points = cohort.points()
    demand(np.isfinite(points).all(), "NaN read")
    records = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=None)))
    named = [dict(zip(records[0], record, strict=False)) for record in records[1:] if any(map(str.strip, record))]
    features = [name for name in cohort.features if name in ("CD4", "CD8")]
    for column, feature in enumerate(cohort.features):
        if feature in features:
            said = [float(record[feature]) for record in named]
            demand(np.allclose(np.sort(said), np.sort(points[:, column])), f"other numbers of {feature}")


# -- options ----------------------------------------------------------------------------------------------------------

OPTION_NAMES = (
    "--sample-key", "--rep", "--color", "--cells", "--block", "--adjust", "--formula", "--permutations", "--bootstrap",
    "--neighbors", "--landmarks", "--seed", "--threads", "--clusters", "--equal-cells", "--min-cells", "--bias",
    "--units", "--memory", "--components", "--numeric", "--categorical", "--title", "--sample-sheet", "--out",
    "--force", "--standardize", "--reference", "--verbose", "--missing", "--cofactor", "--transform", "--checkpoint",
)  # fmt: skip
OPTION_VALUES = (
    "", " ", "0", "1", "-1", "3", "5.0", "2.5", "1e9", "999999", "nan", "inf", "auto", "none", "group", "sample", "CD4",
    "no such", "group,age", "x" * 400, "group + age", "~", "a:b*", "=1", "--", "é", "\udc80", "1GB", "10 B", "/",
)  # fmt: skip


def options_case(rng: np.random.Generator, folder: Path) -> None:
    from typer.testing import CliRunner

    from heatmover.cli import app

    file = folder / "cells.csv"
    file.write_text(table_text(rng), encoding="utf-8")
    command = chosen(rng, ("compare", "doctor", "atlas build", "atlas map", "atlas info", "atlas add", "demo"))
    words = command.split()
    if rng.random() < 0.85 and command != "demo":
        words.append(str(file))
    for _ in range(int(rng.integers(1, 4))):
        words.append(chosen(rng, OPTION_NAMES))
        if rng.random() < 0.9:
            words.append(chosen(rng, OPTION_VALUES))
    if command == "demo":
        words.append("--no-such-option")  # a demo that runs takes long
    out = folder / "out"
    words += ["--out", str(out)] if "--out" not in words and command in ("compare", "atlas build", "atlas map") else []
    before = sorted(path.name for path in folder.iterdir())
    with contextlib.chdir(folder):
        result = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    demand(result.exit_code in (0, 2, 3), f"exit code {result.exit_code}")
    demand("Traceback" not in result.output, "a traceback")
    demand(not re.search(r"\bhm\.|Graph\.from|DiffusionEMD\(", result.stderr), f"advice in Python: {result.stderr}")
    if result.exit_code == 2:
        demand(sorted(path.name for path in folder.iterdir()) == before, "something written")
        lines = [line.strip("│╭─╮ ") for line in result.stderr.splitlines()]
        lines = [line for line in lines if re.search("[a-z]", line) and line != "Error" and not line.endswith(" ...")]
        demand(len(lines) == 1 or "Usage" in result.output, f"{len(lines)} lines: {result.stderr!r}")


# -- all of them ------------------------------------------------------------------------------------------------------

DOORS: dict[str, Callable[[np.random.Generator, Path], None]] = {
    "variables": variables_case,
    "index": index_case,
    "atlas": atlas_case,
    "readers": readers_case,
    "options": options_case,
}


def run_case(door: str, number: int, seed: int = 0) -> tuple[str, str]:
    """Run one case; return ``"accepted"``, ``"rejected"`` or ``"FAILED"``, and what was said."""
    rng = np.random.default_rng([seed, list(DOORS).index(door), number])
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            DOORS[door](rng, folder)
        return "accepted", ""
    except HeatmoverError as error:
        message = str(error)
        one = "\n" not in message and message.endswith((".", "?", ")")) and len(message) < 900
        return ("rejected", message) if one else ("FAILED", f"not one sentence: {message!r}")
    except Exception:
        return "FAILED", traceback.format_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", help="one case, such as index:17")
    asked = parser.parse_args()
    if asked.case:
        door, _, number = asked.case.partition(":")
        print(*run_case(door, int(number), asked.seed), sep="\n")
        return
    counts: Counter[tuple[str, str]] = Counter()
    for door, share in SHARES.items():
        for number in range(round(share * asked.cases)):
            verdict, said = run_case(door, number, asked.seed)
            counts[door, verdict] += 1
            if verdict == "FAILED":
                last = said.strip().splitlines()[-1]
                print(f"{door}:{number} {last[:300]}", flush=True)
    for (door, verdict), count in sorted(counts.items()):
        print(f"{door:10} {verdict:9} {count:6,}")
    sys.exit(any(verdict == "FAILED" for _, verdict in counts))


if __name__ == "__main__":
    main()
