"""A node reports its misplaced replicas to the controller, in any number. The test plays the controller."""

from collections.abc import Callable
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.api_versions.v4.response import ApiVersion, ApiVersionsResponse
from kio.schema.assign_replicas_to_dirs.v0.response import AssignReplicasToDirsResponse
from kio.static.primitive import i16, i32Timedelta

from reference_broker.controller.broker_lifecycle import AssignmentsManager, ReplicaKey
from reference_broker.metadata.identifiers import LOST_DIRECTORY
from reference_broker.metadata.tests.metadata_world import ManualPorts
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import NodeContext
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request_in_slices, encode_request
from reference_broker.wire.tests.test_slices import finished

NO_THROTTLE = i32Timedelta.parse(timedelta(0))
HERE = bytes(15) + b"\x07"


class Reporter:
    """``open``: the callbacks of the request in flight, for its response and its failure. ``reported``: the replicas
    that the controller received, in order, and whether each is lost."""

    def __init__(self) -> None:
        self.ports = ManualPorts()
        self.open: list[tuple[Any, Callable[[object], None], Callable[[], None]]] = []
        self.reported: list[tuple[ReplicaKey, bool]] = []
        self.versions: list[tuple[Callable[[object], None], Callable[[], None]]] = []
        self.done = 0
        channel = SimpleNamespace(send_request=self._send)
        lifecycle: Any = SimpleNamespace(registered_epoch=50, channel=channel)
        self.assignment = AssignmentsManager(NodeContext(3, MemoryDisk(), self.ports, Random(1)), lifecycle, HERE)

    def _send(
        self, api_key: int, version: int, body: Any, replied: Callable[[object], None], failed: Callable[[], None]
    ) -> None:
        if api_key == ApiKey.API_VERSIONS:
            self.versions.append((replied, failed))
            return
        frame = memoryview(b"".join(encode_request(api_key, version, 9, "node-3", body)))[4:]
        finished(decode_request_in_slices(api_key, version, frame, read_request_header(frame)[1]))
        assert api_key == ApiKey.ASSIGN_REPLICAS_TO_DIRS
        assert not self.open, "one request at a time"
        self.open.append((body, replied, failed))

    def report(self, replicas: dict[ReplicaKey, bool]) -> None:
        def done() -> None:
            self.done += 1

        self.assignment.report(replicas, done)

    def respond(self, error: ErrorCode = ErrorCode.none) -> None:
        body, replied, _ = self.open.pop()
        if error is ErrorCode.none:
            self.reported += [
                ((topic.topic_id.bytes, partition.partition_index), directory.id_.bytes == LOST_DIRECTORY)
                for directory in body.directories
                for topic in directory.topics
                for partition in topic.partitions
            ]
        replied(AssignReplicasToDirsResponse(throttle_time=NO_THROTTLE, error_code=error, directories=()))


def replicas(count: int) -> dict[ReplicaKey, bool]:
    """Return replicas that are each of a topic of its own, every third one lost."""
    return {((number + 1).to_bytes(16, "big"), number % 7): number % 3 == 0 for number in range(count)}


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 500, 501, 5000, 20_000])
def test_misplaced_replicas_are_reported_in_requests_within_limit(count: int) -> None:
    reporter, misplaced = Reporter(), replicas(count)
    reporter.report(misplaced)
    while reporter.open:
        assert reporter.done == 0
        reporter.respond()
    assert reporter.done == 1
    assert len(reporter.reported) == count, "each is reported once"
    assert dict(reporter.reported) == misplaced


def test_only_unacknowledged_replicas_are_reported_again() -> None:
    reporter, misplaced = Reporter(), replicas(1200)
    reporter.report(misplaced)
    reporter.respond()
    reporter.respond(ErrorCode.not_controller)
    assert not reporter.open
    reporter.ports.advance(200)
    reporter.open.pop()[2]()
    reporter.versions.pop()[1]()
    reporter.ports.advance(200)
    while reporter.open:
        reporter.respond()
    assert reporter.done == 1
    assert len(reporter.reported) == len(misplaced)
    assert dict(reporter.reported) == misplaced


def test_report_of_nothing_or_unsupported_version_completes_at_once() -> None:
    reporter = Reporter()
    reporter.report({})
    assert (reporter.done, reporter.open) == (1, [])
    reporter.report(replicas(5000))
    reporter.respond(ErrorCode.unsupported_version)
    assert (reporter.done, reporter.open) == (2, [])


@pytest.mark.parametrize("knows_it", [True, False])
def test_controller_without_request_is_queried_for_versions_once(knows_it: bool) -> None:
    reporter = Reporter()
    reporter.report(replicas(3))
    reporter.open.pop()[2]()
    keys = (ApiKey.FETCH, ApiKey.ASSIGN_REPLICAS_TO_DIRS) if knows_it else (ApiKey.FETCH,)
    reporter.versions.pop()[0](
        ApiVersionsResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            api_keys=tuple(ApiVersion(api_key=i16(key), min_version=i16(0), max_version=i16(0)) for key in keys),
        )
    )
    reporter.ports.advance(200)
    assert (len(reporter.open), reporter.done) == ((1, 0) if knows_it else (0, 1))
    assert reporter.ports.notes_of("lost_replicas_not_reported") == ([] if knows_it else [{"replicas": 3}])
