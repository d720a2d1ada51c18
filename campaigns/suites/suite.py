"""Test suites of Kafka clients: what a file of this folder declares, and what the output of a run says.

A suite is somebody else's: it is fetched from the registry of its language at a pinned version, and only the addresses
in it are replaced. What it shows is therefore independent of this project. A suite's file::

    title = "segmentio/kafka-go"
    registry = "go"                    # go or crates
    package = "github.com/segmentio/kafka-go"
    version = "v0.4.51"
    nodes = 1                          # of the cluster (default: 1)
    subfolder = "."                    # of the package, in which the commands run
    build = ["make"]                   # runs once after the suite was fetched
    command = ["go", "test", "-json", "."]
    one = ["-run=^{test}$"]            # further words of the command that select one test
    format = "go"                      # go, libtest or librdkafka
    limit_s = 1800                     # then the suite is stopped
    toxiproxy = false                  # true: a Toxiproxy server runs, as {toxiproxy}, and nodes advertise {proxies}

    [config]                           # settings of the broker, by Kafka's names
    "auto.create.topics.enable" = "true"

    [environment]                      # of the command
    KAFKA_VERSION = "3.7.0"

    [[replace]]                        # a fixed address; {bootstrap}, or {quoted} or {proxies}: "HOST:PORT", ...
    glob = "**/*_test.go"
    old = "localhost:9092"
    new = "{bootstrap}"

    [[allow]]                          # a failure that does not count: a pattern for the whole name, and the reason
    test = "kafka-go.*(ACL|Acls).*"
    reason = "ACLs are not served"
    since = "2026-11-29"
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

FOLDER = Path(__file__).parent
REGISTRIES = ("go", "crates")
FORMATS = ("go", "libtest", "librdkafka")
_KEYS = {
    "title",
    "registry",
    "package",
    "version",
    "nodes",
    "subfolder",
    "build",
    "command",
    "one",
    "format",
    "limit_s",
    "config",
    "environment",
    "toxiproxy",
    "replace",
    "allow",
}
_LIBTEST_LINE = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", re.MULTILINE)
_LIBTEST_START = re.compile(r"^\s+Running (?:unittests )?(\S+) \(", re.MULTILINE)

_LIBRDKAFKA_ROW = re.compile(r"^\|\S* (\d{4}_\w+) +\| +(PASSED|FAILED|RUNNING|SKIPPED) \|", re.MULTILINE)


class SuiteError(Exception):
    """A suite cannot be read, fetched or started. The message is one sentence that names the fix."""


class SuiteOutcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


Outcomes: TypeAlias = Mapping[str, SuiteOutcome]
"""The outcome of each test, by its name, in the order of the run."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Text of the suite that contains a fixed address, and is replaced in the fetched copy."""

    glob: str  # files in which it is replaced
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Allowance:
    """Tests that may fail: those whose name matches the pattern as a whole."""

    test: str
    reason: str
    since: str

    def covers(self, name: str) -> bool:
        return re.fullmatch(self.test, name) is not None


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    title: str
    registry: str
    """one of REGISTRIES"""
    package: str
    version: str
    command: tuple[str, ...]
    format: str
    """one of FORMATS: how the command reports its tests"""
    one: tuple[str, ...]
    """words behind the command that choose the one test {test}"""
    nodes: int = 1
    subfolder: str = "."
    """of the package, in which the commands run"""
    build: tuple[str, ...] = ()
    """command that runs once, before the first run"""
    limit_s: float = 1800.0
    config: Mapping[str, str] = field(default_factory=dict)
    """settings of the broker, by Kafka's names"""
    environment: Mapping[str, str] = field(default_factory=dict)
    toxiproxy: bool = False
    """whether a Toxiproxy server runs beside the cluster, as {toxiproxy}, and nodes advertise {proxies} to clients"""
    replace: tuple[Replacement, ...] = ()
    allow: tuple[Allowance, ...] = ()

    def reason(self, test: str) -> str:
        """Return why the test may fail; empty if it may not."""
        return next((allowance.reason for allowance in self.allow if allowance.covers(test)), "")


