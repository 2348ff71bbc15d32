"""Messages of the package become messages about options."""

from __future__ import annotations

import inspect

import pytest

from heatmover import scale
from heatmover.analysis.study import study_cohort
from heatmover.cli import _options, _words
from heatmover.cli._words import in_options
from heatmover.cohort import read_cohort


@pytest.mark.parametrize(
    ("python", "options"),
    [
        (
            "min_cells=2 leaves them out, min_cells=1 keeps them",
            "--min-cells 2 leaves them out, --min-cells 1 keeps them",
        ),
        ('n_components=50 reduces, n_components="all" keeps', "--components 50 reduces, --components all keeps"),
        ("raise n_neighbors, or allow_parts=True to go on", "raise --neighbors, or --allow-parts to go on"),
        ("sample_key to be a column of obs", "--sample-key to be a column of obs"),
        ("n_permutations to be a whole number", "--permutations to be a whole number"),
        ("representation to be 'X' or a key of obsm", "--rep to be 'X' or a key of obsm"),
        ("every name in representation to be a channel of 'a.fcs'", "every name in --rep to be a channel of 'a.fcs'"),
        ("random_state to be", "--seed to be"),
        (
            "cofactor for FCS files only, found a cofactor and a",
            "--cofactor for FCS files only, found a cofactor and a",
        ),
        ("cofactor to be a number", "--cofactor to be a number"),
        ("Spearman 0.9 through 20 landmarks and on", "Spearman 0.9 through 20 landmarks and on"),
        ("landmarks to be a whole number", "--landmarks to be a whole number"),
        ("lower min_cells", "lower --min-cells"),
        ("use --standardize or --min-cells 3", "use --standardize or --min-cells 3"),
        ("the files' names, not the sample_key's", "the files' names, not the --sample-key's"),
    ],
)
def test_arguments_become_options(python, options):
    assert in_options(python) == options


@pytest.mark.parametrize("name", ["'min_cells'", '"min_cells=2"', "'it\\'s min_cells'", "'sample_key' and 'n_jobs'"])
def test_the_users_own_names_stay(name):
    assert in_options(f"found {name} only") == f"found {name} only"


def test_every_option_exists_and_every_argument_has_one():
    source = inspect.getsource(_options)
    functions = (read_cohort, study_cohort, scale.study_cohort)
    taken = {name for function in functions for name in inspect.signature(function).parameters}
    for argument, option in _words.OPTIONS.items():
        assert argument in taken
        name = option.removeprefix("--")
        assert option in source or "".join(part.capitalize() for part in name.split("-")) in source
    # Those that no option sets, or that are spelled otherwise there.
    assert taken - set(_words.OPTIONS) == {
        "path", "cohort", "annotations", "required", "progress", "variables", "block", "client"
    }  # fmt: skip


def test_what_has_no_option_is_told_in_python():
    assert "in Python, embed them with DiffusionEMD(graph)" in in_options("; embed them with DiffusionEMD(graph).fit")
    told = in_options("name it in no_features, or name the columns wanted in representation.")
    assert told == "name it in --annotation, or name the columns wanted in --rep."
