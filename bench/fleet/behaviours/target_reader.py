"""Reads a mirror's target cluster once all is quiet: whether the mirror left anything out, or wrote it twice."""

from typing import ClassVar

from bench.fleet.behaviours.final_reader import FinalReader
from bench.fleet.behaviours.protocol import HistoryRow, TopicPartition
from reference_broker.wire.fetch import PartitionData
from reports.rows import EndRow, RunRow, TargetRunRow


class TargetReader(FinalReader):
    """As the final reader, but the rows go to a table of their own: the topics of both clusters have the same names,
    and a record has another offset here."""

    OPERATION: ClassVar[str] = "target_read"

    def _take(self, index: int, where: TopicPartition, data: PartitionData, rows: list[HistoryRow]) -> str | None:
        told: list[HistoryRow] = []
        error = super()._take(index, where, data, told)
        for row in told:
            if isinstance(row, RunRow):
                rows.append(TargetRunRow(*where, row.first_offset, row.count, row.writer, row.first_sequence))
            elif isinstance(row, EndRow):
                rows.append(TargetRunRow(*where, row.high_watermark, 0, "", -1))
        return error
