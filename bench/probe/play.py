"""Plays cases against a broker."""

import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.probe.broker import NotKafka, ProbedBroker, Target, is_loopback, meet
from bench.probe.case import CaseOutcome, CaseVerdict, Level, NotAdvertised, ProbeCase, Unexpected, Unsupported
from bench.probe.context import Belongings, ProbeContext, remove
from bench.probe.conversation import Broken
from bench.targets.model import TargetError

AT_ONCE = 8
"""Number of cases that run side by side. Most of them wait for the broker most of the time."""
GONE = "the broker is gone: "
"""So begins the reason of a case that was not played because the broker had ended before."""


def play(
    broker: ProbedBroker,
    cases: Sequence[ProbeCase],
    hostile: bool = False,
    note: Callable[[str], None] = lambda _: None,
    target: Target | None = None,
) -> list[CaseOutcome]:
    """Play all cases and remove what they have made. Return their outcomes in the order of ``cases``.

    Cases that need no peace run side by side, and the others after them. ``hostile`` plays hostile cases against
    targets beyond loopback, too. ``note`` gets what could not be removed. ``target`` is how the broker was started, if
    the probe did so: one that ends is started again. Without it the probe ends with the broker, and the reason of each
    case that was not played begins with ``GONE``.
    """
    run = _Run(broker, target or Target(broker.address), hostile or is_loopback(broker.address[0]))
    try:
        run.side_by_side([case for case in cases if not case.alone])
        run.one_by_one([case for case in cases if case.alone])
    finally:
        for failure in () if run.gone else remove(broker, run.belongings):
            note(f"what begins with {run.belongings.prefix} is still there: {failure}")
    return [
        run.outcomes.get(case.id) or CaseOutcome(case, CaseVerdict.NOT_PLAYED, f"{GONE}{run.gone}", 0.0)
        for case in cases
    ]


@dataclass(slots=True)
class _Run:
    """The cases that are played on one broker."""

    broker: ProbedBroker
    target: Target
    may_harm: bool  # hostile cases are played
    belongings: Belongings = field(default_factory=Belongings)
    outcomes: dict[str, CaseOutcome] = field(default_factory=dict)
    gone: str = ""  # where and since which case a broker that we cannot restart serves nobody; empty while it serves
    _is_tidy: bool = False

    def side_by_side(self, cases: Sequence[ProbeCase]) -> None:
        """Where the broker ends, what ran then and shortly before is played again one by one, to find the case."""
        left = list(cases)
        while left and not self.gone:
            done, dead = self._until_death(left)
            left = [each for each in left if each.id not in done]
            if not dead:
                continue
            suspects = [self.outcomes[each].case for each in done[dead.first :]]
            unexplained = [
                suspect for suspect in suspects if self.outcomes[suspect.id].verdict is CaseVerdict.INCONSISTENT
            ]
            if self._revived(dead.why, suspects):
                self.one_by_one(suspects)
            if not any(self.outcomes[suspect.id].ended for suspect in suspects):
                self._blame(dead.why, unexplained)

    def _until_death(self, cases: Sequence[ProbeCase]) -> "tuple[list[str], _Death | None]":
        """Play cases at once until all are played or the broker ends. Return the IDs of those that were played, in the
        order in which they ended."""
        done: list[str] = []
        deaths: list[_Death] = []

        def one(case: ProbeCase) -> None:
            if deaths:
                return
            outcome = self._one(case)
            self.outcomes[case.id] = outcome
            done.append(case.id)
            if outcome.verdict is CaseVerdict.INCONSISTENT and not deaths and (why := self.target.why_gone()):
                deaths.append(_Death(why, max(0, len(done) - 2 * AT_ONCE)))

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(one, cases))
        return done, deaths[0] if deaths else None

    def one_by_one(self, cases: Sequence[ProbeCase]) -> None:
        """Play cases one by one. After each of them the broker must still respond."""
        for case in cases:
            if self.gone:
                return
            if case.restarts and self.target.can_restart and not self._is_tidy:
                remove(self.broker, self.belongings)  # A broker with hundreds of topics takes long to start.
                self._is_tidy = True
            outcome = self._one(case)
            self.outcomes[case.id] = outcome
            if outcome.verdict in (CaseVerdict.NOT_PLAYED, CaseVerdict.NOT_ADVERTISED):
                continue
            if why := self.target.why_gone():
                self.outcomes[case.id] = _ended(outcome, why)
                self._revived(why, [case])

    def _revived(self, why: str, suspects: Sequence[ProbeCase]) -> bool:
        """Start a broker that ended again, if it is ours. Else the run ends."""
        if self.target.processes is not None:
            try:
                self.target.processes.restart()
                self.broker = meet(self.target.address)
                return True
            except (TargetError, NotKafka) as error:
                why = f"it could not be started again: {error}"
        host, port = self.target.address
        names = ", ".join(suspect.id for suspect in suspects)
        since = f"one of the cases {names}" if len(suspects) > 1 else names
        self.gone = f"{host}:{port} serves nobody since {since}: {why}"
        return False

    def _blame(self, why: str, unexplained: Sequence[ProbeCase]) -> None:
        """The broker ended, and no single case was found to be the cause."""
        for case in unexplained:
            beside = f"{why} (this case ran then; another that ran beside it or just before may have ended the broker)"
            self.outcomes[case.id] = _ended(self.outcomes[case.id], beside)

    def _one(self, case: ProbeCase) -> CaseOutcome:
        if case.hostile and not self.may_harm:
            return CaseOutcome(
                case, CaseVerdict.NOT_PLAYED, "hostile, and the target is not on loopback (--hostile)", 0.0
            )
        if case.restarts and not self.target.can_restart:
            why = "loses all that it had" if self.target.processes is not None else "was not started by the probe"
            return CaseOutcome(case, CaseVerdict.NOT_PLAYED, f"the broker must be restarted, and it {why}", 0.0)
        return play_one(self.broker, case, self.belongings, self.target)


@dataclass(frozen=True, slots=True)
class _Death:
    """The reason why the broker is gone, and the place among the cases that had ended from which on one may have ended
    it."""

    why: str
    first: int


def _ended(outcome: CaseOutcome, why: str) -> CaseOutcome:
    return replace(outcome, verdict=CaseVerdict.FAIL, reason=why, ended=True)


def _place(error: Exception) -> str:
    """Return the place of the error in a file of the probe."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def play_one(
    broker: ProbedBroker, case: ProbeCase, belongings: Belongings, target: Target | None = None
) -> CaseOutcome:
    """Play one case. It never raises what a broker may cause."""
    at = ProbeContext(case, broker, belongings, target)
    began = time.monotonic()
    verdict, reason = CaseVerdict.PASS, ""
    try:
        for api_key in case.needs:
            at.version(api_key)
        case.play(at)
    except NotAdvertised as error:
        verdict, reason = CaseVerdict.NOT_ADVERTISED, str(error)
    except Unsupported as error:
        verdict, reason = CaseVerdict.INCONSISTENT, str(error)
    except Unexpected as error:
        verdict = CaseVerdict.FAIL if case.level is Level.MUST else CaseVerdict.DIFFERS
        reason = str(error)
    except Broken as error:
        verdict, reason = CaseVerdict.INCONSISTENT, str(error)
    except Exception as error:
        verdict, reason = CaseVerdict.OUR_ERROR, f"the case stumbles: {type(error).__name__}: {error}, {_place(error)}"
    finally:
        at.end()
    return CaseOutcome(case, verdict, reason, time.monotonic() - began, at.observations, at.lines)
