"""Reads a mirror's target cluster at the end of a run, to see what the mirror left out or wrote twice."""

from collections.abc import Sequence

from bench.fleet.behaviours.final_reader import FinalReader
from bench.fleet.behaviours.protocol import Chance, ClientSettings, HistoryRow, TopicPartition
from bench.fleet.runs import BatchReader
from reports.rows import EndRow, RunRow, TargetRunRow


def target_reader(
    process: str, settings: ClientSettings, random: Chance, partitions: Sequence[TopicPartition], limit_us: int
) -> FinalReader:
    """Returns a final reader whose rows go to a table of their own. The topics of both clusters have the same names,
    but a record has another offset in the target."""
    return FinalReader(process, settings, random, partitions, BatchReader(), limit_us, "target_read", _as_target_runs)


def _as_target_runs(rows: Sequence[HistoryRow]) -> list[HistoryRow]:
    return [row for each in rows for row in _as_target_run(each)]


def _as_target_run(row: HistoryRow) -> list[HistoryRow]:
    if isinstance(row, RunRow):
        where = (row.topic, row.partition)
        return [TargetRunRow(*where, row.first_offset, row.count, row.writer, row.first_sequence)]
    if isinstance(row, EndRow):
        return [TargetRunRow(row.topic, row.partition, row.high_watermark, 0, "", -1)]
    return []
