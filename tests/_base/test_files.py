"""Files appear complete or not at all; locks keep processes apart and end with them."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from heatmover._base.files import plain, replacing
from heatmover.errors import InvalidInputError


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("old")
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real: (done.append(name), real(*a))[1])
    with replacing(tmp_path / "x") as file:
        file.write("new")
    assert done[:2] == ["fsync", "replace"]
    assert (tmp_path / "x").read_text() == "new"


def test_a_failure_leaves_the_old_file(tmp_path):
    (tmp_path / "x").write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "x") as file:
        file.write(str(1 / 0))
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_path_without_a_name_is_refused(path):
    with pytest.raises(InvalidInputError, match="the path of a file, found"), replacing(path):
        pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (math.inf, "inf"),
        (np.float32("nan"), None),
        (np.array([1, 2]), [1, 2]),
        ((1, {2.5}), [1, [2.5]]),
        ({1: True, None: np.int64(3)}, {"1": True, "None": 3}),
        (Path("x"), "x"),
        (np.bool_(False), False),
    ],
)
def test_plain_values(value, expected):
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)
    json.dumps(found, allow_nan=False)
