"""Preparation before the load: topics are created, and each idle partition gets its one append."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from bench.fleet.behaviours.bodies import create_topics_request, new_topic
from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan
from bench.fleet.behaviours.protocol import Chance, ClientSettings, TopicPartition
from bench.fleet.behaviours.script import Steps
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name

if TYPE_CHECKING:
    from kio.schema.create_topics.v7.response import CreateTopicsResponse

TOPIC_ALREADY_EXISTS: Final = 36
ATTEMPTS: Final = 60
CREATE_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int
    replicas: int = 1
    config: Mapping[str, str] = field(default_factory=dict)  # topic settings by Kafka's names


class TopicPreparer(ClusterScript):
    """Creates the topics that do not exist yet, and ends when each partition has a leader.

    Once it has ended, ``failure`` says in a sentence why it failed. It is None if all is well.
    """

    def __init__(
        self,
        process: str,
        settings: ClientSettings,
        random: Chance,
        topics: Sequence[NewTopic],
    ) -> None:
        super().__init__(process, settings, random, tuple(topic.name for topic in topics))
        self.wanted = tuple(topics)
        self.failure: str | None = "The topics were not created in time."

    def run(self) -> Steps[None]:
        partitions = [TopicPartition(topic.name, number) for topic in self.wanted for number in range(topic.partitions)]
        created = False
        if not partitions:
            self.failure = None
            return
        for _ in range(ATTEMPTS):
            if not created and (yield from self._to_controller()):
                created = yield from self._create()
            if created and (yield from self.refresh()) and not self.metadata.missing(partitions):
                self.failure = None
                return
            if self.gives_up:
                return
            yield from self.back_off()

    def _to_controller(self) -> Steps[bool]:
        if not (yield from self.refresh()):
            return False
        controller = self.metadata.nodes.get(self.metadata.controller_id)
        return controller is None or (yield from self.connect_to_node(controller))

    def _create(self) -> Steps[bool]:
        operation = self.journal.begin("create_topics")
        topics = [new_topic(each.name, each.partitions, each.replicas, each.config) for each in self.wanted]
        body = create_topics_request(topics, CREATE_TIMEOUT_MS)
        version = self.settings.versions.create_topics
        response = yield from self.call(ApiKey.CREATE_TOPICS, version, body, CREATE_TIMEOUT_MS * 1000)
        if isinstance(response, str):
            self.journal.end(operation, "info", response)
            return False
        for result in cast("CreateTopicsResponse", response.body).topics:
            code = int(result.error_code.value)
            if code not in (0, TOPIC_ALREADY_EXISTS):
                self.failure = f"Topic {result.name} was not created: {error_name(code)}."
                self.journal.end(operation, "fail", error_name(code), response)
                return False
        self.journal.end(operation, "ok", None, response)
        return True


def seeder(
    process: str,
    settings: ClientSettings,
    random: Chance,
    partitions: Sequence[TopicPartition],
    record_bytes: int = 100,
) -> KeyedProducer:
    """Return a producer that appends once to each partition as fast as it can, and then ends."""
    plan = ProducerPlan(
        process,
        tuple(partitions),
        interval_us=0,
        records_per_request=3,
        record_bytes=record_bytes,
        keys=3,
        max_slots=len(partitions),
    )
    return KeyedProducer(plan, settings, random)
