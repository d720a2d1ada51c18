"""Second set: the controller's changes, brokers and elections, and images, updates and snapshots of the metadata."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.controller.metadata_broadcast import _Recipient
from reference_broker.controller.planning.brokers import handle_broker_unfenced
from reference_broker.controller.planning.partition_changes import Election

TERM = "reference_broker.controller.controller_term:ControllerTerm"
DELTA = "reference_broker.metadata.delta"


# --- changes ----------------------------------------------------------------------------------------------------------


@mutant(f"{TERM}.complete_published")
def change_completed_one_offset_early(original: Function, self: Any) -> None:
    """A change is acknowledged when the offset before its last record is published. That record may not be committed
    yet (T-8, T-10)."""
    stable = self._loader.image.provenance.offset
    while self._in_flight and self._in_flight[0].last_offset <= stable + 1:
        self._in_flight.popleft().completed(None)


@mutant(f"{TERM}.end")
def written_changes_of_ended_term_dropped(original: Function, self: Any) -> Any:
    """A controller that loses leadership does not respond to the requests whose records it has written, so that their
    clients wait for their timeouts (T-10)."""
    self._in_flight.clear()
    return original(self)


@mutant("reference_broker.controller.planning.config_changes:ConfigChange.plan")
def validated_settings_written(original: Function, self: Any, context: Any) -> Any:
    """A request to alter settings is carried out although it has validate_only set (KIP-133, KIP-339)."""
    self.validate_only = False
    return original(self, context)


# --- brokers and elections --------------------------------------------------------------------------------------------


@mutant("reference_broker.controller.broker_heartbeats:BrokerHeartbeatManager._change")
def unfenced_before_caught_up(original: Function, self: Any, broker: Any, heartbeat: Any) -> None:
    """A broker is unfenced with its first heartbeat, before it has caught up with the metadata log to its own
    registration (KIP-631)."""
    if broker.fenced and not heartbeat.want_fence and not heartbeat.want_shut_down:
        self._submit(broker, "unfence a broker", handle_broker_unfenced)
    else:
        original(self, broker, heartbeat)


@mutant("reference_broker.controller.planning.partition_changes:election_of")
def unclean_setting_of_topic_ignored(original: Function, image: Any, config: Any, topic: str) -> Election:
    """A topic's own unclean.leader.election.enable is ignored, and the controller's setting decides (E-3)."""
    return Election.UNCLEAN if config.unclean_leader_election_enable else Election.ONLINE


@mutant(f"{DELTA}:changed_partition")
def same_leader_begins_no_epoch(original: Function, before: Any, record: Any) -> Any:
    """A record that elects the leader of before begins no new leader epoch, although that leader may have lost records
    in a restart (KIP-101, E-5)."""
    after = original(before, record)
    return replace(after, leader_epoch=before.leader_epoch) if record.leader == before.leader else after


# --- images -----------------------------------------------------------------------------------------------------------


@mutant("reference_broker.metadata.loader:MetadataBatchLoader.reset")
def open_transaction_survives_snapshot(original: Function, self: Any, image: Any) -> None:
    """A node that loads a snapshot in the middle of a metadata transaction counts as inside it, and publishes nothing
    before the next End (T-9, KIP-868)."""
    in_transaction = self.in_transaction
    original(self, image)
    self.in_transaction = in_transaction


@mutant(f"{DELTA}:MetadataDelta.set_config")
def removed_setting_stays(
    original: Function, self: Any, resource: tuple[int, str], name: str, value: str | None
) -> None:
    """A setting that is deleted stays in the image, and in the snapshots that are made of it (S-16, KIP-339)."""
    if value is not None:
        original(self, resource, name, value)


@mutant(f"{DELTA}:_topic_changes")
def deletions_in_snapshot_not_published(
    original: Function, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Any]:
    """A node that catches up from a snapshot goes on with the topics that were deleted meanwhile (S-9, S-15)."""
    return (change for change in original(before, after) if change.after is not None)


# --- brokers' views -----------------------------------------------------------------------------------------------


@mutant("reference_broker.metadata.cache:MetadataCache.live_brokers")
def fenced_brokers_listed(original: Function, self: Any) -> tuple[Any, ...]:
    """Metadata and DescribeCluster list brokers that are fenced, so that clients connect to brokers that are not there
    (KIP-631)."""
    brokers: tuple[Any, ...] = self.brokers
    return brokers


@mutant("reference_broker.controller.metadata_broadcast:MetadataBroadcast._refresh_brokers")
def restarted_broker_gets_no_update(original: Function, self: Any, content: Any) -> None:
    """A broker that has restarted is taken for its former incarnation, and gets no update as long as the controller
    stays (M-3)."""
    for recipient in list(self._recipients.values()):
        broker = content.image.brokers.get(recipient.broker_id)
        if broker is None:
            self._cancel(recipient)
            del self._recipients[recipient.broker_id]
        elif broker.fenced:
            self._cancel(recipient)
    for broker in content.live_brokers():
        if broker.broker_id not in self._recipients:
            self._recipients[broker.broker_id] = _Recipient(broker.broker_id, broker.broker_epoch)
