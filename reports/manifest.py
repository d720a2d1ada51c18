"""A run's manifest.json.

The live runner and the simulator write it with :func:`write_manifest`. The computation of verdicts reads it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

MANIFEST_VERSION = 1
MANIFEST_NAME = "manifest.json"

World = Literal["live", "sim"]

PRODUCER_EXPIRATION = "producer.id.expiration.ms"
PRODUCER_EXPIRATION_MS = 86_400_000
"""Kafka's default."""


class ManifestError(Exception):
    """The manifest is missing or unreadable; the message is one sentence for the person at the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """The events without which the run does not count, and the guarantees that must hold."""

    faults: tuple[str, ...] = ()
    """Fault names; each must have at least as many rows in FAULTS as it is listed here."""
    min_fetches: int = 0
    """Fetch operations that ended ok."""
    min_acked: int = 0
    """Records acknowledged with an offset."""
    min_rewinds: int = 0
    """Positions out of range, or below the tombstone horizon, left for an earlier offset."""
    max_schedule_slip_ms: int = 0
    """Worst invoke - intended allowed; 0 = not limited."""
    guarantees: tuple[str, ...] = ()
    """The promised guarantees, such as ``lost-write`` (underscores are accepted). One that cannot be judged makes the
    run INVALID. If there are none, every guarantee must hold for which the run left evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A guarantee that was judged while the run was played (the simulator's invariants), not by Spark."""

    guarantee: str
    holds: bool
    evidence: int = 0
    """How many times it was evaluated."""
    at_us: int = -1
    """When it broke first."""
    detail: str = ""
    """One sentence, about the first violation if there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of one run. Times are microseconds."""

    scenario: str
    """Stem of the scenario file, e.g. "01-lost-response"."""
    seed: int
    world: World
    repeat_command: str
    """The one command that plays this again."""
    number: int = 0
    """The scenario's number, 0 if it has none."""
    title: str = ""
    run_id: str = ""
    target: str = "reference"
    """``reference`` or HOST:PORT."""
    revision: str = ""
    """Revision of the fetch sessions: final, first or none; empty if not chosen for the run."""
    variant: str = ""
    """Another choice that distinguishes compared runs, e.g. "with metadata epochs"."""
    mutant: str = ""
    """Name of the planted defect, empty if none."""
    mutant_calls: int = -1
    """How often the patched function ran; -1 unknown, 0 makes the run INVALID."""
    command: str = ""
    """The command that was typed."""
    commit: str = ""
    dirty: bool = False
    start_wall_us: int = 0
    """The zero of every ``*_us`` column of the history."""
    duration_us: int = 0
    """0 = unknown."""
    warm_up_us: int = 0
    """At the start, whose latency is not in the tables."""
    clock_tick_ms: int = 1
    """How often wall clocks advanced, those of clients too."""
    trace_hash: str = ""
    """Of a single seed in the simulator."""
    clauses: tuple[str, ...] = ()
    crash: str = ""
    """One sentence if the suite crashed or the broker died unexpectedly."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Python, kio, java, toxiproxy, ..."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """CPU, cores, memory, kernel, ..."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Broker configuration that was set, Kafka's keys."""
    load: Mapping[str, str] = field(default_factory=dict)
    """The fleet's load, for people."""
    notes: tuple[str, ...] = ()
    """Honest notes to print in the report."""
    expectations: Expectations = Expectations()
    checks: tuple[CheckResult, ...] = ()
    history_files: Mapping[str, int] = field(default_factory=dict)
    """The size in bytes of each file of the history, by its path in the run. Empty in older runs."""
    version: int = MANIFEST_VERSION

    def promised(self) -> set[str]:
        """The guarantees that the scenario names."""
        return {canonical_guarantee(name) for name in self.expectations.guarantees}

    @property
    def producer_expiration_us(self) -> int:
        """Kafka's default if the setting is not known."""
        return producer_expiration_us(self.config)


def producer_expiration_us(config: Mapping[str, str]) -> int:
    """Return how long these brokers keep the ID of an idle producer."""
    return int(config.get(PRODUCER_EXPIRATION, PRODUCER_EXPIRATION_MS)) * 1000


FORMER_GUARANTEES: Mapping[str, str] = {
    "answers-after-heal": "responses-after-heal",
    "first-answers-exact": "first-revision-responses-exact",
    "incremental-answer-exact": "incremental-response-exact",
    "snapshot-answers-exact": "snapshot-responses-exact",
}
"""Names of guarantees in the manifests of older runs, each with the present name."""


def canonical_guarantee(name: str) -> str:
    """``lost_write`` and ``lost-write`` are the same guarantee, and so are a former name and the present one."""
    hyphenated = name.replace("_", "-")
    return FORMER_GUARANTEES.get(hyphenated, hyphenated)


def write_manifest(run_dir: Path, manifest: Manifest) -> Path:
    """Write the manifest whole or not at all. A run that is killed while writing leaves the old one."""
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / MANIFEST_NAME
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(manifest), indent=2, sort_keys=True, default=dict) + "\n", encoding="utf-8")
    part.replace(path)
    return path


def read_manifest(run_dir: Path) -> Manifest:
    path = run_dir / MANIFEST_NAME
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ManifestError(f"{run_dir} has no {MANIFEST_NAME}: it is not the folder of a run") from None
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error
    return manifest_from(raw, str(path))


def manifest_from(raw: object, where: str = MANIFEST_NAME) -> Manifest:
    """Make a manifest of parsed JSON. It refuses unknown keys, since a misspelt expectation must not pass silently."""
    values = _known_keys(raw, Manifest, where)
    if values.get("version", MANIFEST_VERSION) != MANIFEST_VERSION:
        raise ManifestError(f"{where} has version {values['version']}; this suite reads version {MANIFEST_VERSION}")
    if "expectations" in values:
        expected = _known_keys(values["expectations"], Expectations, f"{where}, expectations")
        values["expectations"] = Expectations(**_tuples(expected, "faults", "guarantees"))
    if "checks" in values:
        values["checks"] = tuple(
            CheckResult(**_known_keys(check, CheckResult, f"{where}, checks")) for check in values["checks"]
        )
    try:
        return Manifest(**_tuples(values, "clauses", "notes"))
    except TypeError as error:
        missing = re.sub(r"^.*?(missing|got)", r"\1", str(error))
        raise ManifestError(f"{where}: {missing}") from error


def _known_keys(raw: object, cls: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ManifestError(f"{where} is not a JSON object")
    unknown = sorted(set(raw) - {declared.name for declared in fields(cls)})
    if unknown:
        raise ManifestError(f"{where}: unknown key {unknown[0]!r}")
    return dict(raw)


def _tuples(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: tuple(value) if key in names else value for key, value in values.items()}
