"""``crucible probe``: plays cases against a target and tells what came of them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.probe import kafka_answers
from bench.probe.broker import Address, meet
from bench.probe.play import play
from bench.probe.registry import chosen
from bench.probe.told import as_json, text

PASSED, FAILED = 0, 1


class UsageError(Exception):
    """The words of the command do not fit together."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for. ``say`` takes a line for people."""

    target: str
    sections: Sequence[str] = ()
    cases: Sequence[str] = ()
    strict: bool = False
    dry_run: bool = False
    hostile: bool = False
    json: Path | None = None


def run(wanted: Wanted, say: Callable[[str], None]) -> int:
    """Returns the exit code: 0 if no MUST failed (with ``strict``: and no SHOULD differs), else 1.

    Raises UsageError, UnknownCase and NotKafka, which are one sentence each.
    """
    cases = chosen(wanted.sections, wanted.cases)
    if wanted.dry_run:
        for each in cases:
            say(text.listed(each))
        say(f"{len(cases)} cases")
        return PASSED
    broker = meet(address_of(wanted.target))
    began = time.monotonic()
    outcomes = play(broker, cases, wanted.hostile)
    seconds = time.monotonic() - began
    kafka = kafka_answers.told()
    in_full = bool(wanted.cases) and len(cases) <= len(wanted.cases)
    for outcome in outcomes:
        if in_full or outcome.is_red(wanted.strict):
            for line in text.in_full(outcome, repeat(wanted.target, outcome.case.id), kafka.get(outcome.case.id, "")):
                say(line)
        else:
            say(text.line(outcome))
    say(text.summary(outcomes, seconds))
    if wanted.json is not None:
        wanted.json.write_text(as_json.document(wanted.target, outcomes, kafka), encoding="utf-8")
    return FAILED if any(each.is_red(wanted.strict) for each in outcomes) else PASSED


def repeat(target: str, case_id: str) -> str:
    return f"./crucible probe {target} --case {case_id}"


def address_of(target: str) -> Address:
    """``HOST:PORT``, also with an IPv6 host in brackets. Raises UsageError."""
    host, separator, port = target.rpartition(":")
    if not separator or not port.isdigit() or not 0 < int(port) < 65536 or not host.strip("[]"):
        raise UsageError(f"{target!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
