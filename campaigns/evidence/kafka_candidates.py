"""Shows on Apache Kafka what docs/evidence/kafka.md says.

``python -m campaigns.evidence.kafka_candidates NAME [VERSION]``

NAME is session-ids, bad-offset, snapshot-errors or mixed-errors. It starts one node, prints its responses, and
ends it.
"""

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.peers.cluster import launched
from bench.probe.broker import ProbedBroker, meet
from bench.probe.case import ANY, MUST, ProbeCase
from bench.probe.context import Belongings, ProbeContext, Topic, single
from bench.probe.conversation import Conversation, body
from bench.probe.data import FETCH, ProbeSession, fetch_request, rows, wanted
from bench.probe.transactional import COMMIT_OFFSETS, Transactional
from bench.targets.loader import find
from reference_broker.blocking.transport import EncodedRequest
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name

LIMIT_S = 60.0
LONG_MS = 1_000
LOOKED_AT_S = 3.0
SNAPSHOTS = {"metadata.log.max.snapshot.interval.ms": "1000", "metadata.log.max.record.bytes.between.snapshots": "1"}
COMMITTERS, ROUNDS = 4, 20
METADATA_TOPIC = "__cluster_metadata"


def session_ids(at: ProbeContext, _: Path) -> Iterator[str]:
    """Incremental fetches with session IDs that nobody has."""
    for session_id in (1, 2**31 - 9, 2**31 - 8, 2**31 - 1, -1, -268_435_454, -268_435_455, -(2**31)):
        response = at.call(FETCH, fetch_request(at, [], session_id=session_id, session_epoch=5))
        yield f"session ID {session_id}: {error_name(response.error_code)}"
        with at.connect() as other:
            assert other.call(ApiKey.API_VERSIONS, 0, {}).error_code == 0


def bad_offset(at: ProbeContext, _: Path) -> Iterator[str]:
    """Long polls of a session with and without a partition whose offset is out of range."""
    topic = at.topic(2)
    for words, offset in (("both offsets at the end", 0), ("one offset out of range", 9)):
        session = ProbeSession(at, topic, wanted(0), wanted(1, offset=offset))
        began, count = time.monotonic(), 0
        while time.monotonic() < began + LOOKED_AT_S:
            response = session.next(max_wait_ms=LONG_MS, min_bytes=1)
            count += 1
        codes = {index: error_name(data.error_code) for index, data in rows(response).items()}
        took_s = time.monotonic() - began
        yield f"{words}: {count} responses in {took_s:.1f} s, max_wait_ms {LONG_MS}; partitions: {codes or 'none'}"


def snapshot_errors(at: ProbeContext, folder: Path) -> Iterator[str]:
    """FetchSnapshot with one thing wrong in each request."""
    port, snapshot = _controller_port(folder), _newest_snapshot(folder)
    with at.connect(("127.0.0.1", port)) as controller:
        right = SnapshotPart(_epoch(controller), *snapshot)
        right_response = _fetch_snapshot(controller, right)
        yield f"as it should be: {_words(right_response)}, size {right_response.size}"
        wrong = {
            "unknown topic": replace(right, topic="nothing"),
            "unknown partition": replace(right, partition=7),
            "older leader epoch": replace(right, leader_epoch=right.leader_epoch - 1),
            "newer leader epoch": replace(right, leader_epoch=right.leader_epoch + 1),
            "unknown snapshot": replace(right, end_offset=1, epoch=99),
            "position -1": replace(right, position=-1),
            "position at the size": replace(right, position=right_response.size),
        }
        for words, each in wrong.items():
            yield f"{words}: {_words(_fetch_snapshot(controller, each))}"


def mixed_errors(at: ProbeContext, _folder: Path) -> Iterator[str]:
    """Clients of TxnOffsetCommit 3 and 4 commit offsets of groups that they have not added, alone and side by side."""
    topic = at.topic()
    clients = {version: [_committer(at, topic, version) for _ in range(COMMITTERS)] for version in (3, 4)}
    for words, versions in (("alone", [[3], [4]]), ("side by side", [[3, 4]])):
        codes_of: dict[int, Counter[str]] = {3: Counter(), 4: Counter()}
        for together in versions:
            for _ in range(ROUNDS):
                sent_calls = [(version, *each()) for version in together for each in clients[version]]
                for version, on, sent in sent_calls:
                    codes_of[version][error_name(single(on.receive(sent), "topics", "partitions").error_code)] += 1
        for version, codes in codes_of.items():
            yield f"version {version} {words}: {dict(codes)}"


