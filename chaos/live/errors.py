"""Errors that end a run, and its exit code."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class SetupError(Exception):
    """The run cannot be set up. The message is one sentence that says what to do. The exit code is 2."""


class NodeDied(Exception):  # noqa: N818  (it says what happened)
    """A process ended, and no fault caused it. The message contains how it ended and the last line of its log. The exit
    code is 4, unless a guarantee covers it."""


class TargetDied(NodeDied):
    """A node of an external target ended by itself, or did not restart after a fault: a failure of the target, not of
    the suite."""


class NotBack(NodeDied):
    """A node of the reference broker did not become ready after a fault. That violates responses-after-heal, and is not
    a crash."""


class EndedItself(NodeDied):
    """A node found its metadata damaged and ended. That violates quorum-converges, and is a crash only if that
    guarantee is not promised."""


CONVERGES: Final = "quorum-converges"


class Ending(Enum):
    """The end of a run."""

    FINISHED = auto()
    NODE_ENDED_ITSELF = auto()  # over its metadata
    NODE_NOT_BACK = auto()  # did not serve again after a fault
    TARGET_DIED = auto()
    CRASHED = auto()  # another unexpected end of a process, or a failure of the suite itself


@dataclass(frozen=True, slots=True)
class RunEnd:
    ending: Ending = Ending.FINISHED
    explanation: str = ""

    @property
    def crash(self) -> str:
        return self.explanation if self.ending is Ending.CRASHED else ""


def end_by(failure: Exception, guarantees: Collection[str]) -> RunEnd:
    """Return the end of a run that is judged for these guarantees."""
    match failure:
        case EndedItself() if CONVERGES in guarantees:
            return RunEnd(Ending.NODE_ENDED_ITSELF, str(failure))
        case TargetDied():
            return RunEnd(Ending.TARGET_DIED, str(failure))
        case NotBack():
            return RunEnd(Ending.NODE_NOT_BACK, str(failure))
        case NodeDied():
            return RunEnd(Ending.CRASHED, str(failure))
    return RunEnd(Ending.CRASHED, f"the suite failed: {type(failure).__name__}: {failure}")
