"""replicas-equal: below its high watermark each replica holds the very batches that were committed, byte for byte.

A new leader must hold all committed batches, even those above its own high watermark.

In a compacted partition records are compared instead of batches. Each record must be at its offset as it was committed.
A replica may lack a record only where a cleaner may work, and only if a newer record of its key supersedes it or it is
a tombstone past its time. In the cleaned part of its log a replica must hold only one record of each key.
"""

from chaos.checks.batches import read_batches
from chaos.checks.compacted import Compacted, records_of
from chaos.checks.replica_check import ReplicaCheck
from chaos.checks.replica_view import Copy, Held, Replicated


class ReplicasEqual(ReplicaCheck):
    guarantee = "replicas-equal"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        if partition.excused or (partition.losses and not copy.leads):
            return  # E-7: nobody had kept what was committed. Followers truncate it later; ``quiet`` compares them.
        another = now.leader_epoch > before.leader_epoch or now.incarnation != before.incarnation
        newly_leads = another and now.leader_epoch == partition.leader_epoch >= 0
        if newly_leads and now.end_offset < partition.committed_end:
            self.violated(
                at_us,
                f"{partition.name}: node {copy.node_id} leads in epoch {now.leader_epoch} with a log that ends at "
                f"{now.end_offset}, below {partition.committed_end}, which is committed",
            )
        if now.cleaned_offset > before.cleaned_offset and now.incarnation == before.incarnation:
            self._cleaned(at_us, partition, copy, now)
        self._compare(at_us, partition, copy, now, partition.committed_end if newly_leads else now.high_watermark)

    def _cleaned(self, at_us: int, partition: Replicated, copy: Copy, now: Held) -> None:
        copy.equal_to = 0  # Any of its batches may be different now.
        if now.cleaned_offset > now.high_watermark:
            self.violated(
                at_us,
                f"{partition.name} on node {copy.node_id} was cleaned up to {now.cleaned_offset}; what is below "
                f"{now.high_watermark} is committed",
            )

    def quiet(self, at_us: int) -> None:
        """Compares all that each replica holds, from its beginning."""
        for partition in self.replicas.partitions.values():
            for copy in partition.copies.values():
                # E-7: nobody had kept what was committed, and no leader has taken over since then.
                if copy.log is not None and not partition.excused:
                    copy.equal_to = 0
                    self._compare(at_us, partition, copy, copy.held, copy.held.high_watermark)

    def _compare(self, at_us: int, partition: Replicated, copy: Copy, now: Held, end: int) -> None:
        end = min(end, partition.committed_end, now.end_offset)
        # E-7: what lies below the log of the leader after a loss was committed before it, and is not known any more.
        begin = max(copy.equal_to, now.start_offset, partition.committed_from)
        if begin >= end or copy.log is None:
            return
        copy.equal_to = end
        found = self._unlike_batch if partition.compacted is None else self._unlike_record
        story = found(at_us, partition, copy, begin, end)
        if story:
            self.violated(at_us, f"{partition.name} on node {copy.node_id} {story}")

    @staticmethod
    def _unlike_batch(at_us: int, partition: Replicated, copy: Copy, begin: int, end: int) -> str:  # noqa: ARG004
        assert copy.log is not None, "nothing to compare"
        for batch, _ in read_batches(copy.log, begin, end):
            committed = partition.committed.get(batch.base_offset)
            if committed != batch:
                there = "no batch" if committed is None else committed.named
                return f"has {batch.named} where {there} is committed"
        return ""

    def _unlike_record(self, at_us: int, partition: Replicated, copy: Copy, begin: int, end: int) -> str:
        compacted = partition.compacted
        assert copy.log is not None, "nothing to compare"
        assert compacted is not None, "a partition that is not compacted"
        partition.note_cleanable()
        here: dict[int, None] = {}
        for batch, data in read_batches(copy.log, begin, end):
            if partition.committed.get(batch.base_offset) == batch:
                here.update((offset, None) for offset in compacted.between(batch.base_offset, batch.last_offset + 1))
                continue
            for offset, record in records_of(data, at_us):
                committed = compacted.records.get(offset)
                if committed is None and partition.losses:
                    continue  # E-7: it was read from a leader that had kept less, or had cleaned it away.
                if committed is None or not committed.equals(record):
                    there = "none" if committed is None else f"{committed[:-1]}"
                    return f"has the record {record[:-1]} at offset {offset} where {there} is committed"
                here[offset] = None
        return self._wrongly_cleaned(at_us, compacted, here, (begin, end), min(copy.held.cleaned_offset, end))

    @staticmethod
    def _wrongly_cleaned(
        at_us: int, compacted: Compacted, here: dict[int, None], bounds: tuple[int, int], cleaned_offset: int
    ) -> str:
        kept: dict[bytes, int] = {}
        for offset in compacted.between(*bounds):
            if offset in here:
                key = compacted.records[offset].key
                if key is not None and offset < cleaned_offset:
                    older = kept.setdefault(key, offset)
                    if older != offset:
                        return f"is cleaned up to {cleaned_offset}, and has offset {older}, which {offset} supersedes"
            elif not compacted.may_lack(offset, at_us):
                newer = compacted.next_of_key(offset)
                return f"lacks the record at offset {offset}, which " + (
                    "is the newest of its key"
                    if newer is None
                    else f"only that at {newer} supersedes; cleaners may work below {compacted.cleanable_end}"
                )
        return ""
