"""One command makes every figure of record: each numbers file has one home."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

NUMBERS = Path(__file__).resolve().parents[2] / "docs/results/numbers"


@pytest.fixture
def record(script):
    return script("record")


def test_every_numbers_file_is_written_by_exactly_one_command(record):
    writes = Counter(name for entry in record.ENTRIES for name in entry.writes)
    assert set(writes.values()) == {1}
    assert {path.stem for path in NUMBERS.glob("*.md")} <= set(writes)


def test_every_script_named_is_there(record):
    assert [entry.command for entry in record.ENTRIES if not entry.script.is_file()] == []


def test_a_script_knows_the_tables_that_it_is_said_to_write(record):
    for entry in record.ENTRIES:
        text = entry.script.read_text(encoding="utf-8")
        stem = entry.script.stem
        for name in entry.writes:
            assert (
                f'"{name}"' in text
                or (f'"{stem}"' in text and f'"{name.removeprefix(stem)}"' in text)
                or (name == stem and f'"{stem}"' in text)
            ), name


def test_commands_parse(record):
    entry = record.Entry("cohorts.py --data {data}", ("cohorts",), 1)
    assert entry.needs_data
    assert entry.order(Path("/there"))[-2:] == ["--data", "/there"]


@pytest.mark.parametrize(
    ("last", "fresh"), [("*`python x.py`, commit {head}, 2026-01-02, 2 threads*", True), ("no provenance", False)]
)
def test_stale_is_what_the_present_code_has_not_made(record, tmp_path, last, fresh):
    try:
        done = subprocess.run(
            ["git", "-C", record.ROOT, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git is not here")
    path = tmp_path / "x.md"
    path.write_text(f"| a |\n|---|\n| 1 |\n\n{last.format(head=done.stdout.strip())}\n", encoding="utf-8")
    unchanged = tmp_path / "script.py"
    if fresh:
        changed = subprocess.run(["git", "-C", record.ROOT, "diff", "--quiet", "HEAD", "--", "src"], check=False)
        fresh = changed.returncode == 0
        unchanged = record.ROOT / "LICENSE"
    assert record.made_by_present_code(path, unchanged) is fresh


def test_what_needs_data_is_left_out_without_them(record, monkeypatch, capsys):
    begun = []
    monkeypatch.setattr(record, "run", lambda entries, _data: begun.extend(entries) or [])
    assert record.main([]) == 0
    assert begun
    assert not any(entry.needs_data for entry in begun)
    assert "need --data" in capsys.readouterr().err


def test_what_failed_is_said_at_the_end(record, monkeypatch, capsys):
    monkeypatch.setattr(record.Entry, "order", lambda *_: ["false"])
    assert record.main(["--only", "l1"]) == 1
    assert "l1.py" in capsys.readouterr().err
