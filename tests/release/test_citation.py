"""CITATION.cff holds to version 1.2.0 of the Citation File Format and says what pyproject.toml says."""

from __future__ import annotations

import re

import pytest
import yaml


def text(value):
    return isinstance(value, str) and bool(value)


def number(value):
    return isinstance(value, int) and not isinstance(value, bool)


def url(value):
    return text(value) and re.match(r"https?://.+", value) is not None


def keywords(value):
    return isinstance(value, list) and all(map(text, value)) and len(set(value)) == len(value) > 0


def entity(value):
    return isinstance(value, dict) and set(value) <= {"name", "website"} and text(value.get("name"))


def person(value):
    names = {"given-names", "family-names", "name-particle", "name-suffix", "orcid", "affiliation"}
    return isinstance(value, dict) and set(value) <= names and all(map(text, value.values())) and bool(value)


def authors(value):
    return isinstance(value, list) and bool(value) and all(entity(each) or person(each) for each in value)


def day(value):
    return re.fullmatch(r"\d{4}-(0[1-9]|1[012])-(0[1-9]|[12]\d|3[01])", str(value)) is not None


# The fields of the format that we use; any other field is an error, as in its schema.
REFERENCE = {
    "type": lambda value: value in {"article", "conference-paper", "software"},
    "title": text,
    "authors": authors,
    "collection-title": text,
    "conference": entity,
    "publisher": entity,
    "volume": number,
    "start": number,
    "end": number,
    "year": number,
    "month": lambda value: number(value) and 1 <= value <= 12,
    "doi": lambda value: re.fullmatch(r"10\.\d{4,9}(\.\d+)?/\S+", value) is not None,
    "url": url,
}


def reference(value):
    return (
        isinstance(value, dict)
        and {"authors", "title", "type"} <= set(value) <= set(REFERENCE)
        and all(REFERENCE[field](each) for field, each in value.items())
    )


ROOT_FIELDS = {
    "cff-version": lambda value: value == "1.2.0",
    "message": text,
    "type": lambda value: value in {"software", "dataset"},
    "title": text,
    "version": text,
    "abstract": text,
    "authors": authors,
    "license": text,
    "keywords": keywords,
    "date-released": day,
    "repository-code": url,
    "url": url,
    "preferred-citation": reference,
    "references": lambda value: isinstance(value, list) and bool(value) and all(map(reference, value)),
}


def problems(citation):
    missing = {"authors", "cff-version", "message", "title"} - set(citation)
    unknown = set(citation) - set(ROOT_FIELDS)
    return sorted(
        [*missing, *unknown, *(name for name, value in citation.items() if not ROOT_FIELDS.get(name, text)(value))]
    )


@pytest.fixture
def citation(root):
    return yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))


def test_it_is_valid(citation):
    assert problems(citation) == []


@pytest.mark.parametrize(
    "change",
    [
        {"cff-version": "1.1.0"},
        {"authors": []},
        {"authors": [{"name": ""}]},
        {"colour": "red"},
        {"date-released": "2021-13-01"},
        {"preferred-citation": {"type": "conference-paper", "title": "x"}},
        {"references": [{"type": "poem", "title": "x", "authors": [{"name": "y"}]}]},
    ],
)
def test_an_invalid_one_would_be_found(citation, change):
    assert problems(citation | change) != []


def test_it_is_about_this_package(citation, project):
    assert citation["title"] == project["name"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert citation["abstract"] == project["description"]
    assert citation["keywords"] == project["keywords"]
    assert [each["name"] for each in citation["authors"]] == [each["name"] for each in project["authors"]]


def test_the_paper_is_the_one_to_cite(citation):
    paper = citation["preferred-citation"]
    assert citation["references"] == [paper]
    assert paper["title"] == "Diffusion Earth Mover's Distance and Distribution Embeddings"
    names = ["Tong", "Huguet", "Natik", "MacDonald", "Kuchroo", "Coifman", "Wolf", "Krishnaswamy"]
    assert [each["family-names"] for each in paper["authors"]] == names
    assert (paper["volume"], paper["start"], paper["end"], paper["year"]) == (139, 10336, 10346, 2021)
