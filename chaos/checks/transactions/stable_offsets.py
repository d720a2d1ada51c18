"""Last stable offsets, and aborted transactions in Fetch responses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaos.checks.check import Check, CheckContext, FetchCheck, Inspection, ProducerCheck
from chaos.checks.history import History, grouped, partition_of
from chaos.checks.log.batches import BatchIdentity, batches_of, producing_of, record_count
from chaos.checks.log.producer_view import EndedTransaction, LogProducers, ProducedBatch
from chaos.checks.sessions.fetch_model import CompletedFetch
from reference_broker.core.events import Event
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import PartitionData

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class LsoRegression(Check):
    """lso-regression (X-4): a leader's last stable offset never goes back within its leader epoch.

    From outside, the check uses responses to fetches that named the leader epoch, since a leader of another epoch
    rejects those. Two responses have an order if the first arrived before the second was requested. From inside, it
    compares the logs in each thorough comparison.

    KIP-392: followers serve the consumers of their rack. After a restart a follower knows only the high watermark of
    its checkpoint, until its leader sends the current one. So nodes that another node leads in the epoch are not
    judged.
    """

    guarantee = "lso-regression"
    inspection = Inspection.ONLY_THOROUGH

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._shown: dict[tuple[int, int, bytes, int], tuple[int, int]] = {}
        """leader epoch and last stable offset by node, incarnation and partition"""

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        for partition in node.broker.partitions.by_name.values():
            self._compare(at_us, incarnation, node.broker.node_id, partition)

    def _compare(self, at_us: int, incarnation: int, node_id: int, partition: Partition) -> None:
        key = (node_id, incarnation, partition.topic_id, partition.index)
        epoch, before = self._shown.get(key, (-1, 0))
        shown = partition.log.last_stable_offset
        if partition.leader_epoch == epoch and shown < before:
            self.violated(
                at_us,
                f"{partition.topic}-{partition.index}: node {node_id}, the leader in epoch {epoch}, shows the last "
                f"stable offset {shown} after {before}",
            )
        self._shown[key] = (partition.leader_epoch, shown)

    def end(self, history: History) -> None:
        shown = [
            (row, operation)
            for row in history.positions
            if row.last_stable_offset >= 0
            and row.leader_epoch >= 0
            and row.error is None
            and (operation := history.operation_of.get((row.process, row.index))) is not None
            and operation.node >= 0
        ]
        self.evidence += len(shown)
        by_leader = grouped(shown, lambda pair: (partition_of(pair[0]), pair[1].node, pair[0].leader_epoch))
        for ((topic, partition), node, epoch), responses in by_leader.items():
            if node not in self.context.replicas.leaders.get((f"{topic}-{partition}", epoch), {node}):
                continue
            by_completion = sorted(responses, key=lambda pair: pair[1].complete_us)
            known, compared = -1, 0
            for row, operation in sorted(responses, key=lambda pair: pair[1].invoke_us):
                while compared < len(by_completion) and by_completion[compared][1].complete_us < operation.invoke_us:
                    known = max(known, by_completion[compared][0].last_stable_offset)
                    compared += 1
                if row.last_stable_offset < known:
                    self.violated(
                        operation.complete_us,
                        f"{topic}-{partition}: node {node}, the leader in epoch {epoch}, sent {row.process} the last "
                        f"stable offset {row.last_stable_offset} after {known}",
                    )


class StableOffsetExact(ProducerCheck):
    """lso-regression (X-4, X-13): each log's last stable offset is the high watermark, or the first offset of the
    earliest transaction that is open or whose marker the high watermark has not passed.

    The check judges leaders and followers after each event that changed the log. Where records are gone, a log may not
    know a transaction that ended above its high watermark: then the offset may be smaller until the high watermark has
    passed the end that the log had when it was opened or truncated (X-4: "may show less until ..."). A cleaner removes
    only records of decided transactions (X-11), so a log that starts with a smaller high watermark need not know these.
    """

    guarantee = "lso-regression"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.producers.on_log_replayed.append(self.log_replayed)
        self.producers.on_high_watermark_moved.append(self.high_watermark_moved)

    def log_replayed(
        self,
        at_us: int,
        node: "Node",
        producers: LogProducers,
        new: Sequence[ProducedBatch] | None,  # noqa: ARG002
    ) -> None:
        self.high_watermark_moved(at_us, node, producers)

    def high_watermark_moved(self, at_us: int, node: "Node", producers: LogProducers) -> None:
        log, expected = producers.log, producers.stable
        self.evidence += bool(producers.open or producers.ended)
        shown = log.last_stable_offset
        if expected <= shown <= producers.most_stable:
            return
        is_behind = producers.known_from > 0 or log.high_watermark < producers.opened_end
        if shown < expected and is_behind and not producers.is_whole:
            return
        self.violated(
            at_us,
            f"{log.directory} on node {node.broker.node_id} shows the last stable offset {shown}, and its batches give "
            f"{expected}: the high watermark is {log.high_watermark}, open transactions begin at "
            f"{sorted(producers.open.values())}",
        )


def _has_none_of(transaction: EndedTransaction, batches: Sequence[tuple[BatchIdentity, bytes]]) -> bool:
    """Return whether no batch has records of the transaction."""
    return not any(
        transaction.first_offset <= batch.base_offset < transaction.marker
        and not batch.control
        and record_count(data) > 0
        and producing_of(data).producer_id == transaction.producer_id
        for batch, data in batches
    )


class AbortedListed(ProducerCheck, FetchCheck):
    """aborted-read (X-5): a response to a fetch with read_committed has no record at or above the last stable offset,
    and it lists every aborted transaction that overlaps its records, and none that was not aborted.

    Its partition may be led or followed (KIP-392). Where the cleaner has removed the records of an aborted transaction
    (X-11), it need not be listed.
    """

    guarantee = "aborted-read"

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:  # noqa: ARG002
        if not fetch.request.reads_committed:
            return
        fetched = [
            (partition, data)
            for name, data in fetch.data.items()
            if data.records and data.error_code == 0 and (partition := fetch.served(name)) is not None
        ]
        if fetched:
            self.context.replicas.after_event(fetch.node, lambda us, node: self._judge_all(us, node, fetched))

    def _judge_all(self, at_us: int, node: "Node", fetched: Sequence[tuple[Partition, PartitionData]]) -> None:
        for partition, sent in fetched:
            producers = self.producers.of(at_us, node, partition.log)
            if producers is not None:
                self._judge(at_us, node, producers, sent)

    def _judge(self, at_us: int, node: "Node", producers: LogProducers, sent: PartitionData) -> None:
        batches = list(batches_of(bytes(sent.records or b"")))
        if not batches:
            return
        self.evidence += 1
        begin, last = batches[0][0].base_offset, batches[-1][0].last_offset
        who = f"{producers.log.directory}: node {node.broker.node_id} sent offsets {begin}..{last} with read_committed"
        stable = producers.greatest_stable
        if not last < sent.last_stable_offset <= stable:
            self.violated(at_us, f"{who} and the last stable offset {sent.last_stable_offset}, and it is {stable}")
        listed = {(int(aborted.producer_id), int(aborted.first_offset)) for aborted in sent.aborted_transactions or ()}
        is_cleaned, allowed = producers.log.config.is_compacted, set[tuple[int, int]]()
        for ended in reversed(producers.ended):
            if ended.marker < begin:
                break
            if ended.commits:
                continue
            allowed.add((ended.producer_id, ended.first_offset))
            is_missing = ended.first_offset <= last and (ended.producer_id, ended.first_offset) not in listed
            if is_missing and not (is_cleaned and _has_none_of(ended, batches)):
                self.violated(
                    at_us,
                    f"{who}, and does not list the transaction of producer {ended.producer_id} that began at "
                    f"{ended.first_offset} and was aborted at {ended.marker}",
                )
        wrong = listed - allowed
        if wrong and producers.known_from == 0:
            self.violated(at_us, f"{who}, and lists (producer ID, first offset) {sorted(wrong)}, not aborted there")
