"""The workflows of a forge: small rights, pinned actions, and commands that are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # of mkdocs

from tests.spark_lines.run import LINES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.glob("workflows/*.yml")}
FORMS = sorted(path for path in FOLDER.glob("ISSUE_TEMPLATE/*.yml") if path.stem != "config")
LOCAL = "./.github/actions/prepare"
PINNED = re.compile(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
MAY_WRITE = {
    ("docs", "publish"): {"pages", "id-token"},
    ("release", "draft"): {"contents", "id-token", "attestations"},
    ("benchmarks", "keep"): {"contents"},
}
"""Jobs that get a right to write, and which; none of them checks out or runs code of a change."""


def jobs() -> list[Any]:
    return [
        pytest.param(workflow, name, job, id=f"{workflow}-{name}")
        for workflow, content in sorted(WORKFLOWS.items())
        for name, job in content["jobs"].items()
    ]


def test_there_is_a_workflow_for_each_purpose():
    assert {"test", "image", "docs", "release", "nightly", "benchmarks"} == WORKFLOWS.keys()


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yml")), ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_commit(path: Path):
    for used in re.findall(r"\buses: (.+)$", path.read_text(), re.MULTILINE):
        assert used == LOCAL or PINNED.match(used), used


def test_an_action_has_one_commit_everywhere():
    text = "".join(path.read_text() for path in FOLDER.rglob("*.yml"))
    commits: dict[str, set[str]] = {}
    for action, commit in re.findall(r"\buses: ([\w/-]+)@(\S+)", text):
        commits.setdefault(action, set()).add(commit)
    assert all(len(found) == 1 for found in commits.values()), commits


@pytest.mark.parametrize("content", WORKFLOWS.values(), ids=WORKFLOWS)
def test_a_workflow_gives_no_rights_of_its_own(content: dict[object, Any]):
    assert content["permissions"] == {}
    assert "pull_request_target" not in content[True]  # YAML reads the key `on` as true


@pytest.mark.parametrize(("workflow", "name", "job"), jobs())
def test_a_job_has_a_deadline_and_only_its_rights(workflow, name, job):
    assert 0 < job["timeout-minutes"] <= 240
    wrote = {right for right, kind in job["permissions"].items() if kind == "write"}
    assert wrote == MAY_WRITE.get((workflow, name), set())
    if wrote:
        uses = [step.get("uses", "") for step in job["steps"]]
        assert not [each for each in uses if each.startswith(("actions/checkout", "./"))]
        assert not [step for step in job["steps"] if "make " in step.get("run", "")]


def test_every_target_of_make_exists():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join(path.read_text() for path in (FOLDER / "workflows").glob("*.yml"))
    called = set(re.findall(r"(?:run|command): make ([a-z-]+)", text))
    assert {"release", "chaos", "attack", "simulate", "bench"} <= called
    assert called <= targets


def test_the_matrix_has_each_python_and_each_line_of_spark():
    with (ROOT / "pyproject.toml").open("rb") as file:
        classifiers = tomllib.load(file)["project"]["classifiers"]
    versions = re.findall(r"Python :: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE)
    tested = WORKFLOWS["test"]["jobs"]
    python, spark = (tested[name]["strategy"]["matrix"] for name in ("python", "spark"))
    assert python["python"] == versions
    assert tuple(spark["spark"]) == LINES
    assert python["data-path"] == spark["data-path"] == ["interpreted", "compiled"]
    steps = WORKFLOWS["release"]["jobs"]["build"]["steps"]
    (prepare,) = (step["with"] for step in steps if step.get("uses") == LOCAL)
    assert prepare["python-version"].split() == versions
    (build,) = (step["run"] for step in steps if "make release" in step.get("run", ""))
    assert re.findall(r"python(3\.\d+)", build.partition("RELEASE_PYTHONS")[2]) == versions


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_asks_what_it_needs(path: Path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown"}
    identities = [field["id"] for field in fields]
    assert len(set(identities)) == len(identities)
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_the_owners_are_of_folders_that_exist():
    lines = (FOLDER / "CODEOWNERS").read_text().splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]
    assert rules[0][0] == "*"
    for place, *owners in rules[1:]:
        assert (ROOT / place.strip("/")).is_dir(), place
        assert owners
