"""Declares an API: the class of its requests, and the function that answers them. mypy checks that the two fit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call

BodyT = TypeVar("BodyT")


@dataclass(frozen=True, slots=True)
class Api(Generic[BodyT]):
    """``bodies`` is the class of its requests. It is a tuple of classes if private drafts have classes of their own.

    ``bind`` makes the handler of one node, ``handler(call, body)``. The handler returns the response, or None if it
    keeps ``call`` to respond later.
    """

    bodies: type[BodyT] | tuple[type[BodyT], ...]
    bind: Callable[[Broker], Callable[[Call, BodyT], object | None]]

    @staticmethod
    def of(
        bodies: type[BodyT] | tuple[type[BodyT], ...], handle: Callable[[Broker, Call, BodyT], object | None]
    ) -> "Api[BodyT]":
        """Makes an API that keeps no state of its own between requests.

        ``handle`` names the few parts of the broker that it uses (``parts.py``).
        """
        return Api(bodies, lambda broker: partial(handle, broker))