def _committer(at: ProbeContext, topic: Topic, version: int) -> Callable[[], tuple[Conversation, EncodedRequest]]:
    """Send the request each time that it is called."""
    producer, group_id = Transactional(at).take(), at.group()
    on = at.coordinator(group_id)
    partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    request = {**producer.owner, "group_id": group_id, "topics": [{"name": topic.name, "partitions": partitions}]}
    return lambda: (on, on.send(COMMIT_OFFSETS, version, request))


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A part of a snapshot."""

    leader_epoch: int
    end_offset: int
    """Of the snapshot's ID."""
    epoch: int
    """Of the snapshot's ID."""
    position: int = 0
    topic: str = METADATA_TOPIC
    partition: int = 0


def _fetch_snapshot(controller: Conversation, part: SnapshotPart) -> Any:
    """The response's one partition, or the response if it has an error of its own."""
    row = {
        "partition": part.partition,
        "current_leader_epoch": part.leader_epoch,
        "snapshot_id": {"end_offset": part.end_offset, "epoch": part.epoch},
        "position": part.position,
    }
    request = {"replica_id": -1, "max_bytes": 1024, "topics": [{"name": part.topic, "partitions": [row]}]}
    response = controller.call(ApiKey.FETCH_SNAPSHOT, 1, body(ApiKey.FETCH_SNAPSHOT, request))
    if response.error_code:
        return response
    return single(response, "topics", "partitions")


def _words(response: Any) -> str:
    if not hasattr(response, "unaligned_records"):
        return f"{error_name(response.error_code)} for the whole request"
    return f"{error_name(response.error_code)} for the partition, {len(response.unaligned_records or b'')} bytes"


def _epoch(controller: Conversation) -> int:
    request = {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}
    response = controller.call(ApiKey.DESCRIBE_QUORUM, 2, request)
    return int(response.topics[0].partitions[0].leader_epoch)


def _controller_port(folder: Path) -> int:
    found = re.search(r"CONTROLLER://[^:]+:(\d+)", (folder / "node-0" / "server.properties").read_text())
    assert found, "the node has no controller"
    return int(found[1])


def _newest_snapshot(folder: Path) -> tuple[int, int]:
    """The end offset and the epoch, once there is a snapshot beside that of the bootstrap."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        names = [each.stem for each in folder.glob(f"node-0/data/{METADATA_TOPIC}-0/*-*.checkpoint")]
        found = max(((int(end), int(epoch)) for end, epoch in (name.split("-") for name in names)), default=(0, 0))
        if found[0] > 0:
            return found
        time.sleep(0.2)
    raise AssertionError("the node made no snapshot in time")


SHOWN: Mapping[str, Callable[[ProbeContext, Path], Iterator[str]]] = {
    "session-ids": session_ids,
    "bad-offset": bad_offset,
    "snapshot-errors": snapshot_errors,
    "mixed-errors": mixed_errors,
}


def show(name: str, version: str) -> Iterator[str]:
    """Play one of them on a node of its own, and yield what it saw, line by line."""
    kafka = replace(find(f"kafka@{version}"), nodes=1)
    with tempfile.TemporaryDirectory() as folder, launched(kafka, Path(folder), SNAPSHOTS) as cluster:
        yield f"Apache Kafka {version}"
        at = _surroundings(name, meet(("127.0.0.1", cluster.ports[0])))
        yield from SHOWN[name](at, Path(folder))
        at.end()


def _surroundings(name: str, broker: ProbedBroker) -> ProbeContext:
    needs = {FETCH: ANY}
    shown = ProbeCase(
        name, name, "docs/evidence/kafka.md", MUST, needs, "0.8", False, True, False, LIMIT_S, lambda _: None
    )
    return ProbeContext(shown, broker, Belongings())


def main(words: list[str]) -> int:
    if not words or words[0] not in SHOWN:
        print(f"usage: python -m campaigns.evidence.kafka_candidates {'|'.join(SHOWN)} [VERSION]")  # noqa: T201
        return 2
    for line in show(words[0], *(words[1:] or [find("kafka").version])):
        print(line)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
