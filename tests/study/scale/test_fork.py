"""A forked process compares as its parent did: no threads are waited for that did not come with it."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from heatmover.study.scale import compare_cohort

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_compares_as_its_parent(cohort, small_pieces):
    small_pieces(500)
    expected = compare_cohort(cohort, landmarks=60, n_jobs=2).distances
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a child that waits for ever
        code = 1
        try:
            code = int(not np.array_equal(compare_cohort(cohort, landmarks=60, n_jobs=2).distances, expected))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
