"""Numbers on pages are those of the numbers files, and the script that says so notices when they are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINE = "*`python benchmarks/race.py`, commit 0123abc, 2026-01-02, 2 threads; Python 3.12.1*"
RACE = f"""| method | size | seconds | P@10 |
|---|--:|--:|--:|
| ours | 100 | 0.70 | 0.949 (0.611) |
| ours | 200 | 1.52 | 0.93 |
| theirs | 100 | 180 | 0.927 |

The best of five; theirs needs 27 times as long.

{LINE}
"""
CLAIM = '{ text = "takes # s", is = ["race | ours | 100 | seconds"] }'


@pytest.fixture
def claims(script):
    return script("verify_claims")


@pytest.fixture
def project(tmp_path, claims, capsys):
    """A function that writes a small project, runs the script on it and returns its exit code and its lines."""

    def run(page: str, registry: str, race: str = RACE) -> tuple[int, list[str]]:
        (tmp_path / "docs/results/numbers").mkdir(parents=True, exist_ok=True)
        (tmp_path / "benchmarks").mkdir(exist_ok=True)
        (tmp_path / "README.md").write_text(page, encoding="utf-8")
        (tmp_path / "benchmarks/claims.toml").write_text(registry, encoding="utf-8")
        (tmp_path / "docs/results/numbers/race.md").write_text(race, encoding="utf-8")
        code = claims.main(["--root", str(tmp_path)])
        return code, capsys.readouterr().out.splitlines()

    return run


def of_readme(entry: str) -> str:
    return f'["README.md"]\nclaims = [{entry}]\n'


def test_the_pages_of_this_project_claim_what_was_measured(claims, capsys):
    code = claims.main([])
    said = capsys.readouterr()
    assert said.out == ""
    assert code == 0
    assert int(re.search(r"(\d+) numbers compared", said.err)[1]) > 100
    assert int(re.search(r"(\d+) verdicts decided", said.err)[1]) > 30


def test_a_right_number_passes(project):
    assert project("It takes 0.70 s.", of_readme(CLAIM)) == (0, [])


def test_a_wrong_number_is_told_with_its_place_and_both_values(project):
    code, (line,) = project("Words.\n\nIt takes 0.72 s.", of_readme(CLAIM))
    assert code == 1
    assert line.startswith("README.md:3: says 0.72")
    assert "0.7" in line.split("but")[1]


@pytest.mark.parametrize(
    ("written", "value", "expected"),
    [
        ("0.72", 0.7, "0.70"),
        ("+0.06", 0.051, "+0.05"),
        ("-0.08", -0.061, "-0.06"),
        ("180", 263.2, "260"),
        ("3,395", 3412.0, "3,412"),
        ("3e-7", 4.2e-9, "4e-9"),
    ],
)
def test_a_number_is_mended_with_as_many_digits(claims, written, value, expected):
    assert claims.rewritten(written, value) == expected


def test_wrong_numbers_are_put_right(tmp_path, project, claims, capsys):
    project("It takes 0.72 s, says 3.", of_readme(CLAIM) + 'given.data = ["says 3"]\n')
    assert claims.main(["--root", str(tmp_path), "--mend"]) == 0
    assert "0.72 becomes 0.70" in capsys.readouterr().out
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "It takes 0.70 s, says 3."


def test_a_number_without_a_source_is_told(project):
    code, (line,) = project("It takes 0.70 s on 8 cores.", of_readme(CLAIM))
    assert code == 1
    assert "8 has no source" in line


@pytest.mark.parametrize(
    "entry", ['claims = [{ text = "takes # h", is = ["race | ours | 100 | seconds"] }]', 'given.data = ["9 cores"]']
)
def test_an_entry_that_no_longer_fits_its_page_is_told(project, entry):
    code, lines = project("Words.", f'["README.md"]\n{entry}\n')
    assert code == 1
    assert len(lines) == 1


def test_a_text_that_occurs_twice_is_ambiguous(project):
    code, lines = project("It takes 0.70 s. It takes 0.70 s.", of_readme(CLAIM))
    assert code == 1
    assert "found it 2 times" in lines[0]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("race | nobody | 100 | seconds", "found no number"),
        ("race | ours | 100 | hours", "found no number"),
        ("race | ours | seconds", "found 2"),
        ("nowhere | ours | 100 | seconds", "expected the numbers file"),
        ("race | needs # times", None),
        ("{race | ours | 100 | seconds} ** 2", "expected + - * /"),
        ("{race | ours | 100 | seconds}.real", "expected + - * /"),
        ("__import__({race | ours | 100 | seconds})", "expected + - * /"),
        ("{race | ours | 100 | seconds} / 0", "division by zero"),
    ],
)
def test_a_source_that_cannot_be_read_is_a_problem(project, source, why):
    code, lines = project("It takes 0.70 s.", of_readme(f'{{ text = "takes # s", is = ["{source}"] }}'))
    assert code == 1
    assert len(lines) == 1
    assert why is None or why in lines[0]


@pytest.mark.parametrize(
    ("page", "text", "source"),
    [
        ("257 times as long", "# times as long", "{race | theirs | 100 | seconds} / {race | ours | 100 | seconds}"),
        ("27 times as long", "# times as long", "race | needs # times as long"),
        ("the paper has 0.61", "paper has #", "race | ours | 100 | P@10 #2"),
        ("up to 180 s", "up to # s", "max({race | * | seconds})"),
        ("0.02 apart", "# apart", "abs({race | theirs | 100 | P@10} - {race | ours | 100 | P@10})"),
        ("below 0.95", "below #", "> max({race | * | P@10})"),
        ("about 170 s", "about # s", "~ race | theirs | * | seconds"),
        ("thirty times", "# times", "race | needs # times as long"),
    ],
)
def test_sources(project, page, text, source):
    assert project(page, of_readme(f'{{ text = "{text}", is = ["{source}"] }}')) == (0, [])


def test_a_bound_that_does_not_hold_is_told(project):
    entry = '{ text = "below #", is = ["> max({race | * | P@10})"] }'
    assert project("below 0.94", of_readme(entry))[0] == 1


def test_roughly_has_to_be_said(project):
    code, (line,) = project(
        "It takes 0.75 s.", of_readme('{ text = "takes # s", is = ["~ race | ours | 100 | seconds"] }')
    )
    assert code == 1
    assert "about" in line


def test_tables_are_compared_cell_by_cell(project):
    page = "| method | size | seconds |\n|---|---|---|\n| ours | 100 | **{}** |\n"
    race = RACE.replace("| ours | 200 | 1.52 | 0.93 |\n", "")
    registry = '["README.md"]\ntables = [{ head = "method | size", source = "race" }]\n'
    assert project(page.format("0.7 s"), registry, race) == (0, [])
    code, (line,) = project(page.format("0.8 s"), registry, race)
    assert code == 1
    assert line.startswith("README.md:3: says 0.8")


def test_a_file_that_is_waited_for_is_no_problem_until_it_is_there(project):
    entry = of_readme('{ text = "takes # s", is = ["later | all | seconds"] }')
    assert project("It takes 5 s.", f'[numbers]\nwaiting = {{ later = "python later.py" }}\n{entry}') == (0, [])
    code, lines = project("It takes 0.70 s.", f'[numbers]\nwaiting = {{ race = "python race.py" }}\n{of_readme(CLAIM)}')
    assert code == 1
    assert any("take it off the list waiting" in line for line in lines)


def test_every_numbers_file_ends_with_its_provenance(project):
    without = RACE.replace(LINE, "")
    page, entry = "It takes 0.70 s.", of_readme(CLAIM)
    assert "race.md: the last line is no provenance" in project(page, entry, without)[1]
    allowed = f'[numbers]\nwithout_provenance = ["race"]\n{entry}'
    assert project(page, allowed, without) == (0, [])
    assert "take it off the list" in project(page, allowed)[1][0]


def test_measurements_without_a_file_are_counted_and_shown(tmp_path, project, claims, capsys):
    registry = '["README.md"]\nunrecorded = [{ from = "It takes", to = "7 s", by = "python slow.py" }]\n'
    assert project("It takes 5 to 7 s.", registry) == (0, [])
    claims.main(["--root", str(tmp_path)])
    assert "2 numbers without a numbers file: python slow.py" in capsys.readouterr().err


FASTER = "{race | ours | 100 | seconds} < {race | theirs | 100 | seconds}"
BETTER = "{race | ours | 100 | P@10} > {race | theirs | 100 | P@10}"


def verdict(text: str, condition: str) -> str:
    return f"""["README.md"]\nverdicts = [{{ text = "{text}", is = "{condition}" }}]\n"""


@pytest.mark.parametrize(
    "condition",
    [
        FASTER,
        f"{FASTER} and {BETTER}",
        "100 * {race | ours | 100 | seconds} < {race | theirs | 100 | seconds}",
        "0.9 < min({race | * | P@10}) < max({race | * | P@10}) < 0.95",
    ],
)
def test_a_verdict_that_the_table_supports_passes(project, condition):
    assert project("Ours is faster.", verdict("is faster", condition)) == (0, [])


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        (FASTER.replace("<", ">"), "is false: 0.7 and 180"),
        (f"{FASTER} and {BETTER.replace('>', '<')}", "is false: 0.949 and 0.927"),
        ("0.9 < min({race | * | P@10}) < 0.927", "is false: 0.927 and 0.927"),
        (FASTER.replace("ours | 100", "nobody"), "found no number"),
        (FASTER.replace(" | 100", ""), "found 2"),
        ("{race | ours | 100 | seconds}", "expected comparisons"),
        (f"{FASTER} or {BETTER}", "expected comparisons"),
        (FASTER.replace("<", "!="), "expected comparisons"),
        ("1 < 2", "expected a number of a table"),
        (f"{FASTER} and 1 < 2", "expected a number of a table"),
        (f"{FASTER} <", "cannot read"),
        ("1 / ({race | ours | 100 | seconds} - 0.7) > 1", "division by zero"),
    ],
)
def test_a_verdict_that_the_table_does_not_support_is_told_with_its_place(project, condition, why):
    code, (line,) = project("Words.\n\nOurs is faster.", verdict("is faster", condition))
    assert code == 1
    assert line.startswith("README.md:3: ")
    assert why in line


@pytest.mark.parametrize("page", ["Ours is slower.", "Ours is faster, or is faster."])
def test_the_words_of_a_verdict_stand_once_on_their_page(project, page):
    code, (line,) = project(page, verdict("is faster", FASTER))
    assert code == 1
    assert "expected the verdict 'is faster' once" in line


def test_the_numbers_of_a_verdict_need_a_source_of_their_own(project):
    code, (line,) = project("Ours is faster (0.70 s).", verdict("is faster (# s)", FASTER))
    assert code == 1
    assert "0.70 has no source" in line


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("L1, R^5, COVID-19, h5ad, 2nd and P@10", []),
        ("from -0.08 to +0.06, 1e-6 and 3.5e+2", ["-0.08", "+0.06", "1e-6", "3.5e+2"]),
        ("70,000 images, 25,088 points; 4, 5 and 10-NN.", ["70,000", "25,088", "4", "5", "10"]),
        ("**0.920 / 0.993** in 12.", ["0.920", "0.993", "12"]),
        ("`x=3` and $\\alpha = 0.5$ of [7](page3.md)", ["7"]),
        ("```\n5\n```\n6\n\n~~~\n7\n~~~\n", ["6"]),
        ("ten times as long, two cores", ["ten"]),
    ],
)
def test_which_numbers_are_found(claims, text, numbers):
    assert [found.written for found in claims.Page.read("page", text).numbers()] == numbers


@pytest.mark.parametrize(
    ("written", "unit"),
    [
        ("0.95", 0.01),
        ("0.70", 0.01),
        ("12", 1),
        ("180", 10),
        ("100", 10),
        ("20", 1),
        ("22,000", 1000),
        ("3e-7", 1e-7),
        ("thirty", 10),
    ],
)
def test_rounding_follows_from_the_digits(claims, written, unit):
    assert claims.unit(written) == pytest.approx(unit)
