"""Compares a run with an older one, so that only what got worse is red."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.probe.case import Outcome, Verdict

RANKS: Mapping[Verdict, int] = {
    Verdict.PASS: 0,
    Verdict.NOT_ADVERTISED: 1,
    Verdict.DIFFERS: 1,
    Verdict.FAIL: 2,
    Verdict.INCONSISTENT: 2,
}
"""From good to bad. What was not played, or where the case itself stumbled, is not compared."""


class NoBaseline(Exception):  # noqa: N818
    """The file was not written by --json."""


def read_baseline(path: Path) -> dict[str, Verdict]:
    """The verdicts of an older run, by the case's ID. Raises NoBaseline."""
    try:
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
        return {str(each["id"]): Verdict(each["verdict"]) for each in cases}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoBaseline(f"{path} is no baseline, which --json writes: {error}") from None


def worse(before: Mapping[str, Verdict], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The cases whose verdict is worse than before. Cases that are new are none of them."""
    return [each for each in outcomes if each.case.id in before and _is_worse(before[each.case.id], each.verdict)]


def _is_worse(before: Verdict, now: Verdict) -> bool:
    return before in RANKS and now in RANKS and RANKS[now] > RANKS[before]
