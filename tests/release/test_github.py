"""What GitHub reads: workflows that only call make and may do little, and forms that it can show."""

from __future__ import annotations

import re

import pytest
import yaml

# By major, or by a branch where the action's makers ask for it.
PINNED = re.compile(r"[\w-]+/[\w-]+@(v\d+|release/v\d+|[0-9a-f]{40})")
# The only rights beside reading, each with the job that needs it.
RIGHTS = {("docs", "show"): {"pages": "write", "id-token": "write"}, ("release", "publish"): {"id-token": "write"}}


def folder(root, name):
    return sorted((root / ".github" / name).glob("*.yml"))


@pytest.fixture(scope="module")
def workflows(root):
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in folder(root, "workflows")}
    assert set(found) == {"tests", "versions", "docs", "release"}
    return found


@pytest.fixture(scope="module")
def jobs(workflows):
    return {(name, job): what for name, flow in workflows.items() for job, what in flow["jobs"].items()}


@pytest.fixture(scope="module")
def steps(jobs):
    return [(where, step) for where, job in jobs.items() for step in job["steps"]]


def triggers(flow):
    return flow[True]  # "on" is YAML's word for true


def test_workflows_only_call_make(steps, root, workflows):
    commands = [step["run"] for _, step in steps if "run" in step]
    targets = {re.fullmatch(r"make (\w+|\$\{\{ matrix\.target \}\}) PYTHON=python", each).group(1) for each in commands}
    chosen = {each["target"] for each in workflows["versions"]["jobs"]["versions"]["strategy"]["matrix"]["include"]}
    assert chosen == {"lowest", "prerelease"}
    named = {each for each in targets if each.isalpha()} | chosen
    assert named == {"test", "dist", "docs", "lowest", "prerelease"}
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{each}:", makefile, flags=re.MULTILINE) for each in named)


def test_no_command_holds_what_a_stranger_can_write(steps):
    """A name of a branch or an issue inside a command would be run; they go through the environment."""
    for where, step in steps:
        assert not re.search(r"\$\{\{\s*(github|inputs|env)\.", step.get("run", "")), where


def test_workflows_may_read_and_nothing_else(workflows, jobs):
    assert all(flow["permissions"] == {"contents": "read"} for flow in workflows.values())
    assert {where: job["permissions"] for where, job in jobs.items() if "permissions" in job} == RIGHTS


def test_workflows_end_and_do_not_pile_up(workflows, jobs):
    assert all(job["timeout-minutes"] <= 60 for job in jobs.values())
    for name, flow in workflows.items():
        assert flow["concurrency"]["group"] == f"{name}-${{{{ github.ref }}}}"
        # A release that has begun to publish is not stopped half-way.
        assert flow["concurrency"]["cancel-in-progress"] is (name != "release")


def test_actions_are_pinned_and_keep_no_password(steps):
    used = [step for _, step in steps if "uses" in step]
    assert all(PINNED.fullmatch(step["uses"]) for step in used)
    checkouts = [step for step in used if step["uses"].startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_every_python_that_is_promised_is_tested_on_three_systems(workflows, project):
    matrix = workflows["tests"]["jobs"]["test"]["strategy"]["matrix"]
    promised = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert matrix["python"] == promised == ["3.11", "3.12", "3.13", "3.14"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert workflows["tests"]["jobs"]["package"]["strategy"]["matrix"]["os"] == matrix["os"]


def test_downloads_are_kept_except_for_a_release(steps):
    for (name, job), step in steps:
        if step.get("uses", "").startswith("actions/setup-python@"):
            kept = step["with"].get("cache")
            assert kept == (None if name == "release" else "pip"), (name, job)


def test_a_release_is_a_tag_that_make_has_checked(workflows):
    flow = workflows["release"]
    assert triggers(flow) == {"push": {"tags": ["v*"]}}
    build, publish = flow["jobs"]["build"], flow["jobs"]["publish"]
    (command,) = [step for step in build["steps"] if "run" in step]
    assert command["env"]["TAG"] == "${{ github.ref_name }}"
    assert publish["needs"] == "build"
    assert publish["environment"] == "pypi"
    # It publishes what the first job has checked and runs nothing of the repository.
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]


def test_forms_can_be_shown(root):
    forms = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in folder(root, "ISSUE_TEMPLATE")}
    assert forms.pop("config") == {"blank_issues_enabled": True}
    assert set(forms) == {"bug", "question", "idea"}
    for name, form in forms.items():
        assert {"name", "description", "body"} <= set(form) <= {"name", "description", "title", "labels", "body"}, name
        asked = [each for each in form["body"] if each["type"] != "markdown"]
        identities = [each["id"] for each in asked]
        assert len(set(identities)) == len(identities) > 0
        assert all(re.fullmatch(r"[\w-]+", each) for each in identities)
        assert all(each["type"] in {"textarea", "input", "dropdown", "checkboxes"} for each in asked)
        assert all(each["attributes"]["label"] for each in asked)
        assert any(each.get("validations", {}).get("required") for each in asked)


def test_pages_for_people_lead_somewhere(root):
    """Links in the pages that GitHub shows go to files that exist."""
    pages = [*root.glob("*.md"), root / ".github" / "PULL_REQUEST_TEMPLATE.md"]
    assert {"SECURITY.md", "SUPPORT.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"} <= {page.name for page in pages}
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []
