"""Measures what each fetch costs the node that serves it: processor time and bytes (``reports.schema.FETCH_COSTS``)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.hooks.trace import PassiveHook
from reference_broker.apis.records.fetch import Fetch
from reference_broker.apis.records.k01_fetch import is_metadata_fetch
from reference_broker.core.events import Closed, Effect, Event, Reply, Request
from reference_broker.ports.node_ports import Now
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, ApiKey
from reference_broker.wire.messages import encode_response
from reports.rows import FetchCost

_FETCH = int(ApiKey.FETCH)


@dataclass(slots=True)
class _PendingFetch:
    """A fetch that has no response yet."""

    client_id: str
    revision: str
    full: bool
    request_bytes: int
    named: int
    spent_ns: int
    """Processor time spent on it so far."""
    opens: bool
    """Whether it requests a session."""


class FetchCosts:
    """Implements serve.driver.Meter. ``outer`` must be the first of the driver's hooks and ``inner`` the last, so that
    the time of other hooks is not charged to the node.

    ``clock_ns`` gives the processor time of the thread that runs the node. Decoding, handling and encoding count. A
    parked fetch is also charged the time that ``waiting`` measures: work for it in the events of other fetches, which
    are not charged for that time. Fetches of the metadata log are omitted.
    """

    def __init__(
        self, node: int, add: Callable[[FetchCost], None], now_us: Callable[[], int], clock_ns: Callable[[], int]
    ) -> None:
        self.outer = _Outer(self)
        self.inner = _Inner(self)
        self._node = node
        self._add = add
        self._now_us = now_us
        self._clock_ns = clock_ns
        self._since_ns = 0
        self._decoding = False
        self._decode_ns = 0
        self._waiting_ns = 0
        """The time that was spent for parked fetches in the event that is being handled."""
        self._measures_waiting = False
        self._pending: dict[int, _PendingFetch] = {}
        """The open fetches by connection. A driver gives a connection's next request only after the reply."""
        self._unsent: dict[int, tuple[_PendingFetch, Reply]] = {}
        """Fetches whose response the driver has not sent yet. It never will if a fault took the response."""

    # Called by the driver

    def decoding(self) -> None:
        self._decoding = True
        self._since_ns = self._clock_ns()

    def sent(self, reply: Reply, frame_bytes: int) -> None:
        spent_ns = self._lap()
        found = self._unsent.pop(reply.connection, None)
        if found is not None:
            fetch, response = found
            fetch.spent_ns += spent_ns
            self._write(fetch, response, frame_bytes)
        self._since_ns = self._clock_ns()

    # Called by the two hooks

    def arrives(self, event: Event) -> None:
        """Called with each event before any other hook has seen it."""
        self._decode_ns = self._lap() if self._decoding else 0
        self._decoding = False
        if self._unsent:
            self._write_unsent()
        if type(event) is Closed:
            self._pending.pop(event.connection, None)

    def resume(self) -> None:
        """Called when the other hooks are done. Time from now on counts for the node or the driver."""
        self._since_ns = self._clock_ns()

    def handled(self, event: Event, effects: Sequence[Effect]) -> None:
        spent_ns, self._waiting_ns = self._lap() - self._waiting_ns, 0
        if type(event) is Request and event.api_key == _FETCH and not is_metadata_fetch(event.body):
            fetch = self._pending[event.connection] = _pending_fetch(event, self._decode_ns)
            fetch.spent_ns += spent_ns
        self._decode_ns = 0  # Only the first of two copies of a request was decoded.
        for effect in effects:
            if type(effect) is Reply and effect.api_key == _FETCH:
                found = self._pending.pop(effect.connection, None)
                if found is not None:
                    self._unsent[effect.connection] = (found, effect)

    def waiting(self, connection: int, do: Callable[[], None]) -> None:
        """Call ``do`` for a parked fetch, and charge the time to that fetch, including work that ``do`` does for
        another parked fetch."""
        if self._measures_waiting:
            do()
            return
        self._measures_waiting, since_ns = True, self._clock_ns()
        try:
            do()
        finally:
            self._measures_waiting = False
            spent_ns = self._clock_ns() - since_ns
            self._waiting_ns += spent_ns
            fetch = self._pending.get(connection)
            if fetch is not None:
                fetch.spent_ns += spent_ns

    def _lap(self) -> int:
        return self._clock_ns() - self._since_ns

    def _write_unsent(self) -> None:
        """Write the rows of responses that were lost on their way or are late. The driver has not reported their size,
        so they are encoded here."""
        unsent, self._unsent = self._unsent, {}
        for fetch, reply in unsent.values():
            if reply.body is not None:
                buffers = encode_response(reply.api_key, reply.api_version, reply.correlation_id, reply.body)
                self._write(fetch, reply, sum(len(buffer) for buffer in buffers))

    def _write(self, fetch: _PendingFetch, reply: Reply, response_bytes: int) -> None:
        sent, record_bytes = _content(reply.body)
        body: Any = reply.body
        denied = fetch.opens and body.error_code == 0 and body.session_id == 0
        revision = "none" if denied else fetch.revision
        self._add(
            FetchCost(
                self._now_us(),
                self._node,
                fetch.client_id,
                revision,
                fetch.full,
                fetch.request_bytes,
                response_bytes,
                fetch.named,
                sent,
                record_bytes,
                fetch.spent_ns // 1000,
            )
        )


def measure_waiting(costs: FetchCosts) -> None:
    """Pass all work for parked fetches through ``costs.waiting`` from now on."""

    def measured(original: Callable[..., None]) -> Callable[..., None]:
        def do(fetch: Fetch, *more: object) -> None:
            costs.waiting(fetch.call.connection, lambda: original(fetch, *more))

        return do

    for name in ("partition_marked", "respond"):
        setattr(Fetch, name, measured(getattr(Fetch, name)))


def _pending_fetch(request: Request, spent_ns: int) -> _PendingFetch:
    """Return the facts of a request. Its revision is ``first`` for the draft, ``none`` if it requests no session, else
    ``final``."""
    body: Any = request.body
    if request.api_version >= FIRST_DRAFT_VERSION:
        revision, full = "first", bool(body.fetch_type == 0)
    else:
        revision = "none" if body.session_id == 0 and body.session_epoch == -1 else "final"
        full = body.session_epoch in (0, -1)
    named = sum(len(topic.partitions) for topic in body.topics)
    opens = full and body.session_epoch == 0
    return _PendingFetch(request.tag.client_id, revision, full, request.frame_bytes, named, spent_ns, opens)


def _content(body: Any) -> tuple[int, int]:
    """Return the number of partitions in a response, and the bytes of their record batches."""
    partitions = [partition for topic in body.responses for partition in topic.partitions]
    return len(partitions), sum(len(partition.records) for partition in partitions if partition.records)


class _Outer(PassiveHook):
    def __init__(self, costs: FetchCosts) -> None:
        self._costs = costs

    def arrives(self, now: Now, event: Event) -> None:  # noqa: ARG002
        self._costs.arrives(event)

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        self._costs.handled(event, effects)


class _Inner(PassiveHook):
    def __init__(self, costs: FetchCosts) -> None:
        self._costs = costs

    def arrives(self, now: Now, event: Event) -> None:  # noqa: ARG002
        self._costs.resume()

    def acted(self, now: Now, event: Event, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        self._costs.resume()
