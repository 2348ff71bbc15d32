"""Sentences of the package in the words of the command line."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import fields

import pytest
import typer

from heatmover.atlas import Atlas, build_atlas
from heatmover.cli import app
from heatmover.cli._settings import OPTIONS, Reading, in_options
from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError, Sentence, argument
from heatmover.report import result_folder
from heatmover.study import StudyParameters
from heatmover.study.scale import InPieces


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
    commands = list(command.commands.values())
    commands += [each for group in commands for each in getattr(group, "commands", {}).values()]
    known = {option for each in commands for parameter in each.params for option in parameter.opts}
    assert set(OPTIONS.values()) <= known
    taken = {field.name for value in (Reading, StudyParameters, InPieces) for field in fields(value)}
    taken |= {name for function in (read_cohort, result_folder) for name in inspect.signature(function).parameters}
    of_atlases = {name for function in (build_atlas, Atlas.map) for name in inspect.signature(function).parameters}
    of_commands = {"effect", "nearest", "predict", "quiet", "samples", "scheduler", "title"}
    assert set(OPTIONS) == (set(OPTIONS) & (taken | of_atlases)) | of_commands
    # What no option sets.
    assert taken - set(OPTIONS) == {"path", "annotations", "required", "progress", "look_later", "names"}


SAME = {
    "min_cells": ("--min-cells", "0", 0),
    "n_neighbors": ("--neighbors", "few", "few"),
    "landmarks": ("--landmarks", "many", "many"),
    "bias": ("--bias", "none", "none"),
    "n_bootstrap": ("--bootstrap", "-1", -1),
    "n_permutations": ("--permutations", "1.5", 1.5),
    "random_state": ("--seed", "-1", -1),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("command", ["compare", "doctor"])
def test_a_bad_parameter_is_the_same_sentence_from_python_and_from_the_command_line(
    name, command, cells, tmp_path, cli
):
    option, typed, value = SAME[name]
    with pytest.raises(InvalidInputError) as refused:
        StudyParameters(**{name: value})
    out = () if command == "doctor" else ("-o", tmp_path / "out")
    result = cli.run(command, cells, "-s", "sample", option, typed, *out)
    assert result.exit_code == 2
    # Before a name that is also a plain noun, Python users see "the argument".
    sentence = str(refused.value).replace(f"the argument {name}", name, 1)
    assert result.stderr == f"Error: {sentence.replace(name, option, 1)}\n"
    assert not (tmp_path / "out").exists()


def test_a_misspelt_parameter_is_told_what_was_meant():
    with pytest.raises(InvalidInputError, match=r"a parameter of a study, found 'n_neigbors' \(did you mean 'n_neigh"):
        StudyParameters.named(None, {"n_neigbors": 5})
    with pytest.raises(InvalidInputError, match=r"found 'verbose'; there are 'variables', .* 'random_state'"):
        StudyParameters.named(None, {"verbose": True})