def bundled() -> list[str]:
    """Return the names of the suites in this folder, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(path: Path) -> Suite:
    """Read the file of a suite. Raise SuiteError if it is none."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SuiteError(f"There is no suite {path.stem}; there are {', '.join(bundled())}.") from None
    except tomllib.TOMLDecodeError as error:
        raise SuiteError(f"{path.name}: {error}.") from error
    for key in table.keys() - _KEYS:
        raise SuiteError(f"{path.name}: unknown key {key}; the keys are {', '.join(sorted(_KEYS))}.")
    for key in ("title", "registry", "package", "version", "command", "one", "format"):
        if key not in table:
            raise SuiteError(f"{path.name}: {key} is missing.")
    for key, allowed in (("registry", REGISTRIES), ("format", FORMATS)):
        if table[key] not in allowed:
            raise SuiteError(f"{path.name}: {key} is {table[key]!r}; it is one of {', '.join(allowed)}.")
    return _suite(path.stem, table)


def _suite(name: str, table: Mapping[str, Any]) -> Suite:
    values = dict(table)
    for key in ("command", "one", "build"):
        values[key] = tuple(values.get(key, ()))
    values["replace"] = tuple(Replacement(**each) for each in values.get("replace", ()))
    values["allow"] = tuple(Allowance(**each) for each in values.get("allow", ()))
    return Suite(name, **values)


def outcomes(output_format: str, output: str) -> Outcomes:
    """Return what a run of a suite reported. ``output`` is what the command printed."""
    if output_format == "go":
        return _from_go(output.splitlines())
    if output_format == "libtest":
        return _from_libtest(output)
    return _from_librdkafka(output)


def _from_go(lines: Iterable[str]) -> Outcomes:
    """Read the events of ``go test -json``. Only leaves count: a test with subtests says no more than they do.

    A test without an end has failed (the process ended in it), and so has a package that was not built.
    """
    ends = {"pass": SuiteOutcome.PASSED, "fail": SuiteOutcome.FAILED, "skip": SuiteOutcome.SKIPPED}
    found: dict[str, SuiteOutcome] = {}
    packages: dict[str, None] = {}
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        package, test, action = event.get("Package", ""), event.get("Test", ""), event.get("Action", "")
        short = package.rpartition("/")[2]
        if test and action == "run":
            found[f"{short}.{test}"] = SuiteOutcome.FAILED
        elif test and action in ends:
            found[f"{short}.{test}"] = ends[action]
        elif action == "fail" and not any(name.startswith(f"{short}.") for name in found):
            packages[short] = None
    parents = {name.rpartition("/")[0] for name in found}
    leaves = {name: end for name, end in found.items() if name not in parents}
    return leaves | {f"{package} (not built)": SuiteOutcome.FAILED for package in packages}


def _from_libtest(output: str) -> Outcomes:
    """Read the lines of Rust's test harness. The name of a test begins with that of its binary."""
    ends = {"ok": SuiteOutcome.PASSED, "FAILED": SuiteOutcome.FAILED, "ignored": SuiteOutcome.SKIPPED}
    starts = [(each.start(), Path(each[1]).stem) for each in _LIBTEST_START.finditer(output)]
    found: dict[str, SuiteOutcome] = {}
    for each in _LIBTEST_LINE.finditer(output):
        binary = next((name for start, name in reversed(starts) if start < each.start()), "")
        found[f"{binary}::{each[1]}" if binary else each[1]] = ends[each[2]]
    return found


def _from_librdkafka(output: str) -> Outcomes:
    """Read the table that the test program of librdkafka prints last. A test that runs until then has failed."""
    ends = {"PASSED": SuiteOutcome.PASSED, "SKIPPED": SuiteOutcome.SKIPPED}
    return {each[1]: ends.get(each[2], SuiteOutcome.FAILED) for each in _LIBRDKAFKA_ROW.finditer(output)}
