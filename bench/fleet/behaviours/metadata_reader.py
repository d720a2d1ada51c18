"""Readers of metadata record what each node reports of the admins' topics, during the load and at its end.

A reader records a topic only if its partitions, ID or presence differ from the last response of the same node.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.admin import CONFIG_KEY, FIRST_VALUE, TopicSet, set_of
from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.protocol import Chance, ClientSettings, HistoryRow, ResponseReceived
from bench.fleet.behaviours.script import Operation, Steps
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name
from reports.rows import MetadataReadRow

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.response import DescribeConfigsResponse

    from reference_broker.wire.retired_fields import MetadataResponse

POLLS_PER_VISIT: Final = 16
"""The number of polls of one node before the reader moves to the next, unless the node goes away earlier."""
NO_VALUE: Final = -1


class ObservedTopic(NamedTuple):
    """One topic in one response."""

    partitions: int
    topic_id: str
    value: int = NO_VALUE  # value of CONFIG_KEY; NO_VALUE if no admin has set it


View: TypeAlias = dict[str, ObservedTopic]
"""The admins' topics by name, as one node shows them."""


@dataclass(frozen=True, slots=True)
class MetadataReaderPlan:
    """The plan of one reader of metadata."""

    process: str
    base: str  # begins the names of the admins' topics
    number: int = 0  # readers with different numbers begin at different nodes
    poll_interval_us: int = 1_000_000  # between the intended times of two polls


@dataclass(slots=True)
class Topics:
    """One script's knowledge of the admins' topics and of the nodes."""

    script: ClusterScript
    base: str  # prefix of the names of the admins' topics
    nodes: dict[int, NodeAddress] = field(default_factory=dict)

    def meet(self) -> Steps[bool]:
        """Try once to learn which nodes there are."""
        if not (yield from self.script.refresh()):
            return False
        self._add_nodes(self.script.metadata.nodes.values())
        return bool(self.nodes)

    def _add_nodes(self, nodes: Iterable[NodeAddress]) -> None:
        for node in nodes:
            self.nodes[node.node_id] = node

    def read_all(
        self, f: str, intended_us: int, node: NodeAddress
    ) -> Steps[tuple[Operation, ResponseReceived, View] | None]:
        """Request all topics from a node. Without a response it ends the operation and returns None. Otherwise the
        caller ends it."""
        operation = self.script.journal.begin(f, intended_us)
        operation.node = node.node_id
        response = yield from self.script.call(
            ApiKey.METADATA, self.script.settings.versions.metadata, bodies.ALL_TOPICS
        )
        if isinstance(response, str):
            self.script.journal.end(operation, "fail", response)
            return None
        body = cast("MetadataResponse", response.body)
        self._add_nodes(NodeAddress(int(broker.node_id), broker.host, int(broker.port)) for broker in body.brokers)
        return operation, response, self._view(body)

    def _view(self, body: "MetadataResponse") -> View:
        base = self.base
        return {
            str(topic.name): ObservedTopic(
                len(topic.partitions), topic.topic_id.hex if topic.topic_id is not None else ""
            )
            for topic in body.topics
            if topic.name is not None and not topic.error_code.value and set_of(base, topic.name) is not None
        }

    def row(
        self, operation: Operation, topic: str, seen: ObservedTopic | None, *, final: bool = False
    ) -> MetadataReadRow:
        admin_set = set_of(self.base, topic)
        assert admin_set is not None, f"{topic} was recognised as an admin's topic before"
        where = (self.script.process, operation.index, operation.node)
        if seen is None:
            return MetadataReadRow(*where, topic, *_wanted(admin_set), 0, False, "", NO_VALUE, final)
        return MetadataReadRow(
            *where, topic, *_wanted(admin_set), seen.partitions, True, seen.topic_id, seen.value, final
        )


def _wanted(admin_set: TopicSet) -> tuple[str, int, int]:
    return admin_set.name, admin_set.topics, admin_set.partitions


