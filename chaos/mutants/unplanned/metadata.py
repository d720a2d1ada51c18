"""Mutants of the controller that no scenario names: its changes and sessions, metadata epochs, and leader epochs."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.controller import broker_heartbeats
from reference_broker.controller.planning.brokers import BrokerStateChange, handle_broker_in_controlled_shutdown
from reference_broker.controller.write_operations import raise_bug
from reference_broker.metadata.records import AbortTransactionRecord

TERM = "reference_broker.controller.controller_term:ControllerTerm"
HEARTBEATS = "reference_broker.controller.broker_heartbeats:BrokerHeartbeatManager"
BROADCAST = "reference_broker.controller.metadata_broadcast:MetadataBroadcast"


# --- changes and transactions -----------------------------------------------------------------------------------------


@mutant(f"{TERM}._write_transaction")
def judged_by_unfinished_transaction(
    original: Function, self: Any, event: Any, batches: Any
) -> Generator[None, None, None]:
    """The controller takes a transaction's records for written when it begins. If the disk fails and it is aborted, the
    next changes are judged by records that do not exist (T-8)."""
    self.latest = batches.delta.build(self.latest.provenance)
    yield from original(self, event, batches)


@mutant("reference_broker.metadata.loader:MetadataBatchLoader._mark")
def aborted_records_published(original: Function, self: Any, marker: Any, batch: Any, index: int) -> None:
    """An Abort ends a transaction and leaves its records in the delta, so that they are published with the next image
    (T-8)."""
    delta = self.delta
    original(self, marker, batch, index)
    if isinstance(marker, AbortTransactionRecord):
        self.delta = delta


@mutant(f"{HEARTBEATS}.activated")
def no_session_at_takeover(original: Function, self: Any) -> None:
    """A new controller gives brokers no session, and fences those whose first heartbeat comes after its first check
    (KIP-631, KAFKA-15441)."""
    self._plan_check()


@mutant(f"{HEARTBEATS}._submit")
def pending_after_refusal(
    original: Function, self: Any, broker: Any, name: str, plan: Any, only_if_silent: bool = False
) -> None:
    """A broker whose change was refused, because the disk was full, counts as changing from then on, and is never
    fenced or unfenced again in this term (KIP-631)."""
    broker_id = broker.broker_id
    if broker_id in self.pending:
        return
    self.pending[broker_id] = None
    change = BrokerStateChange(name, broker_id, broker.broker_epoch, plan, self if only_if_silent else None)

    def completed(refusal: Any) -> None:
        if refusal is not None:
            return
        self.pending.pop(broker_id, None)
        if plan is handle_broker_in_controlled_shutdown:
            self.controlled_shutdown_offsets[broker_id] = self.controller.image.provenance.offset
        if change.has_records:
            what = broker_heartbeats._NOTES.get(plan, "broker_fenced")
            self.node.ports.note(what, ("broker", broker_id))

    self.controller.append_write_event(change, completed, raise_bug)


@mutant(f"{TERM}._plan_and_write")
def atomic_change_in_several_batches(original: Function, self: Any, event: Any) -> Generator[None, None, None]:
    """Where the metadata.version has no transactions, a change that must be atomic is written in several batches, and
    not refused (T-2)."""
    event.atomic = False
    yield from original(self, event)


@mutant("reference_broker.metadata.delta:MetadataDelta.remove_topic")
def settings_outlive_their_topic(original: Function, self: Any, topic_id: bytes) -> None:
    """The settings of a deleted topic stay in the image, and are those of the next topic of that name (S-16)."""
    configs = dict(self.configs)
    original(self, topic_id)
    self.configs = configs


# --- metadata epochs --------------------------------------------------------------------------------------------------


@mutant(f"{BROADCAST}._failed")
def lost_update_counts_as_applied(original: Function, self: Any, recipient: Any) -> None:
    """An update without a response counts as applied. The next one has only what changed since, and a broker that never
    got the lost one keeps old metadata (M-3)."""
    if recipient.target is not None:
        recipient.known, recipient.target = recipient.target, None
    original(self, recipient)


@mutant("reference_broker.metadata.cache:is_overtaken")
def update_from_before_switch_off_applied(original: Function, update: Any, cache: Any) -> bool:
    """A broker applies an update that was sent before the metadata epoch was switched off, and that came late
    (M-14)."""
    is_same_controller = update.controller_epoch == cache.controller_epoch
    return bool(is_same_controller and update.metadata_epoch <= cache.metadata_epoch)


@mutant(f"{BROADCAST}.activated")
def no_broadcast_at_takeover(original: Function, self: Any) -> None:
    """A new controller sends nothing before the next change. A broker that the former one did not reach keeps old
    metadata (M-2, M-3)."""
    original(self)
    self._dirty = False


# --- leader epochs ----------------------------------------------------------------------------------------------------


@mutant("reference_broker.log.unified_log:UnifiedLog.forget_empty_epochs")
def empty_leader_epoch_kept(original: Function, self: Any) -> None:
    """A node that led without writing keeps that epoch when it follows again. It names an epoch that its leader lacks,
    and never gets past the divergence (KIP-101, F-13)."""


@mutant("reference_broker.replication.follower.fetcher:ReplicaFetcherManager.follows")
def new_leader_epoch_not_named(original: Function, self: Any, topic: Any, index: int, state: Any, log: Any) -> None:
    """A follower whose leader begins a new epoch does not name the partition again. The leader fences the old epoch in
    its session, and a partition at rest is not followed any more (F-12, F-13)."""
    known = self._followed.get((topic.topic_id, index))
    if known is not None and known.leader_id == state.leader:
        known.leader_epoch = state.leader_epoch
    else:
        original(self, topic, index, state, log)
