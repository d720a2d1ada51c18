from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Reply
from reference_broker.core.events import Event, Request

if TYPE_CHECKING:
    from reference_broker.core.node import Node

PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 22, 24, 25, 26, 28
STATE_TOPIC = "__transaction_state"
LARGE_EPOCH = 30_000
"""A producer ID has 32,767 epochs. Where it may have used them up, the next producer gets a new one (X-1)."""
SLACK_MS = 1_500
"""Physical: markers, and then the records of the end and of the tombstone, are replicated first."""

_Led: TypeAlias = tuple[tuple[int, int], ...]
"""The partitions of STATE_TOPIC that a node leads, each with its leader epoch."""


@dataclass(slots=True)
class _Moment:
    """By the node's wall clock, by which IDs expire, and by the run's clock, which no fault sets."""

    wall_ms: int
    at_us: int

    def ages_ms(self, now: "_Moment") -> tuple[int, int]:
        return now.wall_ms - self.wall_ms, (now.at_us - self.at_us) // 1000


@dataclass(slots=True)
class _Known:
    """An ID's last producer. ``asked`` is the last InitProducerId or EndTxn that was granted, when it came. ``named``
    is the last time at which any request named the ID."""

    led: _Led
    producer_id: int
    epoch: int
    timeout_ms: int
    asked: _Moment
    named: _Moment


class TransactionalIdsKept(Check):
    """transactional-ids-kept: a coordinator grants no timeout that is too long, and forgets idle IDs in time, not
    before.

    X-7: InitProducerId with a timeout beyond ``transaction.max.timeout.ms`` is refused. X-10: an ID that was idle for
    ``transactional.id.expiration.ms`` is forgotten with the next look, which comes each
    ``transaction.remove.expired.transaction.cleanup.interval.ms``. Who takes it then gets a new producer ID. Before,
    its owner's successor gets the same producer ID with another epoch.

    The check knows an ID from the requests that name it, as long as the same node leads the same partitions of
    ``__transaction_state``. An open transaction ends after its timeout at the latest, so an ID is idle from then on.
    """

    guarantee = "transactional-ids-kept"
    needs_one_node = True
    acts_on = (PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT, type(None))

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._known: dict[tuple[int, str], _Known] = {}
        """by node and transactional ID"""
        self._asked: dict[tuple[int, int, int], tuple[Any, _Moment]] = {}
        """by node, connection and correlation ID"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id, now = node.broker.node_id, _Moment(node.broker.now.wall_ms, at_us)
        if event is None:
            self._known = {key: known for key, known in self._known.items() if key[0] != node_id}
            self._asked = {key: asked for key, asked in self._asked.items() if key[0] != node_id}
        elif type(event) is Request:
            if event.api_key in (INIT_PRODUCER_ID, END_TXN):
                self._asked[node_id, event.connection, event.correlation_id] = event.body, now
            else:
                self._named(node_id, event.body, now)
        for effect in effects:
            if type(effect) is Reply and effect.api_key in (INIT_PRODUCER_ID, END_TXN):
                asked = self._asked.pop((node_id, effect.connection, effect.correlation_id), None)
                if asked is not None and asked[0].transactional_id is not None:
                    self._judge(node, asked[0], effect, asked[1], now)

    def _named(self, node_id: int, body: Any, now: _Moment) -> None:
        for transactional_id in _ids_in(body):
            known = self._known.get((node_id, transactional_id))
            if known is not None:
                known.named = now

    def _judge(self, node: "Node", body: Any, reply: Reply, asked: _Moment, now: _Moment) -> None:
        told: Any = reply.body
        key = node.broker.node_id, str(body.transactional_id)
        known = self._known.get(key)
        if known is not None:
            if known.led != _led(node):
                known = None
                del self._known[key]
            elif told.error_code != 0 or reply.api_key == END_TXN:
                known.named = now
        if told.error_code != 0:
            return
        if reply.api_key == END_TXN:
            if known is not None:
                known.asked = asked
            return
        config, timeout_ms = node.broker.config, body.transaction_timeout.total_seconds() * 1000
        if timeout_ms > config.transaction_max_timeout_ms:
            self.violated(now.at_us, f"{key[1]} was granted a timeout of {timeout_ms:.0f} ms")
        taken = int(told.producer_id), int(told.producer_epoch)
        if known is not None:
            self._judge_age(node, key[1], known, taken[0], asked)
        self._known[key] = _Known(_led(node), *taken, int(timeout_ms), asked, now)

    def _judge_age(self, node: "Node", transactional_id: str, known: _Known, producer_id: int, asked: _Moment) -> None:
        self.looked_at += 1
        config, is_same = node.broker.config, producer_id == known.producer_id
        who = f"{transactional_id} (producer ID {known.producer_id})"
        idle_ms, busy_ms = min(known.named.ages_ms(asked)), max(known.asked.ages_ms(asked))
        least_ms = config.transactional_id_expiration_ms
        most_ms = (
            *(known.timeout_ms, config.transaction_abort_timed_out_transaction_cleanup_interval_ms, least_ms),
            *(config.transaction_remove_expired_transaction_cleanup_interval_ms, SLACK_MS),
        )
        if is_same and idle_ms > sum(most_ms) and not self._is_troubled_since(known.named.at_us):
            self.violated(asked.at_us, f"{who} was not forgotten in {idle_ms} ms, {sum(most_ms)} ms are the most")
        elif not is_same and 0 <= busy_ms < least_ms and known.epoch < LARGE_EPOCH:
            self.violated(asked.at_us, f"{who} was forgotten after {busy_ms} ms, {least_ms} ms are the least")

    def _is_troubled_since(self, since_us: int) -> bool:
        """Physical: who stands still, or reaches nobody to replicate the end or the tombstone, forgets later."""
        trouble = self.around.quorum.trouble
        return any(until_us >= since_us for until_us in (*trouble.nodes.values(), *trouble.links.values()))


def _ids_in(body: Any) -> Iterator[str]:
    """Yields the transactional IDs that a request names."""
    own = getattr(body, "transactional_id", None)
    if own:
        yield str(own)
    for each in getattr(body, "transactions", ()):
        yield str(each.transactional_id)


def _led(node: "Node") -> _Led:
    partitions = node.broker.partitions.by_name.items()
    return tuple((index, each.leader_epoch) for (topic, index), each in partitions if topic == STATE_TOPIC)
