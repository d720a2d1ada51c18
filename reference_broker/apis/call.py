"""A request as API handlers see it. A response may take several events to build."""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from reference_broker.apis.broker import Broker
from reference_broker.ports.node_ports import later
from reference_broker.ports.slicing import Sliced, contained_slices, run_slices

GivenT = ParamSpec("GivenT")


class Call(Protocol):
    """A request that is being served."""

    connection: int
    client_id: str
    api_version: int
    closed: bool
    """True after the response, or once the connection is gone. Then ``respond`` does nothing."""

    @property
    def client_host(self) -> str:
        """The host that the request came from, as DescribeGroups shows it. Empty for this node's own requests."""
        ...

    @property
    def listener(self) -> str:
        """The name of the listener that received it, or empty if the node has only one."""
        ...

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:
        """Send the response. With None the request is done, but no frame is sent (produce with acks=0).

        ``api_version`` is the response's if it differs from the request's (ApiVersions for an unknown version).
        """
        ...

    def close(self, reason: str) -> None:
        """Close the connection instead of responding, because the peer broke the protocol."""
        ...

    def on_closed(self, forget: Callable[[], None]) -> None:
        """Call ``forget`` if the connection closes before the response, or if the request fails because of a bug."""
        ...

    def contain(self, work: Callable[[], object]) -> bool:
        """Do a part of the request's work in a later event. A bug in it costs this request alone, as a bug in the
        handler does. Return whether there was none.

        ``work`` may only read what requests share, or change it as the handler may: a step that fails half way must
        leave to the others what they rely on. Work for several requests is not contained, and a bug in it ends the
        node.
        """
        ...


def contained(call: Call, work: Callable[GivenT, object]) -> Callable[GivenT, None]:
    """Return ``work`` as it may be called in a later event (``Call.contain``)."""

    def run(*given: GivenT.args, **named: GivenT.kwargs) -> None:
        call.contain(lambda: work(*given, **named))

    return run


ResponseT = TypeVar("ResponseT")


def run_contained(broker: Broker, call: Call, work: Sliced[object]) -> None:
    """Run the work of one request, in this event and, if it is long, in later ones.

    A bug fails only the request. In this event the caller contains it: the node does so for a handler.
    """
    for _ in work:
        later(broker.ports, 0, lambda: run_slices(broker.ports, contained_slices(call.contain, work)))
        return


def respond_later(broker: Broker, call: Call, building: Sliced[object]) -> None:
    """Start to build the response, and send it when it is built. The work ends once the connection is closed."""

    def respond() -> Sliced[None]:
        call.respond((yield from building))

    def until_closed() -> Sliced[None]:
        for _ in contained_slices(call.contain, respond()):
            # Decision response-abandoned (F-20): connection is closed | built further
            if call.closed:
                return
            yield

    run_slices(broker.ports, until_closed())


def respond_now_or_later(broker: Broker, call: Call, building: Sliced[ResponseT]) -> ResponseT | None:
    """Return the response if it is built in this event. Otherwise send it when it is built."""
    try:
        next(building)
    except StopIteration as end:
        response: ResponseT = end.value
        return response
    later(broker.ports, 0, lambda: respond_later(broker, call, building))
    return None
