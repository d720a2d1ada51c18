"""Writes a producer's records as settings of topics, so that the metadata log takes the same load as a compacted topic.

A record is one IncrementalAlterConfigs request: its key is a setting of a topic, and a tombstone deletes that setting.
Keys, tombstones and due times are those of the producer, because the same code draws them.
"""

from itertools import product
from typing import TYPE_CHECKING, Final, cast

from bench.fleet.behaviours.bodies import set_topic_configs_request
from bench.fleet.behaviours.producers import KeyedProducer
from bench.fleet.behaviours.script import Steps
from reference_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse

SETTINGS: Final = (
    "retention.bytes",
    "retention.ms",
    "flush.messages",
    "flush.ms",
    "segment.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "delete.retention.ms",
)
"""Settings that may have any large number, and do nothing to a topic without records."""
FIRST_VALUE: Final = 1_000_000_000_000
"""A value says which record it is, so each is another one."""
ANSWER_US: Final = 3_000_000


def topics_for(keys: int) -> list[str]:
    """Returns the names of the topics whose settings stand for so many keys."""
    return [f"settings-{number}" for number in range(-(-keys // len(SETTINGS)))]


class SettingsWriter(KeyedProducer):
    """Asks the active controller, and again until it has answered. To set the same value twice changes nothing."""

    def run(self) -> Steps[None]:
        while not self.stopping and not (yield from self.refresh()):
            yield from self.back_off()
        yield from self.loop.run(self._send_slot)

    def _send_slot(self, due_us: int) -> Steps[None]:
        operation = self.journal.begin("alter_configs", due_us, sent=False)
        sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
        (record,) = self.records.make(self.plan.partitions[0], sequence, 1, self.now.wall_ms)
        named = list(product(topics_for(self.plan.keys), SETTINGS))[sequence % self.plan.keys]
        value = None if record.value is None else str(FIRST_VALUE + sequence)
        done = False
        while not done and not self.gives_up:
            done = yield from self._altered(*named, value)
            if not done:
                self.disconnect()
                yield from self.back_off()
                yield from self.refresh()
        self.succeeded()
        self.journal.end(operation, "ok" if done else "info")

    def _altered(self, topic: str, setting: str, value: str | None) -> Steps[bool]:
        controller = self.metadata.nodes.get(self.metadata.controller_id)
        if controller is None or not (yield from self.connect_to_node(controller)):
            return False
        version = self.settings.versions.incremental_alter_configs
        body = set_topic_configs_request([topic], {setting: value})
        answer = yield from self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, body, ANSWER_US)
        if isinstance(answer, str):
            return False
        altered = cast("IncrementalAlterConfigsResponse", answer.body).responses
        return all(int(each.error_code.value) == 0 for each in altered)
