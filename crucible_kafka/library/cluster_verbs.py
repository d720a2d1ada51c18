"""A test's actions on its cluster: topics, leaders, coordinators, the controller, sessions, logs, features, versions.

Each verb returns when it has taken effect, or raises CrucibleTimeout with what it waits for.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from crucible_kafka.library.arguments import checked
from crucible_kafka.library.cluster_life import ClusterLife, setting
from crucible_kafka.library.errors import CrucibleError, CrucibleTimeout, NodeDead, NotPossible
from crucible_kafka.library.imitation import versions_of
from crucible_kafka.library.node_handle import LIMIT_S, NodeHandle
from crucible_kafka.library.requests import TransportError, request, wait_for
from crucible_kafka.library.rules import api_key_of
from reference_broker.coordination.partitioner import partition_of
from reference_broker.metadata.identifiers import OFFSETS_TOPIC, TRANSACTION_TOPIC
from reference_broker.metadata.image import NO_LEADER
from reference_broker.wire.apis import VERSIONS, ApiKey, api_name
from reference_broker.wire.errors import ErrorCode, error_name

GROUP_KEY, TRANSACTION_KEY = 0, 1
"""Types of the keys of FindCoordinator."""
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""Types of the changes of UpdateFeatures."""

MAX_PARTITIONS: Final = 10_000
MAX_FEATURE_LEVEL: Final = 2**15 - 1


