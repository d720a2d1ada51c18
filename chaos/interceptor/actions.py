"""Actions that the interceptor requests from the driver, for example killing the node."""

from collections.abc import Sequence
from typing import Protocol

from reference_broker.core.events import Event, Reply
from reports.rows import FaultRow


class FaultActions(Protocol):
    """Actions of a driver for the interceptor.

    ``MachineFaultActions`` (``chaos/sim/cluster.py``) has them in the simulator, and ``ProxyFaultActions``
    (``chaos/frame_proxy/fault_actions.py``) in front of a node. For live nodes ``ReportingFaultActions``
    (``chaos/live/node_side/instrumentation.py``) passes most of them to ``DriverFaultActions``
    (``reference_broker/serve/driver.py``). A new action needs all four.
    """

    def report(self, row: FaultRow) -> None:
        """Store the evidence so that it survives the node's death, before returning."""
        ...

    def kill(self) -> None:
        """End the node as SIGKILL does: appended bytes stay (page cache). Never returns."""
        ...

    def power_off(self) -> None:
        """End the node as a power loss does: unsynced bytes are lost or torn. Never returns."""
        ...

    def lose_host(self) -> None:
        """End the node as SIGKILL does while its links swallow everything, so that nobody sees its connections close
        before it is back. Never returns."""
        ...

    def pause(self, for_us: int) -> None:
        """Stop the node as SIGSTOP does, for ``for_us`` microseconds."""
        ...

    def step_clock(self, by_ms: int) -> None:
        """Step the node's wall clock. Later events have the new time."""
        ...

    def discard_connection(self, connection: int) -> None:
        """Drop what is not yet sent to that client and all later bytes, then close the connection. The node gets
        Closed, as for any other lost connection."""
        ...

    def lose_by_proxy(self, reply: Reply) -> None:
        """Let a proxy on the way lose the reply, whose hit was reported last. Its connection is closed. What waits on
        it is the same to the client as in ``discard_connection``."""
        ...

    def deliver_later(self, event: Event, delay_us: int) -> None:
        """Deliver this object to the node after the delay, through the hooks' ``before``. The event is dropped if the
        node ends."""
        ...

    def sync_fails(self, paths: Sequence[str]) -> None:
        """Make the non-durable bytes of these files lost for ever. The kernel discards pages that it could not write,
        so a later sync would succeed without them."""
        ...

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        """Send the reply after the delay, without passing the hooks again. It is dropped if its connection is gone."""
        ...

    def reply_bytes(self, reply: Reply, frame: bytes) -> None:
        """Send these bytes instead of the response, without passing the hooks again. It is dropped if its connection
        is gone."""
        ...

    def reply_cut(self, reply: Reply, start: bytes) -> None:
        """Send these first bytes of the response and then close the connection, without passing the hooks again. It
        is dropped if its connection is gone."""
        ...
