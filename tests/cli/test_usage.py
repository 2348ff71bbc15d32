"""Words that a command does not take are answered by one sentence and exit code 2, by every command."""

from __future__ import annotations

import pytest
import typer

from heatmover.cli import app

GROUP = typer.main.get_command(app)
COMMANDS = {
    **{(name,): command for name, command in GROUP.commands.items() if not hasattr(command, "commands")},
    **{("atlas", name): command for name, command in GROUP.commands["atlas"].commands.items()},
}
# What each reads, and the folder that must be named.
NEEDS = {
    ("compare",): ["FILE", "-o", "OUT", "-s", "sample"],
    ("doctor",): ["FILE"],
    ("demo",): [],
    ("atlas", "build"): ["FILE", "-o", "OUT", "-s", "sample"],
    ("atlas", "map"): ["FILE", "FILE"],
    ("atlas", "add"): ["FILE", "FILE"],
    ("atlas", "info"): ["FILE"],
    ("atlas", "check"): ["FILE"],
}


def options_of(command):
    """Return the options of a command that take a value."""
    return [each.opts[0] for each in COMMANDS[command].params if each.opts[0].startswith("--") and each.metavar]


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """A folder of its own, in which nothing appears."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


def test_every_command_is_in_the_table():
    assert set(NEEDS) == set(COMMANDS)


@pytest.mark.parametrize("command", [words for words in NEEDS if NEEDS[words]])
def test_without_any_words(command, cli):
    cli.fails_with(cli.run(*command), rf"Missing argument '(FILE|ATLAS)'; see heatmover {' '.join(command)} --help\.$")


@pytest.mark.parametrize("command", NEEDS)
def test_an_unknown_option(command, cli):
    said = rf"Unknown option '--verbose'\. See heatmover {' '.join(command)} --help\.$"
    cli.fails_with(cli.run(*command, *NEEDS[command], "--verbose"), said)
    cli.fails_with(cli.run(*command, "--verbose"), said)


@pytest.mark.parametrize("command", [words for words in NEEDS if options_of(words)])
def test_a_misspelt_option(command, cli):
    option = options_of(command)[0]
    cli.fails_with(cli.run(*command, f"{option}s=1"), rf"Unknown option '{option}s'\. Did you mean '{option}'\?$")


@pytest.mark.parametrize("command", NEEDS)
def test_a_word_too_many(command, cli):
    result = cli.run(*command, *NEEDS[command], "one", "two")
    cli.fails_with(result, r"unexpected extra argument\(s\) \(one two\); put names with spaces into quotes\.$")


@pytest.mark.parametrize("command", [words for words in NEEDS if NEEDS[words]])
def test_a_file_that_is_not_there(command, cli):
    cli.fails_with(cli.run(*command, *NEEDS[command]), "Expected a (file that exists|heatmover store).*'FILE'")


@pytest.mark.parametrize("command", NEEDS)
def test_an_option_without_its_value(command, cli):
    options = [
        parameter.opts[0] for parameter in COMMANDS[command].params if parameter.metavar and "-" in parameter.opts[0]
    ]
    for option in options:
        if option != "--equal-cells":  # which needs none
            cli.fails_with(cli.run(*command, *NEEDS[command], option), rf"'{option}' requires an argument\.$")


@pytest.mark.parametrize(
    ("words", "sentence"), [(["bench"], "No such command 'bench'"), (["--loud"], "option '--loud'")]
)
@pytest.mark.parametrize("group", [[], ["atlas"]])
def test_an_unknown_command(group, words, sentence, cli):
    cli.fails_with(cli.run(*group, *words), sentence)


@pytest.mark.parametrize("group", [[], ["atlas"]])
def test_groups_alone_show_their_help(group, cli):
    result = cli.run(*group)
    assert result.exit_code == 2
    assert "Usage: heatmover" in result.output
