"""The sessions of brokers at the active controller (Kafka's BrokerHeartbeatManager).

A heartbeat gets its response at once, even while the controller works on something else. Fencing, unfencing and
controlled shutdowns are queued as changes. A broker that shuts down first hands over its leadership of partitions. When
every other broker has published the new leaders, the broker is fenced and may go.

A silent broker is fenced after ``broker.session.timeout.ms``, but never because this node was slow. Of a time in which
this node did not run, at most one interval between two checks is counted, and a queued fencing checks the session again
when its turn comes. A new active controller gives every broker a whole session (KIP-631; KAFKA-15441).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.planning.brokers import (
    BrokerPlan,
    BrokerStateChange,
    handle_broker_fenced,
    handle_broker_in_controlled_shutdown,
    handle_broker_shutdown_now,
    handle_broker_unfenced,
    is_shut_down,
)
from reference_broker.controller.planning.partition_changes import active_brokers
from reference_broker.controller.write_operations import NOT_CONTROLLER, ActiveController, ApiError, raise_bug
from reference_broker.metadata.image import BrokerImage
from reference_broker.ports.node_ports import NodeContext
from reference_broker.wire.errors import ErrorCode

CHECKS_PER_SESSION = 6
"""Number of checks of sessions within one session timeout."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The content of a BrokerHeartbeat."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    """The last offset of the metadata log that the broker has published."""
    want_fence: bool
    want_shut_down: bool


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The response to a BrokerHeartbeat, from the published state."""

    is_caught_up: bool
    """Whether the broker knows its own registration."""
    is_fenced: bool
    should_shut_down: bool


@dataclass(slots=True)
class BrokerHeartbeatManager:
    """The sessions and controlled shutdowns of all brokers, while this node is the active controller."""

    node: NodeContext
    config: BrokerConfig
    controller: ActiveController
    deadlines_us: dict[int, int] = field(default_factory=dict)
    """The end of each broker's session, in monotonic time."""
    pending: dict[int, None] = field(default_factory=dict)
    """The brokers for which a change is queued, so that heartbeats do not queue more of the same."""
    metadata_offsets: dict[int, int] = field(default_factory=dict)
    """The metadata offset in each broker's last heartbeat."""
    controlled_shutdown_offsets: dict[int, int] = field(default_factory=dict)
    """For each broker in controlled shutdown, the metadata offset that has the new leaders of its partitions."""
    _check_at_us: int = 0
    _timer: int | None = None

    def activated(self) -> None:
        """Begin a whole session for every broker that is not fenced."""
        for broker_id in sorted(self.controller.latest.brokers):
            if not self.controller.latest.brokers[broker_id].fenced:  # Decision broker-session-after-failover
                self.touch(broker_id)
        self._plan_check()

    def deactivated(self) -> None:
        self.deadlines_us.clear()
        self.pending.clear()
        self.metadata_offsets.clear()
        self.controlled_shutdown_offsets.clear()
        if self._timer is not None:
            self.node.ports.cancel_timer(self._timer)
            self._timer = None

    def touch(self, broker_id: int) -> None:
        """Extend the broker's session to a whole session timeout from now."""
        self.deadlines_us[broker_id] = self.node.now_us + self.config.broker_session_timeout_ms * 1000

    def has_session(self, broker_id: int) -> bool:
        """Return whether the broker's session has not ended."""
        return self.deadlines_us.get(broker_id, 0) > self.node.now_us

    def forget(self, broker_id: int) -> None:
        """End the session of a broker that is no longer registered, or registers again."""
        self.deadlines_us.pop(broker_id, None)
        self.controlled_shutdown_offsets.pop(broker_id, None)

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatResult | ApiError:
        """Handle a heartbeat. It is refused if this node is not the active controller, or if it does not belong to the
        broker's latest registration. A heartbeat without ``want_shut_down`` is also refused after a controlled
        shutdown: it may have been damaged on its way, and a registration that has left is never unfenced."""
        if not self.controller.is_active:
            return NOT_CONTROLLER
        broker = self.controller.latest.brokers.get(heartbeat.broker_id)
        if broker is None:
            return ApiError(ErrorCode.stale_broker_epoch, f"Broker {heartbeat.broker_id} is not registered.")
        if broker.broker_epoch != heartbeat.broker_epoch:  # Decision broker-heartbeat-epoch
            return ApiError(
                ErrorCode.stale_broker_epoch,
                f"Broker {heartbeat.broker_id} has epoch {broker.broker_epoch}, not {heartbeat.broker_epoch}.",
            )
        # Decision broker-heartbeat-of-leaver
        if broker.fenced and broker.in_controlled_shutdown and not heartbeat.want_shut_down:
            return ApiError(
                ErrorCode.stale_broker_epoch, f"Broker {heartbeat.broker_id} has left, and must register again."
            )
        self.touch(heartbeat.broker_id)
        self.metadata_offsets[heartbeat.broker_id] = heartbeat.metadata_offset
        self._change(broker, heartbeat)
        for broker_id in list(self.controlled_shutdown_offsets):
            self._end_shutdown(broker_id)
        published = self.controller.image.brokers.get(heartbeat.broker_id)
        return HeartbeatResult(
            is_caught_up=heartbeat.metadata_offset >= broker.broker_epoch,
            is_fenced=published is None or published.fenced,
            should_shut_down=heartbeat.want_shut_down and is_shut_down(published, heartbeat.broker_epoch),
        )

    def _change(self, broker: BrokerImage, heartbeat: Heartbeat) -> None:
        """Queue the change of state that the heartbeat requests. The plan validates it again when its turn comes."""
        if heartbeat.want_shut_down:
            self._shut_down(broker)
        elif heartbeat.want_fence:
            if not broker.fenced:
                self._submit(broker, "fence a broker", handle_broker_fenced)
        elif broker.fenced and heartbeat.metadata_offset >= broker.broker_epoch:  # Decision broker-unfenced
            self._submit(broker, "unfence a broker", handle_broker_unfenced)

    def _shut_down(self, broker: BrokerImage) -> None:
        """Begin, continue or end a controlled shutdown. A broker that is fenced or the last one need not wait for
        others."""
        broker_id = broker.broker_id
        if is_shut_down(broker, broker.broker_epoch) or broker_id in self.pending:
            return
        if broker.fenced or not self._others(broker_id):  # Decision broker-shutdown-without-others
            self._submit(broker, "controlled shutdown", handle_broker_shutdown_now)
        elif not broker.in_controlled_shutdown:  # Decision broker-shutdown-begins
            self._submit(broker, "controlled shutdown", handle_broker_in_controlled_shutdown)
        else:
            self.controlled_shutdown_offsets.setdefault(broker_id, self.controller.image.provenance.offset)
            self._end_shutdown(broker_id)

    def _end_shutdown(self, broker_id: int) -> None:
        """End a controlled shutdown when every other live broker knows the new leaders."""
        broker = self.controller.latest.brokers.get(broker_id)
        if broker is None or not broker.in_controlled_shutdown or broker.fenced:
            del self.controlled_shutdown_offsets[broker_id]
        # Decision broker-leave-published
        elif all(
            self.metadata_offsets.get(other, -1) >= self.controlled_shutdown_offsets[broker_id]
            for other in self._others(broker_id)
        ):
            self._submit(broker, "controlled shutdown", handle_broker_shutdown_now)

    def _others(self, broker_id: int) -> Mapping[int, object]:
        return active_brokers(self.controller.latest, without=broker_id)

    def _submit(self, broker: BrokerImage, name: str, plan: BrokerPlan, only_if_silent: bool = False) -> None:
        broker_id = broker.broker_id
        if broker_id in self.pending:  # Decision broker-change-pending
            return
        self.pending[broker_id] = None
        change = BrokerStateChange(name, broker_id, broker.broker_epoch, plan, self if only_if_silent else None)

        def completed(refusal: ApiError | None) -> None:
            self.pending.pop(broker_id, None)
            if refusal is not None:
                return
            if plan is handle_broker_in_controlled_shutdown:
                self.controlled_shutdown_offsets[broker_id] = self.controller.image.provenance.offset
            if change.has_records:
                self.node.ports.note(_NOTES.get(plan, "broker_fenced"), ("broker", broker_id))

        self.controller.append_write_event(change, completed, raise_bug)

    def _plan_check(self) -> None:
        interval_us = max(1, self.config.broker_session_timeout_ms * 1000 // CHECKS_PER_SESSION)
        self._check_at_us = self.node.now_us + interval_us
        self._timer = self.node.after(interval_us, self._check)

    def _check(self) -> None:
        """Queue the fencing of silent brokers. If the check is late by more than an interval, this node did not run,
        and heartbeats may wait in its sockets. Then all sessions are prolonged."""
        late_us = self.node.now_us - self._check_at_us
        interval_us = self.config.broker_session_timeout_ms * 1000 // CHECKS_PER_SESSION
        if late_us > interval_us:  # Decision broker-session-check-late
            for broker_id in self.deadlines_us:
                self.deadlines_us[broker_id] += late_us
        brokers = self.controller.latest.brokers
        for broker_id in sorted(brokers):
            if not brokers[broker_id].fenced and not self.has_session(broker_id):  # Decision broker-session-expired
                self._submit(brokers[broker_id], "fence a silent broker", handle_broker_fenced, only_if_silent=True)
        self._plan_check()


_NOTES: Mapping[BrokerPlan, str] = {
    handle_broker_unfenced: "broker_unfenced",
    handle_broker_in_controlled_shutdown: "broker_leaves",
}
