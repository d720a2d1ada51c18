"""Gives this node's replicas their roles (Kafka's BrokerMetadataPublisher, ReplicaManager): opens, leads, follows,
reconfigures and deletes them as the image says.

A replica that this node leads or follows is a ``Partition``, and ``PartitionRoles`` gets its role. The log of any other
replica is only open. Publications are carried out in order, large ones in slices.

At start all partitions are recovered in slices. A directory that no topic claims, by name and ID, is deleted only if
the metadata has the topic's deletion. Any other is a stray, and renamed to ``<topic>-<index>.<topic ID>-stray`` as
Kafka does: the metadata may have been damaged, or be that of another cluster. If only a few bits of the ID differ, and
the metadata relies on this node's replica, the ID is damaged: the records stay, but are not used.

A replica whose log is in quarantine (``log.quarantine``) follows a leader, but does not lead. If there is no other
leader, the partition is offline here, and clients get KAFKA_STORAGE_ERROR. The controller is informed before this
broker is unfenced, so that it elects another eligible leader or none (``misplaced``).
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.setting import WITHOUT_EFFECT
from reference_broker.log.checkpoints import PARTITION_METADATA_FILE, is_damaged_copy, read_partition_metadata
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import note_recovery, open_log
from reference_broker.log.quarantine import begin_lost, set_all_aside, was_quarantined
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.broker_settings import LiveConfig
from reference_broker.metadata.delta import MetadataDelta, TopicChange
from reference_broker.metadata.identifiers import LOST_DIRECTORY
from reference_broker.metadata.identifiers import directory_of as directory_of_replica
from reference_broker.metadata.image import (
    BROKER_RESOURCE,
    NO_LEADER,
    TOPIC_RESOURCE,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from reference_broker.metrics.metrics import Gauge
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import (
    OPENED_LOGS_PER_SLICE,
    PUBLISHED_CHANGES_PER_SLICE,
    Budget,
    Sliced,
    run_to_end,
)
from reference_broker.replication.partition_directories import (
    DELETED_DIRECTORY,
    PartitionDirectories,
    directory_of,
    no_note,
)
from reference_broker.replication.partitions import Partition, PartitionRoles, Partitions

_SEGMENT = re.compile(r"\d{20}\.log")
_PARTITION_DIRECTORY = re.compile(r"(.+)-(\d+)")
_INTERNAL_DIRECTORY = "__cluster_metadata-0"


NONE_KNOWN: Mapping[tuple[str, int], int] = {}


@dataclass(slots=True)
class BrokerMetadataPublisher:
    """Opens, leads, follows, reconfigures and closes the replicas of a node as the metadata images say."""

    node_id: int
    config: BrokerConfig
    disk: Disk
    partitions: Partitions
    roles: PartitionRoles
    now: Callable[[], Now]
    """Returns the time of the event being handled."""
    later: Callable[[Callable[[], None]], object]
    """Calls a function in a separate event, as soon as possible."""
    sync: Callable[[tuple[str, ...], Callable[[], None]], None]
    """``Ports.sync``."""
    note: Callable[..., None] = no_note
    on_caught_up: Callable[[], None] = lambda: None
    """Called each time the last pending publication was carried out."""
    replica_count: Gauge = field(default_factory=Gauge)
    """Counts this node's replicas, led or not."""
    _logs_not_led: dict[tuple[bytes, int], UnifiedLog] = field(default_factory=dict)
    """The logs of replicas that this node does not lead."""
    _published: deque[tuple[MetadataDelta, MetadataImage]] = field(default_factory=deque)
    """Publications that were not carried out yet."""
    _work: Sliced[None] | None = None
    """The running start or publication. Later publications wait for it."""
    _changes: Budget = field(default_factory=lambda: Budget(PUBLISHED_CHANGES_PER_SLICE))
    _misplaced: list[tuple[tuple[bytes, int], UnifiedLog]] = field(default_factory=list)
    """The replicas whose directory must be reported to the controller. They were found at the start."""
    _directories: PartitionDirectories = field(init=False)
    _live: LiveConfig = field(init=False)
    _topic_defaults: tuple[BrokerConfig, LogConfig] = field(init=False)
    _noted_settings: dict[str, None] = field(default_factory=dict)
    """The settings without effect that the log has a line for."""

    def __post_init__(self) -> None:
        self._live = LiveConfig(self.config, self.node_id)
        self._topic_defaults = self.config, self.config.topic_defaults()
        self._directories = PartitionDirectories(self.disk, self.later, self.sync, self.note)

    def start(
        self, image: MetadataImage, clean: bool, high_watermarks: Mapping[tuple[str, int], int] = NONE_KNOWN
    ) -> Sliced[None]:
        """Recover every replica of this node, in slices.

        ``clean`` says whether the last stop was clean. ``high_watermarks`` are those known then, by topic and index.
        """
        self._work = self._start(image, clean, high_watermarks)
        return self._work

    def note_deletions(self, delta: MetadataDelta) -> None:
        """Note the topics that a publication from before the start deletes. They may still have files here."""
        for change in delta.topics:
            if change.after is None and change.before is not None:
                self._directories.deleted_topics.add(change.before.topic_id)

    def _start(self, image: MetadataImage, clean: bool, high_watermarks: Mapping[tuple[str, int], int]) -> Sliced[None]:
        for resource in image.configs:
            self._note_settings_without_effect(resource, image)
        yield from self._clear_unclaimed(image)
        yield
        for topic in image.topics.values():
            log_config = self._log_config(topic, image)
            for index, state in enumerate(topic.partitions):
                if self.node_id in state.replicas:
                    # What an earlier topic of that name left is cleared, and says nothing of this one's directory.
                    is_gone = not self.disk.exists(directory_of(topic.name, index))
                    directory = self._directory(topic, index)
                    high_watermark = high_watermarks.get((topic.name, index), 0)
                    if clean and high_watermark > 0 and is_gone:  # Decision directory-lost
                        begin_lost(self.disk, directory, high_watermark)
                    log = yield from open_log(self.disk, directory, log_config, self.now(), clean)
                    log.topic_id = topic.topic_id
                    note_recovery(log, self.note)
                    log.advance_high_watermark(high_watermark)
                    # Decision watermark-beyond-log
                    if high_watermark > log.log_end_offset:  # It is of another topic of this name, or the tail is lost.
                        self.roles.forgets(log)
                    self._logs_not_led[topic.topic_id, index] = log
                    self.replica_count.value += 1
                    self._apply_role(topic, index, log)
                    if self._is_misplaced(state, log):
                        self._misplaced.append(((topic.topic_id, index), log))
                if index % OPENED_LOGS_PER_SLICE == OPENED_LOGS_PER_SLICE - 1:
                    yield
            yield
        yield from self._carry_out_all()

    def _is_misplaced(self, state: PartitionImage, log: UnifiedLog) -> bool:
        """Whether the replica's directory must be reported to the controller.

        A lost replica is whole again only where its quarantine was. A log that was never in quarantine is another one:
        somebody has replaced the disk, or deleted the files. That replica stays lost until it has been in an ISR.
        """
        is_lost = directory_of_replica(state, self.node_id) == LOST_DIRECTORY
        if log.quarantine is not None:
            return not is_lost
        return is_lost and was_quarantined(self.disk, log.directory)

    def misplaced(self) -> Mapping[tuple[bytes, int], bool]:
        """Return the replicas that were found damaged, or complete again, at the start, contrary to the metadata. True
        means that the replica cannot lead. Called once."""
        is_damaged = {key: log.quarantine is not None for key, log in self._misplaced}
        self._misplaced.clear()
        return is_damaged

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Carry out a publication of the metadata loader.

        The cost is proportional to what changed: new partitions have no files yet, and a deletion is a rename. Work
        that does not fit one event continues in later ones, and later publications wait behind it.
        """
        self._published.append((delta, image))
        if self._work is None:
            self._work = self._carry_out_all()
            self._next_slice()

    @property
    def is_behind(self) -> bool:
        """Whether publications wait to be carried out."""
        return self._work is not None

    def logs_not_led(self) -> Iterable[UnifiedLog]:
        """Return the logs of this node's replicas that it does not lead."""
        return self._logs_not_led.values()

    def _next_slice(self) -> None:
        assert self._work is not None, "nothing is being carried out"
        for _ in self._work:
            self.later(self._next_slice)
            return

    def _carry_out_all(self) -> Sliced[None]:
        while self._published:
            yield from self._carry_out(*self._published.popleft())
        self._work = None
        self.on_caught_up()

    def _carry_out(self, delta: MetadataDelta, image: MetadataImage) -> Sliced[None]:
        of_brokers = (BROKER_RESOURCE, ""), (BROKER_RESOURCE, str(self.node_id))
        concerns_all = any(resource in delta.configs for resource in of_brokers)
        for change in delta.topics:
            if change.after is None:
                assert change.before is not None, "a topic change has a topic before it or after it"
                yield from self._close_topic(change.before)
            else:
                is_reconfigured = concerns_all or (TOPIC_RESOURCE, change.after.name) in delta.configs
                yield from self._update(change, change.after, image, is_reconfigured)
        for kind, name in delta.configs:
            self._note_settings_without_effect((kind, name), image)
            if (kind, name) in of_brokers:
                for topic in image.topics.values():
                    yield from self._reconfigure(topic, image)
            elif kind == TOPIC_RESOURCE and name in image.topics:
                yield from self._reconfigure(image.topics[name], image)

    def _note_settings_without_effect(self, resource: tuple[int, str], image: MetadataImage) -> None:
        for setting in image.configs.get(resource, ()):
            if setting in WITHOUT_EFFECT and setting not in self._noted_settings:
                self._noted_settings[setting] = None
                self.note(
                    "setting_without_effect",
                    ("setting", setting),
                    ("of", resource[1]),
                    ("reason", WITHOUT_EFFECT[setting]),
                )

    def _update(
        self, change: TopicChange, topic: TopicImage, image: MetadataImage, is_reconfigured: bool
    ) -> Sliced[None]:
        """Carry out the changes of partitions. A partition gets the settings of the image together with its state,
        since its in-sync replicas count by the min.insync.replicas of the same image (E-2)."""
        log_config: LogConfig | None = None  # Made only if this node holds a replica.
        for index in change.partitions:
            key = (topic.topic_id, index)
            log = self.log_of(key)
            if self.node_id in topic.partitions[index].replicas:
                if log is None:
                    log_config = log_config or self._log_config(topic, image)
                    log = self._logs_not_led[key] = self._new_log(topic, index, log_config)
                    self.replica_count.value += 1
                elif is_reconfigured:
                    log_config = log_config or self._log_config(topic, image)
                    log.config = log_config
                states_before = () if change.before is None else change.before.partitions
                self._apply_role(topic, index, log, states_before[index] if index < len(states_before) else None)
            elif log is not None:
                self._close_replica(topic, index)
                self._directories.delete()
            else:
                continue
            if self._changes.spend():
                yield

    def log_of(self, key: tuple[bytes, int]) -> UnifiedLog | None:
        """The log of this node's replica, by topic ID and index; None if it has none."""
        partition = self.partitions.by_id.get(key)
        return self._logs_not_led.get(key) if partition is None else partition.log

    def _new_log(self, topic: TopicImage, index: int, log_config: LogConfig) -> UnifiedLog:
        log = run_to_end(open_log(self.disk, self._directory(topic, index), log_config, self.now(), True))
        log.topic_id = topic.topic_id
        note_recovery(log, self.note)
        return log

    def _apply_role(self, topic: TopicImage, index: int, log: UnifiedLog, before: PartitionImage | None = None) -> None:
        """Give this node's replica the role that the image says. ``before`` is the state before that, if there was
        one."""
        state, key = topic.partitions[index], (topic.topic_id, index)
        partition = self.partitions.by_id.get(key)
        if log.quarantine is not None:
            if self._is_expendable(state, before):  # Decision quarantine-needless
                log.end_quarantine()
                self.note("quarantine_ended", ("partition", log.directory), ("end_offset", log.log_end_offset))
            elif state.leader in (NO_LEADER, self.node_id):  # Decision quarantined-replica
                self.partitions.offline[key] = None
                self.partitions.unfollow(*key)
                self.roles.stops_following(*key)
                return
        if state.leader == self.node_id:  # Decision replica-role
            self._lead(partition, topic, index, log)
            return
        self.partitions.offline.pop(key, None)
        self.partitions.follow(topic.name, *key, log, state.leader, state.leader_epoch)
        if partition is not None:
            self.partitions.remove(partition)
            self._logs_not_led[key] = log
            self.roles.stops_leading(partition)
        if state.leader == NO_LEADER:
            self.roles.stops_following(*key)
        else:
            self.roles.follows(topic, index, state, log)

    def _is_expendable(self, state: PartitionImage, before: PartitionImage | None) -> bool:
        """Whether the cluster no longer relies on the records that this replica had before its damage, so that its
        quarantine may end.

        That is so when another node leads, and this one is no eligible leader. It may lead again only when it has been
        in sync with a leader, and so holds again all that is committed. Several changes may be published at once, up to
        its own election. Then its directory shows it: a replica that was lost gets its directory back when it joins
        the ISR.
        """
        if state.leader not in (NO_LEADER, self.node_id) and self.node_id not in state.elr:
            return True
        was_lost = before is not None and directory_of_replica(before, self.node_id) == LOST_DIRECTORY
        return was_lost and directory_of_replica(state, self.node_id) != LOST_DIRECTORY

    def _lead(self, partition: Partition | None, topic: TopicImage, index: int, log: UnifiedLog) -> None:
        """Lead the replica, or apply its newer state."""
        state, key = topic.partitions[index], (topic.topic_id, index)
        is_new_epoch = partition is None or partition.leader_epoch != state.leader_epoch  # Decision led-epoch
        if partition is None:
            self.roles.stops_following(*key)
            del self._logs_not_led[key]
        if is_new_epoch:
            log.assign_leader_epoch(state.leader_epoch)
        if partition is None:
            partition = Partition(topic.name, topic.topic_id, index, state.leader_epoch, log)
            self.partitions.add(partition)
            self.roles.leads(partition, state)
            self.partitions.unfollow(*key)
            return
        partition.leader_epoch = state.leader_epoch
        self.roles.leads(partition, state)
        if is_new_epoch:
            partition.changed()

    def _directory(self, topic: TopicImage, index: int) -> str:
        """The partition's directory, cleared of what an earlier topic of that name left.

        That topic may have been deleted while this node was away. Where the metadata relies on what this node holds, an
        ID that is almost the topic's is a damaged one. Then the log begins in quarantine, and its records stay beside
        it.
        """
        directory = directory_of(topic.name, index)
        if self._directories.free(directory):
            return directory
        stored_id = read_partition_metadata(self.disk, directory)
        if stored_id in (None, topic.topic_id):
            return directory
        is_other = stored_id in self._directories.deleted_topics or not is_damaged_copy(stored_id, topic.topic_id)
        if is_other or self._is_expendable(topic.partitions[index], None):  # Decision leftover-directory
            self._directories.clear(directory, topic.name, index)
        else:
            why = f"{PARTITION_METADATA_FILE} has the ID of another topic"
            set_all_aside(self.disk, directory, PARTITION_METADATA_FILE, why)
        return directory

    def _log_config(self, topic: TopicImage, image: MetadataImage) -> LogConfig:
        config = self._live.of(image)
        configs = image.topic_configs(topic.name)
        if configs:
            return config.log_config(configs)
        if config is not self._topic_defaults[0]:
            self._topic_defaults = config, config.topic_defaults()
        return self._topic_defaults[1]

    def _reconfigure(self, topic: TopicImage, image: MetadataImage) -> Sliced[None]:
        log_config = None
        for index in range(len(topic.partitions)):
            log = self.log_of((topic.topic_id, index))
            if log is not None:
                log_config = log_config or self._log_config(topic, image)
                log.config = log_config
                partition = self.partitions.by_id.get((topic.topic_id, index))
                if partition is not None:
                    self.roles.reconfigured(partition)
                if self._changes.spend():
                    yield

    def _close_topic(self, topic: TopicImage) -> Sliced[None]:
        for index in range(len(topic.partitions)):
            if self.log_of((topic.topic_id, index)) is not None:
                self._close_replica(topic, index)
                if self._changes.spend():
                    yield
        self._directories.rename_some()
        self._directories.delete()

    def _close_replica(self, topic: TopicImage, index: int) -> None:
        """Close a partition whose topic is deleted or that no longer has a replica here."""
        key = (topic.topic_id, index)
        partition = self.partitions.by_id.get(key)
        self.partitions.offline.pop(key, None)
        self.partitions.unfollow(*key)
        self.replica_count.value -= 1
        if partition is not None:
            partition.is_topic_deleted = True
            self.partitions.remove(partition)
            self.roles.stops_leading(partition)
        else:
            self.roles.stops_following(*key)
            self.roles.forgets(self._logs_not_led.pop(key))
        self._directories.give_up(topic.name, index, topic.topic_id)

    def _clear_unclaimed(self, image: MetadataImage) -> Sliced[None]:
        """Clear the names that partitions may get from what earlier runs of this node left behind.

        These are partitions that no topic has, or that moved to other nodes meanwhile. Half-done deletions have names
        of their own and are finished later.
        """
        names = self.disk.list("")
        for name in names:
            match = _PARTITION_DIRECTORY.fullmatch(name)
            if match is None or name == _INTERNAL_DIRECTORY:
                continue
            # Decision directory-unclaimed
            if not self._has_replica_here(image.topics.get(match[1]), int(match[2])) and self._is_log(name):
                self._directories.clear(name, match[1], int(match[2]))
                yield
        self._directories.delete(name for name in names if DELETED_DIRECTORY.fullmatch(name))

    def _has_replica_here(self, topic: TopicImage | None, index: int) -> bool:
        return topic is not None and index < len(topic.partitions) and self.node_id in topic.partitions[index].replicas

    def _is_log(self, directory: str) -> bool:
        """A foreign folder may have such a name, too. Only one with a partition's files is ours."""
        return any(_SEGMENT.fullmatch(name) or name == PARTITION_METADATA_FILE for name in self.disk.list(directory))
