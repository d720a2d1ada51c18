"""Compares a run with another broker's, and with an older one.

``differences`` lays the responses of two brokers to the same case side by side, and finds the first field that differs.
What must differ between two brokers is compared only by whether it is set: IDs, addresses, and times of the broker. The
wording of error messages, and what a broker advertises, is not compared.

``worse`` compares a run with its baseline, so that only what got worse is red.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from bench.probe.case import CaseOutcome, CaseVerdict
from bench.probe.context import PREFIX
from bench.probe.conversation import RECEIVED, flattened, in_words

OWN = frozenset(
    (
        *("topic_id", "session_id", "producer_id", "cluster_id", "controller_id", "member_id", "leader"),
        *("node_id", "broker_id", "leader_id", "host", "port", "coordinator", "client_host", "generation_id"),
        *("throttle_time", "throttle_time_ms", "log_append_time_ms", "replica_nodes", "isr_nodes", "rack"),
    )
)
"""Fields that each broker fills in its own way."""
LEFT_OUT = frozenset(
    ("error_message", "api_keys", "supported_features", "finalized_features", "finalized_features_epoch")
)
_NAME = re.compile(rf"{PREFIX}-[0-9a-f]+-\d+-")
_INDEX = re.compile(r"\[\d+\]")
NOTHING = (None, 0, -1, "", b"", bytes(16), UUID(int=0))


def first_difference(ours: CaseOutcome, theirs: CaseOutcome) -> str:
    """One sentence about the first field that differs; empty if the brokers respond alike."""
    responses, others = list(_responses(ours)), list(_responses(theirs))
    for number, ((what, fields), (_, their_fields)) in enumerate(zip(responses, others, strict=False), 1):
        where = f"response {number} ({what})"
        for path in dict.fromkeys((*fields, *their_fields)):
            here, there = fields.get(path, "not there"), their_fields.get(path, "not there")
            if here != there:
                return f"{where}, {path}: {here}, and {there} at the oracle"
    if len(responses) != len(others):
        return f"{len(responses)} responses, and {len(others)} at the oracle"
    if ours.verdict is not theirs.verdict:
        return f"{ours.verdict.value} ({ours.reason}), and {theirs.verdict.value} at the oracle ({theirs.reason})"
    return ""


def differences(ours: Sequence[CaseOutcome], theirs: Sequence[CaseOutcome]) -> Iterator[str]:
    """A line for each case to which the brokers respond differently. Both have the same cases."""
    for one, other in zip(ours, theirs, strict=True):
        found = first_difference(one, other)
        if found:
            yield f"{one.case.id}: {found}"


def _responses(outcome: CaseOutcome) -> Iterator[tuple[str, dict[str, str]]]:
    """The response's name, and each of its fields in words, by its path."""
    for line in outcome.lines:
        if line.direction == RECEIVED and line.body is not None:
            fields = {path: _plain(path, value) for path, value in flattened(line.body) if _counts(path, value)}
            yield line.words.partition(" {")[0], fields


def _counts(path: str, value: object) -> bool:
    """Return whether a field is compared. An empty list and null are the same, and so is a missing field."""
    is_empty = value is None or (path.endswith(".count") and value == 0)
    return not is_empty and LEFT_OUT.isdisjoint(_INDEX.sub("", path).split("."))


def _plain(path: str, value: object) -> str:
    names = _INDEX.sub("", path).split(".")
    if names[-1] in OWN or "brokers" in names:
        return "not set" if value in NOTHING else "set"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return _NAME.sub("", in_words(value))


RANKS: Mapping[CaseVerdict, int] = {
    CaseVerdict.PASS: 0,
    CaseVerdict.NOT_ADVERTISED: 1,
    CaseVerdict.DIFFERS: 1,
    CaseVerdict.FAIL: 2,
    CaseVerdict.INCONSISTENT: 2,
}
"""Verdicts from good to bad. Cases that were not played, or that failed by themselves, are not compared."""


class NoBaseline(Exception):  # noqa: N818
    """The file was not written by --json."""


def read_baseline(path: Path) -> dict[str, CaseVerdict]:
    """The verdicts of an older run, by the case's ID. Raise NoBaseline."""
    try:
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
        return {str(case["id"]): CaseVerdict(case["verdict"]) for case in cases}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoBaseline(f"{path} is no baseline, which --json writes: {error}") from None


def worse(before: Mapping[str, CaseVerdict], outcomes: Sequence[CaseOutcome]) -> list[CaseOutcome]:
    """The cases whose verdict is worse than before. Cases that are new are none of them."""
    return [
        outcome
        for outcome in outcomes
        if outcome.case.id in before and _is_worse(before[outcome.case.id], outcome.verdict)
    ]


def _is_worse(before: CaseVerdict, now: CaseVerdict) -> bool:
    return before in RANKS and now in RANKS and RANKS[now] > RANKS[before]
