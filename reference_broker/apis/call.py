"""A request as API handlers see it. The table says which function runs its work and sends its response.

A handler responds in its own event, or keeps the call and responds in a later one. A bug in the work for a request must
fail only that request. The node sees to it in the handler's own event; in later events the work must go through
``Call.run``, which all functions of this module do.

==================================================  ===================================================================
the handler                                         does
==================================================  ===================================================================
has the response                                    ``return response``
has the response, but the request has none          ``call.respond(None)`` (produce with acks=0)
finds that the peer broke the protocol              ``call.close(reason)``
builds a response that may be long                  ``respond_in_slices(broker, call, build_response())``
does long work, with ``call.respond`` at its end     ``run_in_slices(broker, call, work())``
waits: for a sync, replicas, a group, a controller  gives ``callback(call, respond)`` to the part that it waits for
waits, and then builds a response that may be long  the same, and ``respond`` calls ``respond_in_slices``
keeps objects that are called later                 their methods call ``call.run(work)``
waits, and keeps something until the response       ``call.on_closed(forget)`` as well
serves requests one after the other                 runs ``slices_run_by(call.run, work())`` in its own queue (``k06``)
==================================================  ===================================================================

Long work is a generator (``ports.slicing``). Its first slice runs at once, each further one in an event of its own.
``core.call_admission`` makes the calls: ``ActiveCall`` for a request on a connection, and ``LocalCall`` for one of this
node's own.
"""

from collections.abc import Callable
from typing import ParamSpec, Protocol

from reference_broker.apis.broker import Broker
from reference_broker.ports.node_ports import later
from reference_broker.ports.slicing import Sliced, run_slices, slices_run_by

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

    def run(self, work: Callable[[], object]) -> bool:
        """Run a part of the request's work in a later event. A bug in it fails this request alone, as a bug in the
        handler does. Return whether there was none.

        ``work`` may only read what requests share, or change it as the handler may: a step that fails half way must
        leave to the others what they rely on. Work for several requests must not run here: a bug in it ends the node.
        """
        ...


def callback(call: Call, work: Callable[GivenT, object]) -> Callable[GivenT, None]:
    """Return ``work`` as a callback for other parts of the broker, which a bug in it does not reach (``Call.run``)."""

    def run(*given: GivenT.args, **named: GivenT.kwargs) -> None:
        call.run(lambda: work(*given, **named))

    return run


def run_in_slices(broker: Broker, call: Call, work: Sliced[object]) -> None:
    """Run the work of one request, in this event and, if it is long, in later ones. It goes on when the connection
    closes, unless ``work`` looks at ``call.closed``.

    Call it in the handler, a callback or ``Call.run``: the first slice relies on them if there is a bug.
    """
    for _ in work:
        later(broker.ports, 0, lambda: run_slices(broker.ports, slices_run_by(call.run, work)))
        return


def respond_in_slices(broker: Broker, call: Call, building: Sliced[object]) -> None:
    """Build the response, in this event and, if it is long, in later ones, and send it. Stop when the connection is
    closed. Call it where ``run_in_slices`` may be called."""
    try:
        next(building)
    except StopIteration as end:
        call.respond(end.value)
        return
    run_in_slices(broker, call, _build_further(call, building))


def _build_further(call: Call, building: Sliced[object]) -> Sliced[None]:
    """Run the slices after the first one."""
    while not call.closed:  # Decision response-abandoned
        yield
        try:
            next(building)
        except StopIteration as end:
            call.respond(end.value)
            return
