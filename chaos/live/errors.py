"""Errors that end a run, and its exit code."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class SetupError(Exception):
    """The run cannot be set up. The message is one sentence that says what to do. The exit code is 2."""


class NodeDied(Exception):  # noqa: N818  (it says what happened)
    """A process ended although no fault caused that. The message says how it ended, and the last line of its log.
    The exit code is 4, unless a guarantee covers it."""


class TargetDied(NodeDied):
    """A node of a target that is not ours ended by itself, or did not come back after a fault. That is the target's
    failure and not the suite's."""


class NotBack(NodeDied):
    """A node of ours did not get ready again after a fault. That breaks responses-after-heal, and is no crash."""


class EndedItself(NodeDied):
    """A node found that it cannot go on with its metadata. That breaks quorum-converges, and is a crash
    only where that is not promised."""


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
    story: str = ""

    @property
    def crash(self) -> str:
        return self.story if self.ending is Ending.CRASHED else ""


def end_by(failure: Exception, guarantees: Collection[str]) -> RunEnd:
    """Return how a run ended that is judged for these guarantees."""
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
