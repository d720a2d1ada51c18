from chaos.checks.batches import Batch, read_batches
from chaos.checks.compacted_log import Compacted, Left, marker_in, records_of, wrongly_cleaned
from chaos.checks.replica_view import Copy, Held, ReplicaCheck, Replicated


class ReplicasEqual(ReplicaCheck):
    """replicas-equal: below its high watermark each replica holds the very batches that were committed, byte for byte.

    A new leader must hold all committed batches, even those above its own high watermark.

    In a compacted partition records are compared instead of batches. Each record must be at its offset as it was
    committed. ``compacted.py`` and ``cleaned.py`` say what a replica may lack, and what its cleaned part must lack.
    """

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
        compacted = partition.compacted
        stable_end = now.high_watermark if compacted is None else compacted.stable_end(partition.committed_end)
        if stable_end < now.cleaned_offset <= now.high_watermark:
            self.violated(
                at_us,
                f"{partition.name} on node {copy.node_id} was cleaned up to {now.cleaned_offset}, and a transaction is "
                f"open from offset {stable_end}",
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
        left = Left(begin, end, min(copy.held.cleaned_offset, end))
        for batch, data in read_batches(copy.log, begin, end):
            left.batches[batch.base_offset] = batch.last_offset
            story = self._unlike_batch_of(at_us, partition, compacted, left, batch, data)
            if story:
                return story
        return wrongly_cleaned(at_us, compacted, left)

    @staticmethod
    def _unlike_batch_of(
        at_us: int, partition: Replicated, compacted: Compacted, left: Left, batch: Batch, data: bytes
    ) -> str:
        """Notes what is left of a batch. Returns what is there and was never committed."""
        committed_batch = partition.committed.get(batch.base_offset)
        if batch.control:
            marker = marker_in(data)
            if marker is not None:
                left.markers[batch.base_offset] = None
            known = committed_batch == batch or marker is None or partition.losses
            is_same = known or compacted.is_marker(batch.base_offset, data, marker)
            return "" if is_same else f"has a marker at offset {batch.base_offset} that was not committed there"
        if committed_batch == batch:
            offsets = compacted.between(batch.base_offset, batch.last_offset + 1)
            left.records.update((offset, None) for offset in offsets)
            return ""
        for offset, record in records_of(data, at_us):
            committed = compacted.records.get(offset)
            if committed is None and partition.losses:
                continue  # E-7: it was read from a leader that had kept less, or had cleaned it away.
            if committed is None or not committed.equals(record):
                there = "none" if committed is None else f"{committed[:-1]}"
                return f"has the record {record[:-1]} at offset {offset} where {there} is committed"
            left.records[offset] = None
        return ""
