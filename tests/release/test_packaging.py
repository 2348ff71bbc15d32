"""The conda recipe and scverse's entry say what pyproject.toml says, in the fields that their registries know."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

# Names that conda-forge spells in another way, beside lower case.
CONDA = {"matplotlib": "matplotlib-base", "torch": "pytorch", "dask": "dask-core"}
# Extras for those who use heatmover. The others are for those who change it.
FOR_USERS = ("cohort", "torch", "exact", "search", "dask", "phate", "umap")

# The fields of a recipe (version 1) that we use, as rattler-build's format names them.
RECIPE = {
    "": {"context", "package", "source", "build", "requirements", "tests", "about", "extra"},
    "package": {"name", "version"},
    "source": {"path", "url", "sha256"},
    "build": {"number", "noarch", "script", "python"},
    "requirements": {"build", "host", "run", "run_constraints"},
    "about": {"homepage", "repository", "documentation", "license", "license_file", "summary", "description"},
    "extra": {"recipe-maintainers"},
}

# Of scverse's registry: what an entry must have and may have, each with its type.
REQUIRED = {
    "name": str,
    "description": str,
    "project_home": str,
    "documentation_home": str,
    "install": dict,
    "license": str,
    "tags": list,
    "primary_category": str,
    "language": str,
    "category": str,
    "contact": list,
}
OPTIONAL = {"test_command": str, "tutorials_home": str, "publications": list, "logo": str}
# Of the registry's vocabulary, the words that its entries of August 2026 show.
CATEGORIES = {"scRNA-seq", "bulk RNA-seq", "Multimodal", "Imaging"}
TAGS = {
    "optimal transport", "visualization", "clustering", "differential expression", "preprocessing", "multimodal",
    "quality control", "functional analysis", "trajectory inference", "imaging", "segmentation", "deep learning",
}  # fmt: skip


def conda(requirement):
    """``POT>=0.9.4`` as conda-forge writes it, ``pot >=0.9.4``."""
    name, bound = re.fullmatch(r"([\w.-]+)(>=[\w.]+)", requirement).groups()
    return f"{CONDA.get(name, name.lower())} {bound}"


@pytest.fixture(scope="module")
def recipe_text(root):
    return (root / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def entry_text(root):
    return (root / "packaging" / "scverse" / "meta.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def filled(dist, root, tmp_path_factory):
    """Both files as a release hands them in, and the sdist they are about."""
    folder = tmp_path_factory.mktemp("packaging")
    sdist = folder / "x.tar.gz"
    sdist.write_bytes(b"abc")
    dist.fill(root, sdist, folder, "Someone/heat", "ada")
    return {name: yaml.safe_load((folder / name).read_text(encoding="utf-8")) for name in ("recipe.yaml", "meta.yaml")}


def test_requirements_of_the_recipe_are_those_of_the_package(recipe_text, pyproject, project):
    needs = yaml.safe_load(recipe_text)["requirements"]
    extras = project["optional-dependencies"]
    python = "python >=${{ python_min }}"
    assert needs["run"] == [python, *map(conda, [*project["dependencies"], *extras["demo"]])]
    others = [each for extra in FOR_USERS for each in extras[extra] if not each.startswith("heatmover[")]
    assert needs["run_constraints"] == [conda(each) for each in others]
    assert needs["host"] == ["python ${{ python_min }}.*", "pip", *map(conda, pyproject["build-system"]["requires"])]


def test_every_extra_is_for_users_or_for_developers(project):
    developers = {"docs", "bench", "test", "dist", "scanpy", "site"}
    assert set(project["optional-dependencies"]) == {*FOR_USERS, *developers, "demo"}


def test_the_recipe_is_about_this_package(recipe_text, project, root):
    recipe = yaml.safe_load(recipe_text)
    assert recipe["package"] == {"name": project["name"], "version": "${{ version }}"}
    assert recipe["context"]["version"] == project["version"]
    assert f">={recipe['context']['python_min']}" == project["requires-python"]
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {target}" for name, target in project["scripts"].items()
    ]
    about = recipe["about"]
    assert (about["license"], about["summary"]) == (project["license"], project["description"])
    assert (root / about["license_file"]).is_file()
    assert recipe["source"] == {"path": "../.."}
    assert (root / "packaging" / "conda" / recipe["source"]["path"] / "pyproject.toml").is_file()


@pytest.mark.parametrize("form", ["kept", "filled"])
def test_the_recipe_has_fields_that_the_format_knows(form, recipe_text, filled):
    recipe = yaml.safe_load(recipe_text) if form == "kept" else filled["recipe.yaml"]
    assert set(recipe) <= RECIPE[""]
    for part, known in RECIPE.items():
        assert set(recipe.get(part, ()) if part else ()) <= known, part
    assert recipe["build"]["noarch"] == "python"
    assert [next(iter(test)) for test in recipe["tests"]] == ["python", "script"]
    # Every ${{ name }} is defined: in the context, or by the builder.
    names = set(re.findall(r"\$\{\{ (\w+) \}\}", recipe_text))
    assert names <= set(recipe["context"]) | {"PYTHON"}


def test_a_release_fills_the_recipe(filled):
    recipe = filled["recipe.yaml"]
    # SHA-256 of "abc", from FIPS 180-2.
    assert recipe["source"]["sha256"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert recipe["source"]["url"].endswith("/heatmover-${{ version }}.tar.gz")
    assert recipe["about"]["homepage"] == recipe["about"]["repository"] == "https://github.com/Someone/heat"
    assert recipe["extra"] == {"recipe-maintainers": ["ada"]}


def test_a_release_fills_the_entry(filled, entry_text):
    entry = filled["meta.yaml"]
    assert {name: type(value) for name, value in entry.items()}.items() <= (REQUIRED | OPTIONAL).items()
    assert set(REQUIRED) <= set(entry)
    # What only a release knows is not guessed in the file that is kept.
    assert set(entry) - set(yaml.safe_load(entry_text)) == {"project_home", "documentation_home", "contact"}
    assert entry["project_home"] == "https://github.com/Someone/heat"
    assert entry["documentation_home"] == "https://heat.readthedocs.io"
    assert entry["contact"] == ["ada"]


def test_the_entry_is_about_this_package(entry_text, project):
    entry = yaml.safe_load(entry_text)
    for field in ("name", "license"):
        assert entry[field] == project[field], field
    assert "version" not in entry  # the registry asks the index for it
    assert entry["install"] == {"pypi": project["name"]}
    assert entry["category"] == "ecosystem"
    assert entry["primary_category"] in CATEGORIES
    assert set(entry["tags"]) <= TAGS
    assert len(set(entry["tags"])) == len(entry["tags"]) > 0


@pytest.mark.parametrize(("repository", "contact"), [("no-owner/", "ada"), ("a/b/c", "ada"), ("a/b", "x: y")])
def test_a_name_that_is_none_is_refused_before_the_work(dist, monkeypatch, repository, contact):
    monkeypatch.setattr(dist, "build", lambda *_: pytest.fail("built"))
    with pytest.raises(SystemExit, match="owner/name"):
        dist.main(["--repository", repository, "--contact", contact])


def test_the_readme_installs_the_wheel_of_this_version(root, project):
    named = re.findall(r"heatmover-([\w.]+)-py3-none-any\.whl", (root / "README.md").read_text(encoding="utf-8"))
    assert named
    assert set(named) == {project["version"]}


def test_a_release_fills_the_addresses_of_the_project(dist, root, project):
    assert "urls" not in project  # none is known before
    text = dist.fill_project((root / "pyproject.toml").read_text(encoding="utf-8"), "Someone/heat")
    filled = tomllib.loads(text)["project"]
    urls = filled.pop("urls")
    assert filled == project
    assert urls["Source"] == "https://github.com/Someone/heat"
    assert urls["Documentation"] == "https://heat.readthedocs.io"
    assert {"Homepage", "Issues", "Changelog"} <= set(urls)


def test_a_copy_to_build_from_has_the_files_under_version_control(dist, root, tmp_path):
    dist.copied(root, tmp_path, "Someone/heat")
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == dist.tracked(
        root
    )
    assert "github.com/Someone/heat" in (tmp_path / "pyproject.toml").read_text(encoding="utf-8")


def test_read_the_docs_builds_as_make_docs_does(root):
    settings = yaml.safe_load((root / ".readthedocs.yaml").read_text(encoding="utf-8"))
    assert settings["version"] == 2
    assert (root / settings["sphinx"]["configuration"]).is_file()
    assert settings["sphinx"]["fail_on_warning"] is True
    assert "-c constraints.txt" in settings["build"]["jobs"]["install"][0]
