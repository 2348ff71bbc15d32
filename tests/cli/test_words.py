"""Sentences of the package in the words of the command line."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import fields

import pytest
import typer

from heatmover.analysis import StudyParameters
from heatmover.cli import app
from heatmover.cli._options import OPTIONS, in_options
from heatmover.cli._settings import Reading
from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError, Sentence, argument
from heatmover.report import result_folder
from heatmover.scale import InPieces


@pytest.mark.parametrize(
    ("marked", "python", "options"),
    [
        (f"lower {argument('min_cells')}", "lower min_cells", "lower --min-cells"),
        (f"{argument('min_cells', 2)} leaves", "min_cells=2 leaves", "--min-cells 2 leaves"),
        (f"{argument('n_components', 'all')} keeps", "n_components='all' keeps", "--components all keeps"),
        (f"or {argument('allow_components', True)}", "or allow_components=True", "or --allow-components"),
        (f"found {argument('landmarks', None)}", "found landmarks=None", "found --landmarks none"),
        (f"{argument('n_axes', 3)} of {argument('k')}", "n_axes=3 of k", "n_axes=3 of k"),
        ("20 landmarks and a min_cells", "20 landmarks and a min_cells", "20 landmarks and a min_cells"),
    ],
)
def test_arguments_become_options(marked, python, options):
    sentence = Sentence(marked)
    assert sentence == python
    assert in_options(sentence) == options
    assert in_options(pickle.loads(pickle.dumps(sentence))) == options


@pytest.mark.parametrize("name", ["min_cells", "min_cells=2", "it's min_cells", "\x02min_cells\x03"])
def test_the_users_own_names_stay(name):
    error = InvalidInputError(f"{argument('variables')} to be names", repr(name), f"lower {argument('min_cells')}")
    assert str(error) == f"Expected variables to be names, found {name!r}; lower min_cells."
    assert in_options(error.sentence) == f"Expected --color to be names, found {name!r}; lower --min-cells."
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), in_options(again.sentence)) == (str(error), in_options(error.sentence))


def test_every_option_exists_and_every_argument_has_one():
    command = typer.main.get_command(app)
    known = {option for each in command.commands.values() for parameter in each.params for option in parameter.opts}
    assert set(OPTIONS.values()) <= known
    taken = {field.name for value in (Reading, StudyParameters, InPieces) for field in fields(value)}
    taken |= {name for function in (read_cohort, result_folder) for name in inspect.signature(function).parameters}
    assert set(OPTIONS) <= taken
    # What no option sets.
    assert taken - set(OPTIONS) == {"path", "annotations", "required", "progress", "passes"}