@checked()
class ClusterVerbs(ClusterLife):
    """The verbs of ``Cluster``."""

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int | None = None,
        config: Mapping[str, object] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Create a topic, and return when every running node knows the leader of each partition, and it leads.

        Without ``replicas`` each node has one, at most 3. Raise CrucibleError if the topic exists.

        >>> kafka.create_topic("orders", partitions=3, config={"cleanup.policy": "compact"})
        """
        from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

        count = min(3, self.nodes) if replicas is None else replicas
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise ValueError(f"partitions is {partitions}: give 1 to {MAX_PARTITIONS}.")
        if not 1 <= count <= self.nodes:
            raise ValueError(f"replicas is {count}: give 1 to {self.nodes}, the number of nodes.")
        settings = tuple(
            CreatableTopicConfig(name=key, value=setting(key, value)) for key, value in (config or {}).items()
        )
        body = CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name=name,  # type: ignore[arg-type]
                    num_partitions=partitions,  # type: ignore[arg-type]
                    replication_factor=count,  # type: ignore[arg-type]
                    assignments=(),
                    configs=settings,
                ),
            ),
            validate_only=False,
        )

        def outcome() -> Any | None:
            (topic,) = self._request(ApiKey.CREATE_TOPICS, body, f"create {name}", limit_s).topics
            return None if topic.error_code is ErrorCode.not_controller else topic

        created = wait_for(outcome, lambda: f"no controller would create {name}.", limit_s)
        if created.error_code is not ErrorCode.none:
            raise refused(f"create the topic {name}", created.error_code, created.error_message)
        self._await_leaders(name, partitions, limit_s)

    def _await_leaders(self, topic: str, partitions: int, limit_s: float) -> None:
        def are_led() -> bool | None:
            found = [(member, member.command("topic", name=topic)) for member in self.reachable()]
            led = {(member.id, index) for member, view in found for index in view["led"]}
            for _, view in found:
                leaders = view["leaders"]
                if len(leaders) != partitions or any(
                    (leader, index) not in led for index, leader in enumerate(leaders)
                ):
                    return None
            return True

        wait_for(are_led, lambda: f"some partition of {topic} has no leader yet on some node.", limit_s)

    def _request(self, api_key: int, body: object, purpose: str, limit_s: float) -> Any:
        """Send a request to the first node that responds. Raise CrucibleTimeout."""
        failure: TransportError | None = None
        for member in self.reachable():
            try:
                return request(member.address, api_key, body, limit_s)
            except TransportError as error:
                failure = error
        raise CrucibleTimeout(f"No node responded to the request to {purpose}: {failure}") from failure

    # Leaders

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the ID of the node that leads a partition, by the active controller's metadata; -1 if none does."""
        return self._leaders(topic, partition)[partition]

    def move_leader(self, topic: str, partition: int = 0, to: int | None = None, limit_s: float = LIMIT_S) -> int:
        """Let another replica in sync lead a partition, and return its ID when every serving node knows it.

        Without ``to`` it is the next one. The new leader keeps the partition: it is not moved back by itself.

        >>> kafka.move_leader("orders", 0)
        """
        self.need_others("relieved of a partition")
        view = self._view(topic, partition, limit_s)
        leader, isr = view["leaders"][partition], view["isr"][partition]
        others = [each.id for each in self.reachable() if each.id != leader and each.id in isr]
        if to is None and not others:
            raise NotPossible(f"No other replica of {topic}-{partition} is in sync: create it with replicas=3.")
        target = others[0] if to is None else to
        if target != leader:
            self.controller_command("change_partition", limit_s, topic=topic, partition=partition, leader=target)
        self._await_leader(topic, partition, target, limit_s)
        return target

    def shrink_isr(self, topic: str, partition: int, to: Sequence[int], limit_s: float = LIMIT_S) -> None:
        """Take replicas out of the in-sync ones. The leader stays in.

        A replica that is taken out joins again as soon as it has caught up: isolate or pause its node before to keep it
        out. It returns when the change is committed.
        """
        self._view(topic, partition, limit_s)
        self.controller_command("change_partition", limit_s, topic=topic, partition=partition, isr=list(to))

    def _await_leader(self, topic: str, partition: int, leader: int, limit_s: float) -> None:
        def leads() -> bool | None:
            views = {each.id: each.command("topic", name=topic) for each in self.reachable()}
            known = all(view["leaders"][partition : partition + 1] == [leader] for view in views.values())
            led = [number for number, view in views.items() if partition in view["led"]]
            return True if known and led == [leader] else None

        wait_for(
            leads, lambda: f"node {leader} does not lead {topic}-{partition} yet, or some node does not know.", limit_s
        )

    def _view(self, topic: str, partition: int, limit_s: float = LIMIT_S) -> Any:
        """Return what the active controller knows of a topic that has the partition."""
        view = self.active_controller(limit_s).command("topic", name=topic)
        count = len(view["leaders"])
        if not count:
            raise CrucibleError(f"The topic {topic} does not exist: create it first.")
        if not 0 <= partition < count:
            raise ValueError(f"{topic} has no partition {partition}: it has 0 to {count - 1}.")
        return view

    def _leaders(self, topic: str, partition: int = 0) -> list[int]:
        return list(self._view(topic, partition)["leaders"])

    # Coordinators and the controller

    def coordinator(
        self, group: str | None = None, *, transactional_id: str | None = None, limit_s: float = LIMIT_S
    ) -> int:
        """Return the ID of the node that coordinates a group or a transactional ID. Its topic is created if needed."""
        from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest

        key, kind = _key_of(group, transactional_id)
        body: Any = FindCoordinatorRequest
        wanted = body(key_type=kind, coordinator_keys=(key,))

        def found() -> int | None:
            response = self._request(ApiKey.FIND_COORDINATOR, wanted, f"find the coordinator of {key}", limit_s)
            (each,) = response.coordinators
            if each.error_code is not ErrorCode.none:
                return None
            node = int(each.node_id)
            ready = self.node(node).is_serving and self.node(node).command(
                "coordinates", group=group, transactional_id=transactional_id
            )
            return node if ready else None

        return wait_for(found, lambda: f"no node coordinates {key}.", limit_s)

    def move_coordinator(
        self,
        group: str | None = None,
        *,
        transactional_id: str | None = None,
        to: int | None = None,
        limit_s: float = LIMIT_S,
    ) -> int:
        """Let another node coordinate a group or a transactional ID, and return its ID when it has loaded its past.

        All groups in the same partition of ``__consumer_offsets`` move with it.

        >>> kafka.move_coordinator("my-group")
        """
        key, kind = _key_of(group, transactional_id)
        self.coordinator(group, transactional_id=transactional_id, limit_s=limit_s)
        topic = OFFSETS_TOPIC if kind == GROUP_KEY else TRANSACTION_TOPIC
        index = partition_of(key, len(self._leaders(topic)))
        target = self.move_leader(topic, index, to, limit_s)
        wait_for(
            lambda: self.node(target).command("coordinates", group=group, transactional_id=transactional_id) or None,
            lambda: f"node {target} has not loaded {topic}-{index} yet.",
            limit_s,
        )
        return target

    def move_controller(self, to: int | None = None, limit_s: float = LIMIT_S) -> int:
        """Let another node be the active controller, and return its ID. With ``to`` elections go on until it wins."""
        self.need_others("relieved of the controller")
        before = self.active_controller(limit_s).id
        if to == before:
            return before

        def moved() -> int | None:
            active = self.active_controller(limit_s)
            if active.id == before or to not in (None, active.id):
                with suppress(NotPossible):  # It has resigned meanwhile.
                    active.command("resign", limit_s)
                return None
            return active.id

        wanted = "another node" if to is None else f"node {to}"
        return wait_for(moved, lambda: f"{wanted} is not the active controller yet.", limit_s)

    # Sessions, producers and transactions

    def evict_sessions(self, client_id: str = "*", limit_s: float = LIMIT_S) -> int:
        """Close the incremental fetch sessions of consumers that fit, and return their number. The next Fetch of each
        gets FETCH_SESSION_ID_NOT_FOUND."""
        return sum(member.command("evict_sessions", limit_s, client_id=client_id) for member in self.serving())

    def expire_producer(self, topic: str, producer_id: int | None = None, limit_s: float = LIMIT_S) -> int:
        """Let the replicas of a topic forget an idempotent producer, or all, as if idle for too long.

        Return the number of partitions, for each producer, that forgot it. One with an open transaction stays.
        """
        self._view(topic, 0, limit_s)
        return sum(
            member.command("expire_producer", limit_s, topic=topic, producer_id=producer_id)
            for member in self.serving()
        )

    def expire_transactional_id(self, transactional_id: str, limit_s: float = LIMIT_S) -> None:
        """Let an idle transactional ID expire, as after ``transactional.id.expiration.ms``. Its producer gets
        INVALID_PRODUCER_ID_MAPPING. Raise NotPossible while its transaction is open."""
        node = self.coordinator(transactional_id=transactional_id, limit_s=limit_s)
        self.node(node).command("expire_transactional_id", limit_s, transactional_id=transactional_id)

    # Logs

    def delete_records(self, topic: str, partition: int = 0, before: int = -1, limit_s: float = LIMIT_S) -> int:
        """Delete the records below an offset, or all with -1, and return the new start of the log."""
        from kio.schema.delete_records.v2.request import (
            DeleteRecordsPartition,
            DeleteRecordsRequest,
            DeleteRecordsTopic,
        )

        leader = self._leading(topic, partition)
        make: Any = DeleteRecordsPartition
        item = make(partition_index=partition, offset=before)
        body = DeleteRecordsRequest(
            topics=(DeleteRecordsTopic(name=topic, partitions=(item,)),),  # type: ignore[arg-type]
            timeout=timedelta(seconds=limit_s),  # type: ignore[arg-type]
        )
        response = request(leader.address, ApiKey.DELETE_RECORDS, body, limit_s)
        deleted = response.topics[0].partitions[0]
        if deleted.error_code is not ErrorCode.none:
            raise refused(f"delete records of {topic}-{partition}", deleted.error_code, None)
        return int(deleted.low_watermark)

    def truncate(self, topic: str, partition: int, to: int, limit_s: float = LIMIT_S) -> int:
        """Cut a partition's log back to an offset, and return where it ends then: ``to``, or the start of the batch
        that ``to`` is inside of.

        The cluster goes through what a power failure of its last replica in sync brings about: the partition has no
        leader for a moment, its leader comes back without the newest records, committed or not, and leads in a new
        epoch, and the followers truncate their logs to it. A consumer that has read beyond the new end gets
        OFFSET_OUT_OF_RANGE, or finds that its epoch diverges (KIP-320). It returns when the serving replicas are in
        sync again.

        >>> kafka.truncate("orders", 0, to=5)
        """
        member = self._leading(topic, partition)
        log = member.command("read_log", limit_s, topic=topic, partition=partition, max_bytes=0)
        first, end = log["local_log_start_offset"], log["log_end_offset"]
        if not first <= to < end:
            offsets = f"has offsets {first} to {end - 1}" if first < end else "has no records"
            raise ValueError(f"to is {to}, and {topic}-{partition} {offsets}: give one of its offsets.")
        change = {"topic": topic, "partition": partition}

        def cut() -> tuple[int] | None:
            if self._leaders(topic, partition)[partition] != NO_LEADER:
                self.controller_command("change_partition", limit_s, **change, leader=NO_LEADER, isr=[member.id])
            new_end = member.command("truncate", limit_s, **change, offset=to)
            return None if new_end is None else (new_end,)

        (new_end,) = wait_for(cut, lambda: f"node {member.id} still leads {topic}-{partition}.", limit_s)
        self.controller_command("change_partition", limit_s, **change, leader=member.id)
        self._await_leader(topic, partition, member.id, limit_s)

        def are_in_sync() -> bool | None:
            view = self._view(topic, partition, limit_s)
            serving = {each.id for each in self.reachable()}
            return True if serving & {*view["replicas"][partition]} <= {*view["isr"][partition]} else None

        wait_for(are_in_sync, lambda: f"the replicas of {topic}-{partition} are not in sync.", limit_s)
        return int(new_end)

    def _leading(self, topic: str, partition: int) -> NodeHandle:
        leader = self.leader(topic, partition)
        if leader == NO_LEADER:
            raise NodeDead(f"{topic}-{partition} has no leader: restart one of its nodes.")
        return self.node(leader)

    def roll(self, topic: str, partition: int | None = None, limit_s: float = LIMIT_S) -> None:
        """Begin a new segment in each replica of a partition, or of all partitions of the topic."""
        for member, index in self._replicas(topic, partition):
            member.command("roll", limit_s, topic=topic, partition=index)

    def compact(self, topic: str, partition: int | None = None, limit_s: float = LIMIT_S) -> None:
        """Compact all that each replica has now: of each key only the newest record stays.

        The active segment is rolled first, since it is never compacted. Records above the last stable offset stay.
        """
        self.roll(topic, partition, limit_s)
        for member, index in self._replicas(topic, partition):
            self._compact_replica(member, topic, index, limit_s)

    def _compact_replica(self, member: NodeHandle, topic: str, partition: int, limit_s: float) -> None:
        leader = self.node(self.leader(topic, partition))
        stable = leader.command("read_log", limit_s, topic=topic, partition=partition, max_bytes=0)[
            "last_stable_offset"
        ]
        reason = ""

        def compacted() -> bool | None:
            nonlocal reason
            reason = member.command("compact", limit_s, topic=topic, partition=partition, stable_offset=stable)
            return None if reason else True

        wait_for(compacted, lambda: f"node {member.id} has not compacted {topic}-{partition}: {reason}.", limit_s)

    def _replicas(self, topic: str, partition: int | None) -> Iterator[tuple[NodeHandle, int]]:
        """Yield each serving node with each partition of which it has a replica."""
        replicas = self._view(topic, partition or 0)["replicas"]
        for index in range(len(replicas)) if partition is None else (partition,):
            for number in replicas[index]:
                if self.node(number).is_serving:
                    yield self.node(number), index

    # Metadata

    def snapshot(self, limit_s: float = LIMIT_S) -> None:
        """Let each serving node make a snapshot of the metadata that is committed now."""
        end = self.active_controller(limit_s).command("newest_snapshot")[1]
        for member in self.reachable():
            self._snapshot_at(member, end, limit_s)

    def _snapshot_at(self, member: NodeHandle, end: int, limit_s: float) -> None:
        def has_one() -> bool | None:
            newest, published = member.command("newest_snapshot")
            if newest > end:
                return True
            if published >= end:
                member.command("snapshot", limit_s)
            return None

        wait_for(has_one, lambda: f"node {member.id} has no snapshot of offset {end} yet.", limit_s)

    def features(self) -> dict[str, int]:
        """Return the finalized levels of features, such as ``metadata.version``."""
        return dict(self.active_controller().command("state")["features"])

    def set_feature(self, name: str, level: int, unsafe: bool = False, limit_s: float = LIMIT_S) -> None:
        """Raise or lower the finalized level of a feature, and return when every serving node knows it. ``unsafe``
        allows a downgrade that loses metadata."""
        from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest

        if not 0 <= level <= MAX_FEATURE_LEVEL:
            raise ValueError(f"level is {level}: give 0 to {MAX_FEATURE_LEVEL}.")
        now = self.features().get(name, 0)
        kind = UPGRADE if level >= now else UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
        make: Any = FeatureUpdateKey
        update = make(feature=name, max_version_level=level, upgrade_type=kind)
        body = UpdateFeaturesRequest(feature_updates=(update,))
        purpose = f"set {name} to {level}"

        def outcome() -> Any | None:
            response = self._request(ApiKey.UPDATE_FEATURES, body, purpose, limit_s)
            return None if response.error_code is ErrorCode.not_controller else response

        response = wait_for(outcome, lambda: f"no controller would {purpose}.", limit_s)
        if response.error_code is not ErrorCode.none:
            raise refused(purpose, response.error_code, response.error_message)

        def known() -> bool | None:
            states = [member.command("state")["features"] for member in self.reachable()]
            return True if all(features.get(name, 0) == level for features in states) else None

        wait_for(known, lambda: f"some node does not know that {name} is {level}.", limit_s)

    # What clients see

    def max_versions(self, limits: str | Mapping[str, int] | None) -> None:
        """Let clients believe in an older broker: a release of Kafka (``"2.8"``), or the highest version of some APIs.

        ApiVersions announces no more, and a request beyond it closes its connection. With -1 an API is not offered at
        all, and with None nothing is limited. Connections that are open already keep what they have negotiated, so set
        it before the clients connect.

        >>> kafka.max_versions("2.8")
        >>> kafka.max_versions({"Fetch": 6, "DescribeCluster": -1})
        """
        self.check_usable()
        self.limit_versions(limits)

    def limit_versions(self, limits: str | Mapping[str, int] | None) -> None:
        """As ``max_versions``, also before the start."""
        if isinstance(limits, str):
            highest = versions_of(limits)
        else:
            highest = {api_key_of(name): limit for name, limit in (limits or {}).items()}
            for key, limit in highest.items():
                least, greatest = VERSIONS[key][:2]
                if limit != -1 and not least <= limit <= greatest:
                    raise ValueError(
                        f"max_versions has {limit} for {api_name(key)}, which is served from {least} to {greatest}: "
                        "give one of these, or -1."
                    )
        self.hold("versions", "limit_versions", highest={str(key): limit for key, limit in highest.items()})

    def advertise(self, host: str, port: int, node: int = 0) -> None:
        """Put another address of a node into responses to clients, such as that of a proxy in front of it.

        The library itself and other nodes go on to use the real one. ``node(n).address`` stays the real one, too.
        """
        self.node(node)
        if not host:
            raise ValueError("host is empty: give a name or an address.")
        if not 0 < port < 65_536:
            raise ValueError(f"port is {port}: give 1 to 65535.")
        self._advertised[str(node)] = (host, port)
        self.hold("addresses", "advertise", addresses={each: list(to) for each, to in self._advertised.items()})


def _key_of(group: str | None, transactional_id: str | None) -> tuple[str, int]:
    if (group is None) == (transactional_id is None):
        raise ValueError("Give either a group or transactional_id, whose coordinator is meant.")
    if group is not None:
        return group, GROUP_KEY
    assert transactional_id is not None
    return transactional_id, TRANSACTION_KEY


def refused(purpose: str, error: int, message: str | None) -> CrucibleError:
    said = f": {message}" if message else "."
    return CrucibleError(f"The cluster refused to {purpose} with {error_name(error)}{said}")
