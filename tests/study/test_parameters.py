"""`StudyParameters`: one value, checked once, with the same sentence from Python and from the command line."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from functools import partial
from inspect import signature

import numpy as np
import pytest

import heatmover as hm
from heatmover.errors import InvalidInputError
from heatmover.study import InMemory, StudyParameters
from heatmover.study.parameters import COMPARED, descriptions
from heatmover.study.scale import InPieces

IN_PIECES = partial(hm.study_cohort, comparer=InPieces())

BAD = {
    "variables as text": ({"variables": "condition"}, r"variables to be a list of names, found 'condition'; write \["),
    "variables of numbers": ({"variables": ["a", 1]}, "variables to be a name, found 1"),
    "block": ({"block": 3}, "block to be a name or a list of names, found 3"),
    "cells": ({"cells": ["type"]}, r"cells to be a name, found \['type'\]"),
    "numeric as text": ({"numeric": "age"}, r"numeric to be a list of names, found 'age'"),
    "both readings": (
        {"numeric": ["a"], "categorical": ["b", "a"]},
        "every variable in only one of the arguments numeric and categorical, found 'a' in both",
    ),
    "unknown variable": (
        {"numeric": ["grup"]},
        r"the name of a column of sample metadata, found 'grup' \(did you mean 'group'\?\)",
    ),
    "text as numbers": (
        {"numeric": ["group"]},
        "numbers in 'group', a column named in the argument numeric, found 'a'",
    ),
    "min_cells": ({"min_cells": 0}, "min_cells to be a whole number of at least 1, found 0"),
    "fraction": ({"min_cells": 1.5}, "min_cells to be a whole number of at least 1, found 1.5"),
    "truth": ({"allow_components": "yes"}, "allow_components to be True or False, found 'yes'"),
    "n_neighbors": ({"n_neighbors": True}, "n_neighbors to be a whole number of at least 1, found True"),
    "landmarks": ({"landmarks": "many"}, "landmarks to be a whole number, 'auto' or none, found 'many'"),
    "no landmarks": ({"landmarks": 0}, "landmarks to be a whole number of at least 1, found 0"),
    "n_permutations": ({"n_permutations": "9"}, "n_permutations to be a whole number of at least 1, found '9'"),
    "negative seed": ({"random_state": -1}, "random_state to be a whole number of at least 0, found -1"),
    "long seed": (
        {"random_state": 2**64},
        "random_state to be at most 9223372036854775807, found 18446744073709551616",
    ),
    "generator": ({"random_state": np.random.default_rng(0)}, "random_state to be a whole number of at least 0"),
    "misspelt": ({"n_neighbours": 5}, r"a parameter of a study, found 'n_neighbours' \(did you mean 'n_neighbors'\?\)"),
    "unknown": (
        {"xyzzy": 5},
        "a parameter of a study, found 'xyzzy'; there are 'variables', 'block', 'adjust', 'formula', 'align_batch'",
    ),
}


@pytest.mark.parametrize("function", [hm.compare, hm.tl.sample_distances])
def test_signatures_that_users_read_agree_with_the_descriptions(function):
    parameters = signature(function).parameters
    defaults = {name: parameters[name].default for name in COMPARED}
    # A study removes small-sample bias by default; a comparison reports the cells at hand.
    expected = {name: descriptions(StudyParameters)[name].default for name in COMPARED} | {"bias": "raw"}
    assert defaults == expected


def test_an_option_that_an_out_of_core_comparison_lacks_is_refused(cohort):
    for call in (hm.scale.compare_cohort, hm.scale.histograms):
        with pytest.raises(InvalidInputError, match=r"an option of an out-of-core run, found 'variables'; there are"):
            call(cohort, variables=["group"])


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    rng = np.random.default_rng(0)
    rows = [f"s{s},{'ab'[s % 2]},{x},{y}" for s in range(4) for x, y in rng.normal(size=(20, 2))]
    path = tmp_path_factory.mktemp("cohort") / "cells.csv"
    path.write_text("\n".join(["sample,group,x,y", *rows]))
    return hm.read_cohort(path, sample_key="sample")


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("study", [hm.study_cohort, IN_PIECES], ids=["memory", "pieces"])
def test_bad_parameters_are_refused_before_anything_is_compared(case, study, cohort, monkeypatch):
    monkeypatch.setattr(InMemory, "compare", lambda *_: pytest.fail("compared"))
    monkeypatch.setattr(InPieces, "compare", lambda *_: pytest.fail("compared"))
    changes, sentence = BAD[case]
    with pytest.raises(InvalidInputError, match=sentence):
        study(cohort, **changes)


def test_what_is_given_by_name_changes_what_is_given_as_a_value():
    given = StudyParameters(n_neighbors=7, random_state=3)
    assert StudyParameters.named(given, {"random_state": 4}) == StudyParameters(n_neighbors=7, random_state=4)
    assert given.random_state == 3
    with pytest.raises(InvalidInputError, match=r"parameters to be StudyParameters, found dict; pass"):
        StudyParameters.named({"n_neighbors": 7}, {})
    with pytest.raises(FrozenInstanceError):
        given.n_neighbors = 8


def test_names_are_kept_once_in_their_order_and_numbers_become_pythons():
    made = StudyParameters(variables=["b", "a", "b"], n_neighbors=np.int64(5))
    assert made.variables == ("b", "a")
    assert type(made.n_neighbors) is int


def test_the_record_is_every_parameter_as_plain_values():
    made = StudyParameters(variables=["b"], landmarks=None)
    assert list(made.record()) == [field.name for field in fields(StudyParameters)]
    assert json.loads(json.dumps(made.record())) == made.record()


def test_threads_are_given_once(cohort):
    with pytest.raises(InvalidInputError, match="n_jobs only in the comparer, found n_jobs=2 as an argument"):
        hm.study_cohort(cohort, comparer=InMemory(1), n_jobs=2)


def test_pieces_need_landmarks(cohort):
    with pytest.raises(InvalidInputError, match="landmarks for cells that stay on disk, found landmarks=None"):
        hm.study_cohort(cohort, comparer=InPieces(), landmarks=None)


def test_a_variable_is_not_adjusted_for_itself():
    StudyParameters(variables=["condition", "batch"], adjust=["batch"])
    words = "'condition' in the arguments variables and adjust; leave it out of one of the two"
    with pytest.raises(InvalidInputError, match=words):
        StudyParameters(variables=["condition"], adjust=["condition"])


@pytest.mark.parametrize("block", ["batch", ["patient", "batch"]])
def test_a_block_is_not_a_covariate(block):
    words = (
        "^Expected different columns in the arguments block and adjust, found 'batch' in both; leave it out of one of "
        "the two.$"
    )
    with pytest.raises(InvalidInputError, match=words):
        StudyParameters(block=block, adjust=["age", "batch"])
