"""Changes of Fetch responses: batches that only a broker writes are made of ordinary ones on their way to clients."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from crucible_kafka.clients.application import Consumer
from crucible_kafka.clients.play import Play
from crucible_kafka.library import Rule
from reference_broker.records.batch import (
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    iterate,
    patched_prefix,
    read_header,
    sealed,
)
from reference_broker.records.control import build_marker
from reference_broker.wire.errors import ErrorCode

TIMESTAMP_MS: Final = 1_700_000_000_000
Rewrite: TypeAlias = Callable[[BatchHeader, bytes], bytes]
"""The change of a batch: a function of its header and of its bytes."""


def on_data(at: Play, change: Callable[[Any], Any], times: int | None = 1) -> Rule:
    """Let ``change`` make another value of each partition with records in a Fetch response of a consumer. It returns
    the same value to let it pass."""

    def changed(body: Any) -> Any:
        topics = [
            replace(
                response,
                partitions=[change(partition) if partition.records else partition for partition in response.partitions],
            )
            for response in body.responses
        ]
        before = [partition for response in body.responses for partition in response.partitions]
        after = [partition for topic in topics for partition in topic.partitions]
        is_same = all(old is new for old, new in zip(before, after, strict=True))
        return body if is_same else replace(body, responses=topics)

    matcher = at.kafka.on("Fetch", client_id="consumer-*")
    return matcher.change_response(changed) if times is None else matcher.change_response(changed, times=times)


def next_fetch(consumer: Consumer) -> None:
    """Wait for the consumer's next Fetch: a rule does not match one that the broker has already."""
    now_s = time.time()
    consumer.poll_until(lambda: consumer.exchanges("Fetch", after=now_s), consumer.bound_s())


def rewritten(records: bytes, rewrites: Mapping[int, Rewrite]) -> bytes:
    """Return batches of which those with these base offsets are replaced."""
    whole = bytes(records)
    batches = []
    for position, header in iterate(whole):
        batch = whole[position : position + header.size_bytes]
        rewrite = rewrites.get(header.base_offset)
        batches.append(batch if rewrite is None else rewrite(header, batch))
    return b"".join(batches)


def marker(producer_id: int, commit: bool) -> Rewrite:
    """Return what makes the marker of a transaction's end of a batch with one record."""

    def rewrite(header: BatchHeader, batch: bytes) -> bytes:  # noqa: ARG001
        made = build_marker(
            commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=TIMESTAMP_MS
        )
        prefix = patched_prefix(read_header(made), header.base_offset, header.leader_epoch)
        return prefix + made[len(prefix) :]

    return rewrite


def transactional(producer_id: int) -> Rewrite:
    """Return what makes a batch of this producer's transaction of an ordinary one."""

    def rewrite(header: BatchHeader, batch: bytes) -> bytes:
        changed = header._replace(
            producer_id=producer_id, producer_epoch=0, base_sequence=0, attributes=header.attributes | TRANSACTIONAL
        )
        return sealed(changed, batch[HEADER_BYTES:])

    return rewrite


def without_records(header: BatchHeader, batch: bytes) -> bytes:  # noqa: ARG001
    """Return the batch with its offsets and no records, as compaction leaves it."""
    return sealed(header._replace(record_count=0), b"")


def error_of(code: ErrorCode) -> Callable[[Any], Any]:
    """Return what makes this error of a partition's records."""
    return lambda one: replace(
        one, error_code=code, high_watermark=-1, last_stable_offset=-1, log_start_offset=-1, records=b""
    )
