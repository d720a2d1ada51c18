"""The states of a transactional producer, and the steps between them, as a table (KIP-98, KIP-360).

A step that the table lacks is a mistake of the application, for example a second ``begin``. It changes nothing. Only
``FAIL`` is possible from every state, and nothing leads out of ``FATAL_ERROR``.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class State(Enum):
    """Where a transactional producer is. In ABORTABLE_ERROR only an abort is possible."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in an error that an abort cures"
    FATAL_ERROR = "in an error that nothing cures"


class Step(Enum):
    """What leads from one state to the next. The application takes the first four. Answers bring the others."""

    INIT = "init"
    BEGIN = "begin"
    COMMIT = "commit"
    ABORT = "abort"
    INITIALIZED = "got a producer ID and epoch"
    ENDED = "ended the transaction"
    ENDED_AND_RAISES_EPOCH = "ended the transaction, and asks for the next epoch"
    FAIL_ABORTABLY = "failed; an abort helps"
    FAIL = "failed for good"


class IllegalStepError(Exception):
    """The application asked for a step that is not possible in this state. Nothing has changed."""

    def __init__(self, state: State, step: Step) -> None:
        super().__init__(f"{step.value} is not possible: the producer is {state.value}")
        self.state = state
        self.step = step


TRANSITIONS: Final[Mapping[tuple[State, Step], State]] = MappingProxyType(
    {
        (State.UNINITIALIZED, Step.INIT): State.INITIALIZING,
        (State.INITIALIZING, Step.INITIALIZED): State.READY,
        (State.INITIALIZING, Step.FAIL_ABORTABLY): State.ABORTABLE_ERROR,
        (State.READY, Step.BEGIN): State.IN_TRANSACTION,
        (State.IN_TRANSACTION, Step.COMMIT): State.COMMITTING,
        (State.IN_TRANSACTION, Step.ABORT): State.ABORTING,
        (State.IN_TRANSACTION, Step.FAIL_ABORTABLY): State.ABORTABLE_ERROR,
        (State.COMMITTING, Step.ENDED): State.READY,
        (State.COMMITTING, Step.ENDED_AND_RAISES_EPOCH): State.INITIALIZING,
        (State.COMMITTING, Step.FAIL_ABORTABLY): State.ABORTABLE_ERROR,
        (State.ABORTING, Step.ENDED): State.READY,
        (State.ABORTING, Step.ENDED_AND_RAISES_EPOCH): State.INITIALIZING,
        (State.ABORTING, Step.FAIL_ABORTABLY): State.ABORTING,
        (State.ABORTABLE_ERROR, Step.ABORT): State.ABORTING,
        (State.ABORTABLE_ERROR, Step.FAIL_ABORTABLY): State.ABORTABLE_ERROR,
        **{(state, Step.FAIL): State.FATAL_ERROR for state in State},
    }
)


def after(state: State, step: Step) -> State:
    """Returns the state after a step.

    :raises IllegalStepError: the table has no such step.
    """
    found = TRANSITIONS.get((state, step))
    if found is None:
        raise IllegalStepError(state, step)
    return found
