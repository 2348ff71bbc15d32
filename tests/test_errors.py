from __future__ import annotations

import pickle

import pytest

from heatmover.errors import GraphWarning, HeatmoverError, InvalidInputError, MissingExtraError


def test_one_grammar():
    error = InvalidInputError("a positive number", "-1", "use 1")
    assert str(error) == "Expected a positive number, found -1; use 1."
    assert (error.expected, error.found, error.advice) == ("a positive number", "-1", "use 1")


def test_advice_may_be_missing():
    assert str(InvalidInputError("a number", "'x'")) == "Expected a number, found 'x'."


def test_missing_extra_names_what_to_install():
    error = MissingExtraError("POT", "exact")
    assert str(error) == (
        "Expected the package 'POT', found it missing; run 'pip install POT' (part of the extra heatmover[exact])."
    )


def test_one_installation_is_enough_for_several_packages():
    assert str(MissingExtraError("typer rich", "demo")) == (
        "Expected the packages 'typer', 'rich', found them missing; run 'pip install typer rich' (part of the extra "
        "heatmover[demo])."
    )


def test_families():
    """Callers can catch them as what they are in plain Python, or all of ours at once."""
    assert issubclass(InvalidInputError, ValueError)
    assert issubclass(MissingExtraError, ImportError)
    assert issubclass(InvalidInputError, HeatmoverError)
    assert issubclass(MissingExtraError, HeatmoverError)
    assert issubclass(GraphWarning, UserWarning)


@pytest.mark.parametrize(
    "error", [InvalidInputError("a", "b", "c"), InvalidInputError("a", "b"), MissingExtraError("p", "e")]
)
def test_errors_cross_process_borders(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
