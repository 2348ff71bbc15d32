"""Values that go into the page: characters that must not stand there are spelled out."""

from __future__ import annotations

import random

import pytest

from heatmover.report.markup import ILLEGAL, IN_SCRIPTS, legal_script, script_json


def spelled_out(text, pattern):
    """Character by character."""
    units = {character: character.encode("utf-16-be", "surrogatepass").hex() for character in text}
    spelled = {c: "".join(f"\\u{u[i : i + 4]}" for i in range(0, len(u), 4)) for c, u in units.items()}
    return "".join(spelled[c] if pattern.match(c) else c for c in text)


@pytest.mark.parametrize("seed", range(20))
def test_every_character_of_any_text_is_looked_at(seed):
    rng = random.Random(seed)
    kinds = [
        lambda: rng.randrange(0x300),
        lambda: rng.randrange(0x110000),
        lambda: 0x2028,
        lambda: ord(rng.choice("<>&")),
    ]
    text = "".join(chr(rng.choice(kinds)()) for _ in range(200))
    assert legal_script(text) == spelled_out(text, ILLEGAL)
    quoted = text.replace("\\", "").replace('"', "")
    harmless = "".join(character for character in quoted if character >= " ")  # JSON spells others out itself
    assert script_json(harmless) == f'"{spelled_out(harmless, IN_SCRIPTS)}"'
