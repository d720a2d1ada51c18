"""Full replays of files, compared with states that are written out by hand, and what counts as a difference."""

from pathlib import Path

import pytest

from campaigns.upgrade.full_replay import ReplayedSegment, differences, first_needed, replayed, stable_end
from campaigns.upgrade.kafka_files import ProducerRow, UnknownFormat, file_name, placed, snapshot_file, snapshot_rows
from reference_broker.records.control import build_marker
from reference_broker.records.record import Record, build

HOUR = 3_600_000
START_MS = 1_700_000_000_000


class HandmadeLog:
    """A log on disk that is written batch by batch, at times in hours after a start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.offset = self.base = 0

    def send(self, who: int, hours: float, sequence: int, count: int = 1, epoch: int = 0, in_txn: bool = False) -> None:
        records = [Record(timestamp_ms=START_MS + int(hours * HOUR), value=b"v") for _ in range(count)]
        batch = build(records, producer_id=who, producer_epoch=epoch, base_sequence=sequence, is_transactional=in_txn)
        self._write(batch, count)

    def end(self, who: int, hours: float, epoch: int = 0, commit: bool = True) -> None:
        timestamp_ms = START_MS + int(hours * HOUR)
        how = {"producer_epoch": epoch, "coordinator_epoch": 3, "timestamp_ms": timestamp_ms}
        self._write(build_marker(commit=commit, producer_id=who, **how), 1)

    def roll(self) -> None:
        self.base = self.offset

    def _write(self, batch: bytes, count: int) -> None:
        with (self.folder / file_name(self.base, ".log")).open("ab") as file:
            file.write(placed(batch, self.offset, 0))
        self.offset += count


@pytest.fixture
def replay(tmp_path: Path) -> list[ReplayedSegment]:
    """Three segments. Producer 7 has a transaction from the first into the third, and 9 one that is not ended."""
    log = HandmadeLog(tmp_path)
    log.send(1, 0, 0, count=3)
    log.send(7, 0, 0, in_txn=True)
    log.roll()
    log.send(1, 5, 3, count=2)
    log.send(2, 6, 2**31 - 1, count=2)
    log.roll()
    log.end(7, 10)
    log.send(9, 10, 0, in_txn=True)
    log.end(8, 10, commit=False)
    return replayed(tmp_path)


def ms(hours: float) -> int:
    return START_MS + int(hours * HOUR)


def test_each_segment_has_the_state_up_to_its_end(replay: list[ReplayedSegment]) -> None:
    assert [(segment.base_offset, segment.next_offset, segment.open_from) for segment in replay] == [
        (0, 4, 3),
        (4, 8, 3),
        (8, 11, 9),
    ]
    assert [segment.max_timestamp_ms for segment in replay] == [ms(0), ms(6), ms(10)]
    first, second, third = ({who: one.row for who, one in segment.known.items()} for segment in replay)
    assert first == {1: ProducerRow(1, 0, 2, 2, 2, ms(0), -1, -1), 7: ProducerRow(7, 0, 0, 3, 0, ms(0), -1, 3)}
    assert second[1] == ProducerRow(1, 0, 4, 5, 1, ms(5), -1, -1)
    assert second[2] == ProducerRow(2, 0, 0, 7, 1, ms(6), -1, -1), "sequences wrap"
    assert third[7] == ProducerRow(7, 0, 0, 3, 0, ms(10), 3, -1), "a marker ends a transaction"
    assert third[8].last_sequence == -1, "a marker can be all that there is"
    assert stable_end(replay) == 9
    assert stable_end(replay[:1]) == 3
    assert stable_end([]) == 0


def test_marker_that_raises_the_epoch_clears_the_sequence(tmp_path: Path) -> None:
    log = HandmadeLog(tmp_path)
    log.send(5, 0, 0, count=4, in_txn=True)
    log.end(5, 0, epoch=1)
    assert replayed(tmp_path)[0].known[5].row == ProducerRow(5, 1, -1, -1, 0, ms(0), 3, -1)
    log.send(5, 1, 0, epoch=1)
    assert replayed(tmp_path)[0].known[5].row == ProducerRow(5, 1, 0, 5, 0, ms(1), 3, -1)


def test_snapshot_must_have_unexpired_producers_and_open_transactions(replay: list[ReplayedSegment]) -> None:
    known = replay[1].known
    rows = {who: one.row for who, one in known.items()}
    now_ms, expiration_ms = ms(6.5), int(HOUR * 1.2)
    assert differences(rows, known, now_ms, expiration_ms) == (0, 0, 0)
    only_needed = {who: row for who, row in rows.items() if who != 1}
    assert differences(only_needed, known, now_ms, expiration_ms) == (0, 0, 0), "1 is expired, 7 is open"
    for who in (2, 7):
        lacking = {each: row for each, row in rows.items() if each != who}
        assert differences(lacking, known, now_ms, expiration_ms) == (1, 0, 0)
    assert differences({**rows, 99: rows[2]._replace(producer_id=99)}, known, now_ms, expiration_ms) == (0, 0, 1)


@pytest.mark.parametrize(
    "field",
    ["epoch", "last_sequence", "last_offset", "offset_delta", "timestamp_ms", "coordinator_epoch", "open_from"],
)
def test_each_field_that_is_wrong_is_seen(replay: list[ReplayedSegment], field: str) -> None:
    known = replay[1].known
    rows = {who: one.row for who, one in known.items()}
    rows[2] = rows[2]._replace(**{field: getattr(rows[2], field) + 1})
    assert differences(rows, known, ms(7), 2 * HOUR) == (0, 1, 0)


def test_where_a_replay_may_begin(replay: list[ReplayedSegment]) -> None:
    def needed(offset: int, hours: float, *snapshots: int) -> int:
        return first_needed(replay, snapshots, offset, ms(10), int(hours * HOUR))

    assert needed(11, 1) == 3, "7 has a transaction open where the young segment begins"
    assert needed(11, 1, 4) == 4, "a snapshot knows of that transaction"
    assert needed(11, 1, 4, 8, 99) == 8
    assert needed(8, 1) == 3, "no segment is young, and a transaction is open"
    assert needed(8, 4.5) == 3
    assert needed(11, 20) == 0


def test_later_segments_say_nothing_of_where_a_replay_begins(tmp_path: Path) -> None:
    log = HandmadeLog(tmp_path)
    for hours in (0, 1, 10):
        log.send(1, hours, int(hours))
        log.roll()
    replay = replayed(tmp_path)
    assert first_needed(replay, (), 1, ms(10), 2 * HOUR) == 1, "nothing is to be read"
    assert first_needed(replay, (), 3, ms(10), 2 * HOUR) == 2


def test_snapshot_that_is_not_whole_is_refused() -> None:
    data = snapshot_file([ProducerRow(1, 0, 2, 2, 2, 5, -1, -1)])
    assert snapshot_rows(data) == {1: ProducerRow(1, 0, 2, 2, 2, 5, -1, -1)}
    for broken in (b"", data[:-1], data[:-1] + b"\x00", b"\x00\x02" + data[2:], data + b"\x00"):
        with pytest.raises(UnknownFormat):
            snapshot_rows(broken)


def test_batches_of_other_formats_are_refused(tmp_path: Path) -> None:
    log = HandmadeLog(tmp_path)
    log.send(1, 0, 0)
    path = tmp_path / file_name(0, ".log")
    data = bytearray(path.read_bytes())
    data[16] = 1
    path.write_bytes(data)
    with pytest.raises(UnknownFormat, match="magic 1"):
        replayed(tmp_path)
