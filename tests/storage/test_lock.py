"""One writer at a time, whose lock ends with its process."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heatmover.errors import InvalidInputError
from heatmover.storage.lock import explained, writing

HOLD = """
import pathlib, sys, time
from heatmover.storage.lock import writing
with writing(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_told(tmp_path):
    with (
        writing(tmp_path),
        pytest.raises(InvalidInputError, match="one writer at a time, found that another"),
        writing(tmp_path),
    ):
        pass
    with writing(tmp_path):  # and afterwards it is free
        pass


def test_a_killed_writer_blocks_nobody(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InvalidInputError, match="another is writing"), writing(tmp_path):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with writing(tmp_path):
        pass


def test_an_error_inside_lets_go(tmp_path):
    with pytest.raises(ZeroDivisionError), writing(tmp_path):
        raise ZeroDivisionError
    with writing(tmp_path):
        pass


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(InvalidInputError, match="to write to"), writing(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSPC, "no space left on the device; free some"),
        (errno.EDQUOT, "no space left"),
        (errno.EROFS, "folder that can be written, found that writing is not allowed"),
        (errno.EACCES, "writing is not allowed"),
        (errno.EIO, "found that this failed"),
    ],
)
def test_why_something_cannot_be_written(code, said):
    with pytest.raises(InvalidInputError, match=said), explained(Path("place")):
        raise OSError(code, "as the system says")
