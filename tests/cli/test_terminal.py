"""Names cannot command the terminal, errors are one sentence, and defects keep their traceback."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from heatmover._base.progress import SILENT
from heatmover.cli._command import plain_errors
from heatmover.cli._terminal import LONGEST_NAME, clean, output, short, watched, whole_output, written
from heatmover.errors import InvalidInputError, argument


@given(st.text())
def test_clean_text_is_one_printable_line(text):
    shown = clean(text)
    assert shown.isprintable()
    assert clean(shown) == shown


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_what_shows_itself_stays(text):
    assert clean(text) == text


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a\x1b[2Jb", "a\\x1b[2Jb"), ("a\nb\tc\r", "a\\nb\\tc\\r"), ("\u202egpj", "\\u202egpj"), ("a\xa0b", "a b")],
)
def test_what_commands_is_spelled_out(name, shown):
    assert clean(name) == shown


def test_half_characters_are_spelled_out():
    assert clean("a\udc80") == "a\\udc80"


def test_markup_in_names_is_text(capsys):
    output().print("[bold]x[/bold] :smile:")
    assert capsys.readouterr().out == "[bold]x[/bold] :smile:\n"


def test_an_alphabet_without_the_letter(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    output().print("é")
    stream.flush()
    assert stream.buffer.getvalue() == b"\\xe9\n"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InvalidInputError(argument("min_cells"), "1\n2"), "Error: Expected --min-cells, found 1\\n2."),
        (OSError(28, "No space left on device"), "Error: Could not write the results (No space left on device)."),
        (PermissionError(13, "Permission denied", "x"), "Error: Could not write the results: x (Permission denied)."),
        (MemoryError(), "Error: Expected enough memory, found too little; try --landmarks 4000."),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(error, sentence, capsys):
    with pytest.raises(typer.Exit) as ended, plain_errors():
        raise error
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == sentence + "\n"


@pytest.mark.parametrize("error", [ZeroDivisionError(), OSError("a template that is not there"), KeyError("x")])
def test_a_defect_keeps_its_traceback(error):
    with pytest.raises(type(error)), plain_errors():
        raise error


def test_the_version_has_a_short_option(cli):
    assert cli.run("-V").stdout == cli.run("--version").stdout


def test_shells_can_complete_options():
    variables = {"_HEATMOVER_COMPLETE": "complete_bash", "COMP_WORDS": "heatmover compare --sam", "COMP_CWORD": "2"}
    done = subprocess.run(
        [Path(sys.executable).with_name("heatmover")],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        check=True,
    )
    assert done.stdout.split() == ["--sample-key", "--sample-sheet"]


def test_long_names_lose_their_middle():
    one, other = (short(f"pbmc_of_a_patient_with_a_long_name_day_{day}") for day in (1, 2))
    assert one != other
    assert len(one) == LONGEST_NAME
    assert one.startswith("pbmc_of_a")
    assert one.endswith("_day_1")


def test_quiet_is_silent():
    with watched(quiet=True) as progress:
        assert progress is SILENT


class Full(io.StringIO):
    """A stream that fails as a full disk or a reader that went away does."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def write(self, text):
        raise OSError(self.number, os.strerror(self.number))


@pytest.fixture
def streams(monkeypatch):
    """Return a function that puts streams in the place of the usual ones."""

    def put(stdout, stderr):
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)

    return put


def test_output_that_is_lost_is_told_in_a_sentence(streams):
    errors = io.StringIO()
    streams(Full(errno.ENOSPC), errors)
    with pytest.raises(SystemExit) as ended, whole_output():
        output().print("found")
    assert ended.value.code == 2
    assert errors.getvalue() == "Error: Could not print the results (No space left on device).\n"


def test_lost_output_is_not_called_lost_results(streams):
    errors = io.StringIO()
    streams(Full(errno.ENOSPC), errors)
    with pytest.raises(SystemExit), whole_output(), written(Path("out")):
        output().print("found")
    assert (
        errors.getvalue() == "Error: Could not print the results (No space left on device); the results are in out.\n"
    )


def test_a_reader_that_went_away_hears_nothing(streams):
    errors = io.StringIO()
    streams(Full(errno.EPIPE), errors)
    with pytest.raises(SystemExit) as ended, whole_output():
        typer.echo("found")
    assert ended.value.code == 1
    assert errors.getvalue() == ""


def test_progress_that_nobody_sees_ends_nothing(streams):
    found = io.StringIO()
    streams(found, Full(errno.ENOSPC))
    with whole_output():
        with watched(quiet=False) as progress:
            progress.stage("work", 3)
            progress.advance()
        typer.echo("found")
    assert found.getvalue() == "found\n"


def test_streams_that_were_closed_before(streams):
    streams(None, None)
    with whole_output():
        output().print("found")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_a_full_device(argument):
    command = [sys.executable, "-m", "heatmover", argument]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: Could not print the results (No space left on device).\n"
