"""The workflows on a server run commands that can be run locally: each step is one command of ours, or a pinned
action."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from bench import golang
from campaigns.nights.night import SHARES
from crucible_kafka.cli import main

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
ACTIONLINT = "1.7.12"


class Step(NamedTuple):
    """A step that runs something, with the variables that are set for it."""

    where: str
    run: str
    variables: Mapping[str, str]

    def words(self) -> list[str]:
        command = re.sub(r"\$(\w+)", lambda found: self.variables[found[1]], self.run)
        return shlex.split(command)


def steps() -> Iterator[Step]:
    for file in FILES:
        workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
        for name, job in workflow["jobs"].items():
            for number, step in enumerate(job["steps"]):
                if "run" in step:
                    variables = {**job.get("env", {}), **step.get("env", {})}
                    defaults = {key: _default(str(value)) for key, value in variables.items()}
                    yield Step(f"{file.name}, {name}, step {number + 1}", step["run"], defaults)


def _default(value: str) -> str:
    """``${{ inputs.hours || '5' }}`` is 5 without an input."""
    found = re.fullmatch(r"\$\{\{ inputs\.\w+ \|\| '([^']*)' \}\}", value)
    return found[1] if found else value


def unknown(words: list[str]) -> str:
    """Return what is wrong with a command, or nothing."""
    if words[:1] == ["./crucible"]:
        return _unknown_of_crucible(words[1:])
    if words[:2] == [".venv/bin/python", "-m"]:
        return _unknown_of_module(words[2], words[3:])
    return "it is neither ./crucible nor a module of this project"


def _unknown_of_crucible(words: list[str]) -> str:
    if words == ["--version"]:
        return ""
    context = main.make_context("crucible", [], resilient_parsing=True)
    command = main.get_command(context, words[0])
    if command is None:
        return f"there is no command {words[0]}"
    try:
        command.make_context(words[0], words[1:], parent=context)
    except Exception as wrong:
        return str(wrong)
    return ""


def _unknown_of_module(name: str, words: list[str]) -> str:
    try:
        parser: Any = import_module(name).parser()
        parser.parse_args(words)
    except (ImportError, AttributeError, SystemExit) as wrong:
        return str(wrong)
    return ""


@pytest.mark.parametrize("step", list(steps()), ids=lambda step: step.where)
def test_each_step_is_one_own_command_with_known_arguments(step: Step) -> None:
    assert "\n" not in step.run.strip()
    assert unknown(step.words()) == ""


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("./crucible tests", "there is no command tests"),
        ("./crucible nightly --ours 5", "No such option"),
        ("./crucible nightly --hours many", "is not a valid"),
        (".venv/bin/python -m campaigns.nights.histories keep", "No module named"),
        (".venv/bin/python -m campaigns.nights.history lose", "2"),
        ("pip install x", "neither"),
    ],
)
def test_step_that_cannot_run_locally_is_detected(run: str, why: str) -> None:
    assert why in unknown(shlex.split(run))


def test_there_are_tests_for_each_push_and_a_night_by_the_clock() -> None:
    on = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))[True] for file in FILES}  # YAML reads "on" so.
    assert "push" in on["tests"]
    assert "schedule" in on["nightly"]
    commands = {" ".join(step.words()[:2]) for step in steps()}
    assert commands >= {"./crucible test", "./crucible nightly", "./crucible index", "./crucible run"}


def test_each_action_is_pinned_to_commit_with_version() -> None:
    used = [line.strip() for file in FILES for line in file.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert used
    for each in used:
        assert PINNED.search(each), each
    versions = {each.partition("uses: ")[2] for each in used}
    assert len({version.partition("@")[0] for version in versions}) == len(versions), "one action has two versions"


def test_no_job_may_write_but_those_that_must() -> None:
    for file in FILES:
        workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
        writing = {name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()}
        assert writing <= {"history", "page"}


def test_command_line_offers_each_stage_of_a_night() -> None:
    command = main.get_command(main.make_context("crucible", [], resilient_parsing=True), "nightly")
    assert command is not None
    (only,) = [parameter for parameter in command.params if parameter.name == "only"]
    assert tuple(getattr(only.type, "choices", ())) == tuple(SHARES)


@pytest.mark.live
@pytest.mark.nightly
def test_actionlint_finds_nothing() -> None:
    product = Path(__file__).resolve().parents[2] / ".cache" / "actionlint" / ACTIONLINT / "actionlint"
    if not product.exists():
        module = f"github.com/rhysd/actionlint/cmd/actionlint@v{ACTIONLINT}"
        golang.build("actionlint", ["install", module], product, {"GOBIN": str(product.parent)})
    without = [] if shutil.which("shellcheck") else ["-shellcheck="]
    done = subprocess.run(
        [str(product), *without, *map(str, FILES)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout) == (0, "")
