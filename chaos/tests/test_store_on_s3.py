"""Responses of an S3 server that is away, slow or strange: versitygw, with Toxiproxy before it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chaos.live.s3_server import BUCKET, S3Server
from reference_broker.ports.store import (
    Delete,
    FailureKind,
    Get,
    ListObjects,
    Put,
    PutFile,
    StoreFailure,
    StoreOperation,
    StoreResult,
)
from reference_broker.serve.object_store import PART_BYTES, Bucket, Objects

pytestmark = [pytest.mark.live, pytest.mark.nightly]
EACH: list[StoreOperation] = [
    Put("a", b"x"),
    Put("a", b"x", if_absent=True),
    Get("a", 0, 1),
    ListObjects(""),
    Delete(("a",)),
]


@pytest.fixture
def server(s3_server: S3Server) -> Iterator[S3Server]:
    yield s3_server
    s3_server.toxiproxy.client.reset()


def call(bucket: Bucket, operation: StoreOperation, disk: Path = Path("nowhere")) -> StoreResult | StoreFailure:
    return Objects(bucket, disk).carry_out(operation, lambda: None)


def kind(response: StoreResult | StoreFailure) -> FailureKind | None:
    return response.kind if isinstance(response, StoreFailure) else None


@pytest.mark.parametrize("operation", EACH)
def test_server_that_refuses_connections_is_unavailable(server: S3Server, operation: StoreOperation) -> None:
    server.proxy.disable()
    began = time.monotonic()
    assert kind(call(server.bucket(limit_s=3.0), operation)) is FailureKind.UNAVAILABLE
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("operation", EACH)
def test_server_that_is_silent_is_unavailable_within_the_limit(server: S3Server, operation: StoreOperation) -> None:
    server.proxy.add_toxic("silence", "timeout", "downstream", {"timeout": 0})
    began = time.monotonic()
    assert kind(call(server.bucket(limit_s=1.0), operation)) is FailureKind.UNAVAILABLE
    assert time.monotonic() - began < 6


def test_upload_that_breaks_off_leaves_no_object(server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"x" * (3 * PART_BYTES))
    put = PutFile("torn/a", "a.log", 3 * PART_BYTES)
    server.proxy.add_toxic("cut", "limit_data", "upstream", {"bytes": 1_000_000})
    bucket = server.bucket(limit_s=5.0)
    assert kind(call(bucket, put, tmp_path)) is FailureKind.UNAVAILABLE
    server.toxiproxy.client.reset()
    assert call(bucket, ListObjects("torn"), tmp_path) == ()
    assert call(bucket, put, tmp_path) is None
    assert call(bucket, ListObjects("torn"), tmp_path) == (("torn/a", 3 * PART_BYTES),)


@pytest.mark.parametrize(
    "config", [{"aws_secret_access_key": "wrong"}, {"aws_access_key_id": "nobody"}, {"bucket": "another"}]
)
def test_wrong_credentials_and_a_missing_bucket_are_refused(server: S3Server, config: dict[str, str]) -> None:
    failure = call(server.bucket(config=config), Put("a", b"x"))
    assert kind(failure) is FailureKind.REFUSED, failure
    assert isinstance(failure, StoreFailure)
    assert "\n" not in failure.reason


def test_of_puts_at_a_time_that_want_the_key_absent_one_succeeds(server: S3Server) -> None:
    bucket = server.bucket(prefix="races")
    with ThreadPoolExecutor(8) as threads:
        for race in range(10):
            puts = [Put(f"{race}", str(number).encode(), if_absent=True) for number in range(8)]
            responses = list(threads.map(lambda put: call(bucket, put), puts))
            (winner,) = [number for number, response in enumerate(responses) if response is None]
            assert {kind(response) for response in responses} == {None, FailureKind.EXISTS}
            assert call(bucket, Get(f"{race}", 0, 9)) == str(winner).encode()


def test_prefix_is_no_part_of_the_keys_and_keeps_others_out(server: S3Server) -> None:
    assert call(server.bucket(prefix="one/two"), Put("same/x", b"1")) is None
    assert call(server.bucket(prefix="one/three"), Put("same/x", b"22")) is None
    assert call(server.bucket(prefix="one/two"), ListObjects("")) == (("same/x", 1),)
    assert call(server.bucket(prefix="one/three"), ListObjects("same")) == (("same/x", 2),)
    assert BUCKET not in str(call(server.bucket(prefix="one"), ListObjects("two")))
