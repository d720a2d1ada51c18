"""A cluster that tests use one after the other: what a test does to it is undone before the next one."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from crucible_kafka.library.arguments import checked
from crucible_kafka.library.carrier import START_LIMIT_S
from crucible_kafka.library.cluster import Cluster
from crucible_kafka.library.errors import CrucibleError
from crucible_kafka.library.node_handle import LIMIT_S, NodeHandle
from crucible_kafka.library.observation import Frame
from crucible_kafka.library.requests import TransportError, request
from crucible_kafka.library.response_changes import ResponseChange
from crucible_kafka.library.rule_spec import RuleSpec
from crucible_kafka.library.rules import Rule
from reference_broker.metadata.identifiers import INTERNAL_TOPICS
from reference_broker.wire.apis import ApiKey

DELETE_LIMIT_S: Final = 5.0
NAME_CHARACTERS: Final = 100
"""The limit of the part of a unique name that the caller gives. Kafka allows 249 for a topic."""


@checked()
class SharedCluster(Cluster):
    """A ``Cluster`` with a beginning and an end of each test. The fixtures ``kafka`` and ``kafka_cluster`` are one."""

    def __init__(
        self,
        nodes: int = 1,
        processes: bool | None = None,
        config: Mapping[str, object] | None = None,
        versions: str | Mapping[str, int] | None = None,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        """Take the parameters of ``Cluster``."""
        super().__init__(nodes, processes, config, versions, start_limit_s)
        self._usual_versions = versions
        self._last_name = 0
        self._topics_before: dict[str, str] = {}
        """Topic ID by name, of the topics that the test has found."""
        self._groups_before: set[str] = set()
        self.rules_of_test: list[Rule] = []
        """Rules that the test has made, also those that are removed."""
        self._features_before: dict[str, int] | None = None
        """The finalized levels before the test changed one of them."""

    # Names

    def name(self, prefix: str = "test") -> str:
        """Return a name that this cluster has not given out before, for a topic, a group or a transactional ID.

        >>> consumer = KafkaConsumer(group_id=kafka.name("readers"))
        """
        self._last_name += 1
        return f"{prefix[:NAME_CHARACTERS]}-{self._last_name}"

    def topic(
        self,
        prefix: str = "topic",
        partitions: int = 1,
        replicas: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic with a name of its own, and return the name when every node knows its leaders.

        >>> orders = kafka.topic("orders", partitions=3)
        """
        name = self.name(prefix)
        self.create_topic(name, partitions, replicas, config)
        return name

    # One test

    def begin_test(self) -> None:
        """Forget the frames so far, and remember what is there. Raise CrucibleError if a node has ended meanwhile."""
        self.check_nodes()
        for member in self._members:
            member.forget_frames()
        self._topics_before, self._groups_before = self._names()
        self.rules_of_test = []

    def check_rules_of_test(self) -> None:
        """Raise RuleNeverFired if a rule of the test has never acted. Those that are ``optional`` need not."""
        for rule in self.rules:
            if rule in self.rules_of_test and not rule.optional:
                rule.assert_fired()

    def _add_rule(self, spec: RuleSpec, text: str, optional: bool, change: ResponseChange | None) -> Rule:
        rule = super()._add_rule(spec, text, optional, change)
        self.rules_of_test.append(rule)
        return rule

    def newest_frames(self, count: int) -> list[Frame]:
        """Return the newest requests and responses of clients, by time. A node that does not respond is skipped."""
        found: list[Frame] = []
        for member in self._members:
            with suppress(CrucibleError):
                found += [Frame(**plain) for plain in member.frames(False, "*", "*", count)]
        return sorted(found, key=lambda frame: frame.at_s)[-count:]

    def end_test(self) -> None:
        """Undo what the test did: rules, faults of nodes, versions, addresses, features, topics and groups.

        Groups with members stay, and so do the leaders of internal topics. Raise StartFailed or CrucibleTimeout if a
        node cannot be brought back: then the cluster is of no more use.
        """
        for rule in self.rules_of_test:  # First, since they may keep a node from coming back.
            rule.remove()
        self._bring_nodes_back()
        for member in self._members:
            member.forget_crashes()
            member.command("clear_faults")
        self._undo_pretence()
        self._undo_features()
        self._delete_new_names()

    def _bring_nodes_back(self) -> None:
        for member in self._members:
            if member.is_running and not member.is_serving:
                member.resume()
        for number in list(self._isolated):
            self._isolated.discard(number)
        dead = [member for member in self._members if not member.is_running]
        for member in dead:
            member.begin_start()
        for member in dead:
            member.wait_ready(self._start_limit_s)
        self._apply_cuts()
        for member in dead:
            self.await_in_sync(member.id, self._start_limit_s)

    def _undo_pretence(self) -> None:
        if self._versions_changed:
            self.limit_versions(self._usual_versions)
            self._versions_changed = False
        if self._advertised:
            self._advertised.clear()
            self.hold("addresses", "advertise", addresses={})

    _versions_changed = False

    def max_versions(self, limits: str | Mapping[str, int] | None) -> None:
        super().max_versions(limits)
        self._versions_changed = True

    def set_feature(self, name: str, level: int, unsafe: bool = False, limit_s: float = LIMIT_S) -> None:
        if self._features_before is None:
            self._features_before = self.features()
        super().set_feature(name, level, unsafe, limit_s)

    def _undo_features(self) -> None:
        before, self._features_before = self._features_before, None
        if before is None:
            return
        now = self.features()
        for name in before.keys() | now.keys():
            if before.get(name, 0) != now.get(name, 0):
                super().set_feature(name, before.get(name, 0), unsafe=True)

    # Topics and groups of the test

    def _names(self) -> tuple[dict[str, str], set[str]]:
        """Return topics with their IDs, without the internal ones, and the groups of all nodes."""
        views = [member.command("names") for member in self.serving()]
        topics = {name: topic_id for view in views for name, topic_id in view["topics"].items()}
        return (
            {name: topic_id for name, topic_id in topics.items() if name not in INTERNAL_TOPICS},
            {group for view in views for group in view["groups"]},
        )

    def _delete_new_names(self) -> None:
        """Delete the test's topics and its groups without members. A cluster that is busy may refuse: their names are
        the test's own, so that they do no harm."""
        with suppress(CrucibleError, TransportError):
            topics, groups = self._names()
            new = {topic_id for name, topic_id in topics.items() if self._topics_before.get(name) != topic_id}
            if groups - self._groups_before:
                for member in self.serving():
                    self._delete_groups(member)
            if new:
                self._delete_topics(new)

    def _delete_topics(self, topic_ids: set[str]) -> None:
        from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState

        body = DeleteTopicsRequest(
            topics=tuple(DeleteTopicState(topic_id=UUID(topic_id)) for topic_id in sorted(topic_ids)),
            timeout=timedelta(seconds=DELETE_LIMIT_S),  # type: ignore[arg-type]
        )
        self._request(ApiKey.DELETE_TOPICS, body, "delete the topics of a test", DELETE_LIMIT_S)

    def _delete_groups(self, coordinator: NodeHandle) -> None:
        from kio.schema.delete_groups.v2.request import DeleteGroupsRequest

        names = sorted({*coordinator.command("names")["groups"]} - self._groups_before)
        if names:
            body: Any = DeleteGroupsRequest
            request(coordinator.address, ApiKey.DELETE_GROUPS, body(groups_names=tuple(names)), DELETE_LIMIT_S)
