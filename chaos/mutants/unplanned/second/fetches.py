"""Second set: one fetch, parked or not, the errors and offsets in its response, and ListOffsets."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.apis.records.fetch_partition import failed_lookup, readable_end
from reference_broker.apis.records.k02_list_offsets import LATEST, ListedOffset
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode

FETCH = "reference_broker.apis.records.fetch:Fetch"
PARTITION = "reference_broker.apis.records.fetch_partition"


@mutant(f"{PARTITION}:params_of")
def fetch_without_minimum_is_parked(original: Function, config: Any, api_version: int, request: Any) -> Any:
    """A fetch with min.bytes 0 waits for a first byte or for its timeout, and is not completed at once (F-14)."""
    params = original(config, api_version, request)
    return params._replace(min_bytes=max(params.min_bytes, 1))


@mutant(f"{FETCH}._refresh_without_read")
def parked_errors_not_looked_up_again(original: Function, self: Any, lookups: Collection[Any]) -> None:
    """A parked fetch that times out returns the errors from before the wait, although the leader that they name was
    replaced, or the topic exists by now (F-14)."""


@mutant(f"{FETCH}._count_progress")
def own_progress_missing_from_response(original: Function, self: Any, marked: Collection[Any]) -> None:
    """A follower whose fetch moves the high watermark gets the one from before in its response, and the new one only
    with the partition's next change (F-14, F-22)."""
    leaders, request = self.broker.replication.leaders, self.request
    for cached in marked:
        partition = cached.partition
        is_replicated = partition is not None and partition.followers is not None
        if not is_replicated or self.lookups[cached].result_without_read is not None or not cached.is_offset_proven:
            continue
        error = leaders.fetched(partition, cached, request.replica_id, request.replica_epoch)
        if error:
            self._store_lookup(cached, failed_lookup(cached.index, error))
    leaders.notify_watchers()


@mutant(f"{PARTITION}:_error_beyond_the_end")
def lagging_follower_out_of_range(original: Function, partition: Any, cached: Any) -> ErrorCode:
    """A follower that serves consumers responds OFFSET_OUT_OF_RANGE beyond its log also to a fetcher without a leader
    epoch, which then resets its position (M-15)."""
    return ErrorCode.offset_out_of_range


@mutant(f"{PARTITION}:rack_of")
def rack_obeyed_without_selector(original: Function, config: Any, api_version: int, request: Any) -> str | None:
    """Consumers that name a rack are sent to a follower in it, although replica.selector.class is not set (KIP-392)."""
    rack: str | None = original(config, api_version, request)
    return rack if rack is None else request.rack_id


@mutant("reference_broker.apis.records.fetch_response:ResponseBuilder.add")
def new_leader_never_named(original: Function, self: Any, results: Collection[Any]) -> None:
    """A partition that is led elsewhere comes back without its current leader, and without that leader's address, so
    that the client needs new metadata first (KIP-951)."""
    original(self, [(cached, replace(data, current_leader=None)) for cached, data in results])


@mutant("reference_broker.log.unified_log:UnifiedLog.aborted_transactions")
def abort_at_last_offset_omitted(original: Function, self: Any, offset: int, end_offset: int) -> Any:
    """The list of aborted transactions lacks one that begins at the last offset of the response, so that a
    read_committed consumer takes its first record for committed (X-5)."""
    return original(self, offset, end_offset - 1)


@mutant("reference_broker.apis.records.k02_list_offsets:find")
def latest_offset_of_new_leader_goes_back(
    original: Function, partition: Any, timestamp_ms: int, isolation: Any, work: Any, remote: Any = None
) -> Sliced[Any]:
    """ListOffsets returns the latest offset of a new leader before its high watermark has reached the start of its
    epoch, which may be below what the former leader returned (KIP-207)."""
    if timestamp_ms == LATEST:
        log = partition.log
        return ListedOffset(readable_end(log, isolation), leader_epoch=log.latest_epoch)
    return (yield from original(partition, timestamp_ms, isolation, work, remote))
