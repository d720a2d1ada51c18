"""A broker with a real controller, publisher and logs on a disk in memory; syncs and timers run when told."""

from collections.abc import Callable
from random import Random
from typing import Any

from reference_broker.apis.broker import Broker
from reference_broker.apis.metadata_feed import feed_metadata
from reference_broker.log.memory_disk import MemoryDisk
from reference_broker.model.config import BrokerConfig
from reference_broker.model.fetch_session_cache import FetchSessionCache
from reference_broker.model.metrics import Metrics
from reference_broker.model.partition_publisher import PartitionPublisher
from reference_broker.model.partitions import Partitions
from reference_broker.raft.tests.raft_world import NOW, ManualSync, run, started
from reference_broker.records.builder import build
from reference_broker.records.record import Record


class AdminCall:
    connection = 1
    client_id = "admin"
    closed = False

    def __init__(self, api_version: int) -> None:
        self.api_version = api_version
        self.answers: list[Any] = []

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:  # noqa: ARG002
        assert not self.answers, "answered twice"
        self.answers.append(body)

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def on_closed(self, forget: Callable[[], None]) -> None:
        """Nothing here waits for long."""


class Outside:
    def __init__(self, sync: ManualSync) -> None:
        self.sync = sync
        self.steps: list[Callable[[], None]] = []

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:  # noqa: ARG002
        self.steps.append(fire)
        return len(self.steps)

    def cancel_timer(self, timer: int) -> None:
        raise AssertionError(f"timer {timer} is cancelled")

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        """Not looked at."""

    def run_steps(self) -> int:
        """Runs timers until none is left; how many events that took."""
        count = 0
        while self.steps:
            self.steps.pop(0)()
            count += 1
        return count


class AdminWorld:
    def __init__(self, disk: MemoryDisk | None = None, seed: int = 0, **config: str) -> None:
        self.disk = disk if disk is not None else MemoryDisk()
        self.sync = ManualSync()
        self.outside = Outside(self.sync)
        parsed = BrokerConfig.parse({key.replace("_", "."): value for key, value in config.items()})
        self.controller = started(self.disk, seed=seed, sync=self.sync, config=parsed)
        metrics, partitions = Metrics(), Partitions()
        self.broker = Broker(
            node_id=1, config=parsed, now=NOW, random=Random(1), disk=self.disk, outside=self.outside, metrics=metrics,
            partitions=partitions, controller=self.controller,
            fetch_sessions=FetchSessionCache(10, Random(2), metrics, self.outside.note),
        )  # fmt: skip
        self.publisher = PartitionPublisher(
            1, parsed, self.disk, partitions, now=lambda: NOW,
            later=lambda step: self.outside.steps.append(step),
        )  # fmt: skip
        self.controller.subscribe(self.publisher.publish)
        feed_metadata(self.broker)
        run(self.publisher.start(self.controller.image, False))

    def ask(self, module: Any, body: object, api_version: int | None = None) -> Any:
        """The answer, which must be there at once."""
        call = self.begin(module, body, api_version)
        assert call.answers, "no answer yet"
        return call.answers[0]

    def begin(self, module: Any, body: object, api_version: int | None = None) -> AdminCall:
        call = AdminCall(module.CARD.max_version if api_version is None else api_version)
        answer = module.handle(self.broker, call, body)
        if answer is not None:
            call.respond(answer)
        return call

    def append(self, topic: str, index: int, count: int) -> None:
        partition = self.broker.partitions.by_name[topic, index]
        batch = build([Record(timestamp_ms=NOW.wall_ms, value=b"v") for _ in range(count)])
        partition.log.append(NOW, batch, partition.leader_epoch)
        partition.log.advance_high_watermark(partition.log.log_end_offset)
