"""What an API is: the class of its requests and the function that answers them, checked against each other by mypy."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call

BodyT = TypeVar("BodyT")


@dataclass(frozen=True, slots=True)
class Api(Generic[BodyT]):
    """``bodies``: the class of its requests, or their classes where drafts have their own.

    ``bind`` makes the handler of one node, ``handler(call, body)``. That returns the response, or None after it has
    kept ``call`` to respond later.
    """

    bodies: type[BodyT] | tuple[type[BodyT], ...]
    bind: Callable[[Broker], Callable[[Call, BodyT], object | None]]

    @staticmethod
    def of(
        bodies: type[BodyT] | tuple[type[BodyT], ...], handle: Callable[[Broker, Call, BodyT], object | None]
    ) -> "Api[BodyT]":
        """An API that keeps nothing of its own between two requests.

        ``handle`` names the few parts of the broker that it uses (``parts.py``).
        """
        return Api(bodies, lambda broker: partial(handle, broker))