class MetadataReader(ClusterScript):
    """Polls the nodes in turn until Stopping. It is a closed loop, as fetchers are."""

    def __init__(self, plan: MetadataReaderPlan, settings: ClientSettings, random: Chance) -> None:
        super().__init__(plan.process, settings, random, ())
        self.known = Topics(self, plan.base)
        self.plan = plan
        self.views: dict[int, View] = {}
        self.polls = 0

    def run(self) -> Steps[None]:
        interval = self.plan.poll_interval_us
        due_us = self.first_due_us(interval)
        while not self.stopping:
            if self.now.mono_us < due_us:
                yield from self.sleep_until(due_us)
                continue
            yield from self._poll(min(due_us, self.now.mono_us))
            due_us = max(due_us + interval, self.now.mono_us)

    def _poll(self, due_us: int) -> Steps[None]:
        if not self.known.nodes and not (yield from self.known.meet()):
            yield from self.back_off()
            return
        numbers = sorted(self.known.nodes)
        node = self.known.nodes[numbers[(self.plan.number + self.polls // POLLS_PER_VISIT) % len(numbers)]]
        self.polls += 1
        if not (yield from self.connect_to_node(node)):
            self.polls += POLLS_PER_VISIT - 1 - (self.polls - 1) % POLLS_PER_VISIT  # The next node, then.
            return
        found = yield from self.known.read_all("metadata_read", due_us, node)
        if found is not None:
            operation, response, view = found
            self.journal.end(operation, "ok", None, response, rows=tuple(self._news(operation, view)))
            self.succeeded()

    def _news(self, operation: Operation, view: View) -> list[HistoryRow]:
        before = self.views.get(operation.node, {})
        self.views[operation.node] = view
        if before == view:
            return []
        changed = [self.known.row(operation, topic, seen) for topic, seen in view.items() if before.get(topic) != seen]
        return [*changed, *(self.known.row(operation, topic, None) for topic in before if topic not in view)]


class FinalDescriber(ClusterScript):
    """A client that requests all topics and configs from every node until all agree, and then records each response.

    After ``limit_us`` it records their last responses. ``undescribed`` counts those of ``expected`` nodes that did not
    respond.
    """

    def __init__(
        self, process: str, base: str, settings: ClientSettings, random: Chance, expected: int, limit_us: int
    ) -> None:
        super().__init__(process, settings, random, ())
        self.known = Topics(self, base)
        self.limit_us = limit_us
        self.expected = expected
        self.undescribed = expected
        self.agreed = False
        self._deadline_us = 0

    @property
    def gives_up(self) -> bool:
        return self.now.mono_us >= self._deadline_us

    @property
    def missed(self) -> str:
        """Return how many nodes did not describe their metadata, in words; it is empty if all did."""
        nodes = "1 node" if self.undescribed == 1 else f"{self.undescribed} nodes"
        return f"{nodes} did not describe the metadata" if self.undescribed else ""

    def run(self) -> Steps[None]:
        self._deadline_us = self.now.mono_us + self.limit_us
        last: dict[int, tuple[Operation, View]] = {}
        while not self.gives_up:
            if (yield from self.known.meet()):
                for node in [self.known.nodes[each] for each in sorted(self.known.nodes)]:
                    described = yield from self._describe(node)
                    if described is not None:
                        last[node.node_id] = described
                    else:
                        last.pop(node.node_id, None)
                views = [view for _, view in last.values()]
                self.undescribed = max(0, max(self.expected, len(self.known.nodes)) - len(last))
                self.agreed = not self.undescribed and all(view == views[0] for view in views)
                if self.agreed:
                    break
            yield from self.back_off()
        self._write_down(last)

    def _describe(self, node: NodeAddress) -> Steps[tuple[Operation, View] | None]:
        if not (yield from self.connect_to_node(node)):
            return None
        found = yield from self.known.read_all("final_describe", self.now.mono_us, node)
        if found is None:
            return None
        operation, response, view = found
        if not view:
            self.journal.end(operation, "ok", None, response)
            return operation, view
        body = bodies.describe_topic_config_request(tuple(view), CONFIG_KEY)
        configs = yield from self.call(ApiKey.DESCRIBE_CONFIGS, self.settings.versions.describe_configs, body)
        if isinstance(configs, str):
            self.journal.end(operation, "fail", configs, response)
            return None
        results = cast("DescribeConfigsResponse", configs.body).results
        wrong = next((int(result.error_code.value) for result in results if result.error_code.value), 0)
        if wrong:
            self.journal.end(operation, "fail", error_name(wrong), response)
            return None
        for result in results:
            value = next(
                (int(config.value) for config in result.configs if config.name == CONFIG_KEY and config.value), NO_VALUE
            )
            if value >= FIRST_VALUE:  # Else it is the broker's own default.
                view[result.resource_name] = view[result.resource_name]._replace(value=value)
        self.journal.end(operation, "ok", None, response)
        return operation, view

    def _write_down(self, last: dict[int, tuple[Operation, View]]) -> None:
        for operation, view in last.values():
            self.journal.record(*(self.known.row(operation, topic, seen, final=True) for topic, seen in view.items()))
