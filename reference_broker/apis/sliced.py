"""Answers that take more than one event to make."""

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

from reference_broker.apis.call import Call
from reference_broker.apis.parts import HasOutside
from reference_broker.ports.node_ports import Slices, later, run_slices

AnswerT = TypeVar("AnswerT")
Sliced: TypeAlias = Generator[None, None, AnswerT]
"""Yields after each slice of the work, and returns the answer."""

_OVER: Final = object()


def in_one_go(answering: Sliced[AnswerT]) -> AnswerT:
    """The answer, made in this event."""
    while True:
        try:
            next(answering)
        except StopIteration as end:
            answer: AnswerT = end.value
            return answer


def answer_in_slices(broker: HasOutside, call: Call, answering: Sliced[AnswerT]) -> AnswerT | None:
    """The answer, if it takes no more than a slice. Else it is made in later events and given through ``call``."""
    try:
        next(answering)
    except StopIteration as end:
        answer: AnswerT = end.value
        return answer
    later(broker.outside, 0, lambda: run_slices(broker.outside, respond_in_slices(call, answering)))
    return None


def respond_in_slices(call: Call, answering: Sliced[AnswerT]) -> Slices:
    """Answers the call when the answer is made. Nothing more is done once the connection is closed."""

    def answered() -> Slices:
        call.respond((yield from answering))

    for _ in contained_slices(call, answered()):
        if call.closed:
            return
        yield


def contained_slices(call: Call, work: Slices) -> Slices:
    """Work for one request. A bug in it costs that request, and ends the work."""
    is_over = False

    def step() -> None:
        nonlocal is_over
        is_over = next(work, _OVER) is _OVER

    while call.contain(step) and not is_over:
        yield
