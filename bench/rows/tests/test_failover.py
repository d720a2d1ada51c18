"""The failover measurement: its client, and one round of each kind with real nodes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kio.schema.types import BrokerId
from kio.static.primitive import i32Timedelta

from bench.peers.clients import RetryingClient
from bench.peers.node import PeerError
from bench.peers.systems import REFERENCE
from bench.rows.context import BenchRun
from bench.rows.failover import SUSPECT_S, TRY_S, measure_failover
from bench.rows.options import Options, Sizes
from bench.rows.results import Results
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import body_class, decode_request, encode_response


class FailoverNode:
    """One node that responds to Metadata and CreateTopics as the test says. ``errors``: of the next creations;
    ``silent``: it takes requests and says nothing. ``controller``: the node ID that it names; itself is 1."""

    def __init__(self) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.sock.getsockname()[1]
        self.errors: list[Error] = []
        self.controller = 1
        self.controller_port = self.port
        self.silent = False
        self.created: list[str] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(client,), daemon=True).start()

    def _converse(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as stream:
            while length := stream.read(4):
                frame = stream.read(int.from_bytes(length, "big"))
                if not self.silent:
                    client.sendall(self._respond(frame))

    def _respond(self, frame: bytes) -> bytes:
        header, offset = read_request_header(frame)
        key, version = header.api_key, header.api_version
        body = decode_request(key, version, frame, offset)
        if key == ApiKey.METADATA:
            response = self._metadata()
        else:
            assert key == ApiKey.CREATE_TOPICS
            response = self._created(body)
        return b"".join(encode_response(key, version, header.correlation_id, response))

    def _metadata(self) -> object:
        from datetime import timedelta

        from kio.schema.metadata.v13.response import MetadataResponseBroker

        from reference_broker.wire.retired_fields import MetadataResponse

        broker = MetadataResponseBroker(
            node_id=BrokerId(max(self.controller, 1)),
            host="127.0.0.1",
            port=self.controller_port,
            rack=None,
        )
        return MetadataResponse(
            throttle_time=i32Timedelta.parse(timedelta(0)),
            brokers=(broker,),
            cluster_id="c",
            controller_id=BrokerId(self.controller),
            topics=(),
            error_code=ErrorCode.none,
        )

    def _created(self, body: object) -> object:
        from datetime import timedelta

        name = body.topics[0].name  # type: ignore[attr-defined]
        self.created.append(name)
        error = self.errors.pop(0) if self.errors else ErrorCode.none
        response = body_class(ApiKey.CREATE_TOPICS, "response")
        result = __import__(response.__module__, fromlist=["x"]).CreatableTopicResult
        topic = result(
            name=name,
            topic_id=None,
            error_code=error,
            error_message=None,
            num_partitions=1,
            replication_factor=1,
            configs=(),
        )
        return response(throttle_time=timedelta(0), topics=(topic,))


@contextmanager
def brokers(count: int) -> Iterator[list[FailoverNode]]:
    made = [FailoverNode() for _ in range(count)]
    try:
        yield made
    finally:
        for node in made:
            node.sock.close()


def _client(ports: list[int]) -> RetryingClient:
    return RetryingClient(ports, TRY_S, SUSPECT_S)


def test_request_is_retried_until_node_is_controller() -> None:
    with brokers(1) as (only,):
        only.errors = [ErrorCode.not_controller, ErrorCode.request_timed_out]
        admin = _client([only.port])
        admin.create_topic("t", 1, 1, 5)
        admin.close()
        assert only.created == ["t", "t", "t"]


def test_topic_created_by_attempt_without_response_counts() -> None:
    with brokers(1) as (only,):
        only.errors = [ErrorCode.topic_already_exists]
        admin = _client([only.port])
        admin.create_topic("t", 1, 1, 5)
        admin.close()
        assert only.created == ["t"]


def test_silent_controller_is_not_retried_until_replaced() -> None:
    with brokers(2) as (silent, other):
        silent.silent = True
        other.controller, other.controller_port = 7, silent.port
        admin = _client([other.port])
        replaced = threading.Timer(0.6, lambda: setattr(other, "controller_port", other.port))
        replaced.start()
        admin.create_topic("t", 1, 1, 5)
        admin.close()
        replaced.join()
        assert other.created == ["t"]


def test_cluster_that_never_recovers_is_an_error() -> None:
    with brokers(1) as (only,):
        only.controller = -1
        admin = _client([only.port])
        with pytest.raises(PeerError, match="topic t could not be had"):
            admin.create_topic("t", 1, 1, 0.2)
        admin.close()


@pytest.mark.nightly
@pytest.mark.live
def test_one_round_of_each_kind(tmp_path: Path) -> None:
    said: list[str] = []
    results = Results(None)
    measure_failover(BenchRun(results, [REFERENCE], tmp_path, Options(sizes=Sizes(failovers=1)), said.append))
    assert [row.work.partition(":")[0] for row in results.rows] == ["controller killed", "controller paused"]
    killed, paused = (row.reference.values for row in results.rows)
    assert len(killed) == len(paused) == 1
    assert 0 < killed[0] < 20
    assert 0.5 < paused[0] < 20
    assert len(said) == 2
