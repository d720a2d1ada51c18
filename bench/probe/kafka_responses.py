"""Apache Kafka's response to each case, as it was recorded: one file for each release in ``kafka_responses``."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.probe.case import CaseOutcome
from bench.probe.context import PREFIX

FOLDER = Path(__file__).resolve().parent / "kafka_responses"
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
    "producer.id.expiration.check.interval.ms": "500",
}
"""Those of the recorded brokers: with a tier, and with producers that can expire during a case."""
_BETWEEN = " | "
_OF_RUN = re.compile(rf"{PREFIX}-[0-9a-f]+-\d+-")
"""The part of a name that differs from run to run."""


def releases() -> list[str]:
    """The releases that were recorded, oldest first."""
    names = (path.stem for path in FOLDER.glob("*.txt"))
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def recorded(release: str) -> dict[str, tuple[str, str]]:
    """The verdict of each case on that release, and the field that decided with its value."""
    rows = (FOLDER / f"{release}.txt").read_text(encoding="utf-8").splitlines()
    parts = (row.split(_BETWEEN, 2) for row in rows if row and not row.startswith("#"))
    return {name: (verdict, decided) for name, verdict, decided in parts}


def in_words() -> Mapping[str, str]:
    """Return the response of each release in words, by the case's ID."""
    words: dict[str, list[str]] = {}
    for release in releases():
        for name, (verdict, decided) in recorded(release).items():
            words.setdefault(name, []).append(f"{release}: {verdict}" + (f", {decided}" if decided else ""))
    return {name: "; ".join(word) for name, word in words.items()}


def lines(release: str, outcomes: Sequence[CaseOutcome]) -> Iterator[str]:
    """The file of a release."""
    yield f"# Apache Kafka {release}: case | verdict | the field that decides. Written by bench.probe.record."
    for outcome in outcomes:
        yield _BETWEEN.join((outcome.case.id, outcome.verdict.value, _OF_RUN.sub("", outcome.decided_by)))
