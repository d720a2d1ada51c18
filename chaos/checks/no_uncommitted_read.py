from chaos.checks.batches import batches_of
from chaos.checks.check import Check
from chaos.checks.fetch_model import Answer


class NoUncommittedRead(Check):
    """no-uncommitted-read: a client is sent no record beyond the high watermark of the replica that serves it.

    This holds at a leader and, since a follower's high watermark is never ahead of what is committed, at a follower
    from which consumers read (KIP-392).
    """

    guarantee = "no-uncommitted-read"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        for named, data in answer.data.items():
            partition = answer.served(named) if data.records else None
            if partition is None or not data.records:
                continue
            last = max((batch.last_offset for batch, _ in batches_of(bytes(data.records))), default=-1)
            if last >= partition.log.high_watermark:
                self.violated(
                    at_us,
                    f"{answer.client_id} was sent offset {last} of {partition.topic}-{partition.index}; the high "
                    f"watermark there is {partition.log.high_watermark}",
                )
