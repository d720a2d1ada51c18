"""Answers that take more than one event to make."""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from reference_broker.apis.call import Call
from reference_broker.ports.timing import Slices

AnswerT = TypeVar("AnswerT")
Sliced: TypeAlias = Generator[None, None, AnswerT]
"""Yields after each slice of the work, and returns the answer."""


def in_one_go(answering: Sliced[AnswerT]) -> AnswerT:
    """The answer, made in this event."""
    while True:
        try:
            next(answering)
        except StopIteration as end:
            answer: AnswerT = end.value
            return answer


def respond_in_slices(call: Call, answering: Sliced[AnswerT]) -> Slices:
    """Answers the call when the answer is made. Nothing more is done once the connection is closed."""
    while not call.closed:
        try:
            next(answering)
        except StopIteration as end:
            call.respond(end.value)
            return
        yield
