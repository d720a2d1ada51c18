"""Gives each request to the handler of its API. Only here the class of a body is looked at."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.registry import load

_Bound = tuple[Any, Callable[[Call, Any], object | None]]
"""The classes of an API's bodies, and its handler."""


@dataclass(slots=True)
class Dispatcher:
    """The dispatcher of one node. An API loads, and is bound to the node's parts, when it is first asked for."""

    _broker: Broker
    _bound: dict[int, _Bound] = field(default_factory=dict)

    def dispatch(self, api_key: int, call: Call, body: object) -> None:
        """Answers ``call`` now, unless the handler keeps it to answer later. The API must be one that is served."""
        bodies, handler = self._bound.get(api_key) or self._bind(api_key)
        assert isinstance(body, bodies), f"API {api_key} got a {type(body).__name__}"
        answer = handler(call, body)
        if answer is not None:
            call.respond(answer)

    def _bind(self, api_key: int) -> _Bound:
        api = load(api_key)
        bound = self._bound[api_key] = (api.bodies, api.bind(self._broker))
        return bound
