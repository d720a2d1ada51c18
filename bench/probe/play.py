"""Plays cases against a broker."""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.probe.broker import Broker, NotKafka, is_loopback, meet
from bench.probe.case import Case, Level
from bench.probe.conversation import Broken
from bench.probe.surroundings import Belongings, Surroundings, remove
from bench.probe.verdict import NotAdvertised, Outcome, Unexpected, Unsupported, Verdict

AT_ONCE = 8
"""So many cases run side by side. Most of them wait for the broker most of the time."""


def play(
    broker: Broker, cases: Sequence[Case], hostile: bool = False, note: Callable[[str], None] = lambda _: None
) -> list[Outcome]:
    """Plays all cases and removes what they have made. Returns their outcomes in the order of ``cases``.

    Cases that need no peace run side by side, and the others after them. ``hostile`` plays hostile cases against
    targets beyond loopback, too. ``note`` hears what could not be removed.
    """
    belongings = Belongings()
    may_harm = hostile or is_loopback(broker.address[0])
    outcomes: dict[str, Outcome] = {}

    def one(case: Case) -> Outcome:
        if case.hostile and not may_harm:
            return Outcome(case, Verdict.NOT_PLAYED, "hostile, and the target is not on loopback (--hostile)", 0.0)
        return play_one(broker, case, belongings)

    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for outcome in threads.map(one, [each for each in cases if not each.alone]):
                outcomes[outcome.case.id] = outcome
        for outcome in _one_by_one([each for each in cases if each.alone], one, broker):
            outcomes[outcome.case.id] = outcome
    finally:
        for failure in remove(broker, belongings):
            note(f"what begins with {belongings.prefix} is still there: {failure}")
    return [outcomes[each.id] for each in cases]


def _one_by_one(cases: Sequence[Case], one: Callable[[Case], Outcome], broker: Broker) -> Iterator[Outcome]:
    """After each hostile case the broker must still answer."""
    for case in cases:
        outcome = one(case)
        if case.hostile and outcome.verdict is not Verdict.NOT_PLAYED:
            try:
                meet(broker.address)
            except NotKafka as error:
                reason = f"afterwards the broker is gone: {error}"
                outcome = Outcome(case, Verdict.FAIL, reason, outcome.seconds, outcome.observations, outcome.lines)
        yield outcome


def _place(error: Exception) -> str:
    """Where it happened, in a file of the probe."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def play_one(broker: Broker, case: Case, belongings: Belongings) -> Outcome:
    """Plays one case. It never raises what a broker may cause."""
    at = Surroundings(case, broker, belongings)
    began = time.monotonic()
    verdict, reason = Verdict.PASS, ""
    try:
        for api_key in case.needs:
            at.version(api_key)
        case.play(at)
    except NotAdvertised as error:
        verdict, reason = Verdict.NOT_ADVERTISED, str(error)
    except Unsupported as error:
        verdict, reason = Verdict.INCONSISTENT, str(error)
    except Unexpected as error:
        verdict = Verdict.FAIL if case.level is Level.MUST else Verdict.DIFFERS
        reason = str(error)
    except Broken as error:
        verdict, reason = Verdict.INCONSISTENT, str(error)
    except Exception as error:
        verdict, reason = Verdict.OUR_ERROR, f"the case stumbles: {type(error).__name__}: {error}, {_place(error)}"
    finally:
        at.end()
    return Outcome(case, verdict, reason, time.monotonic() - began, at.observations, at.lines)
