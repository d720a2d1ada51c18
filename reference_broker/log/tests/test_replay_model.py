"""Producers, open transactions, the last stable offset and the aborted transactions of a log after random histories,
compared with a naive replay (P-4, P-6, P-12, X-13)."""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from chaos.sim.disk import SimDisk
from reference_broker.log.appending import BatchOrigin
from reference_broker.log.cleaner.cleaning import Cleaning, cleanable
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.tests.history import Step, replayed_naively
from reference_broker.log.tests.log_world import DIRECTORY, START_MS, at
from reference_broker.log.tests.mortal_disk import Died, MortalDisk
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.batch import BatchHeader, iterate
from reference_broker.records.control import ControlType, read_marker
from reference_broker.records.record import Record, build
from reference_broker.records.tests.markers import build_marker

CONFIG = LogConfig(
    segment_bytes=350,
    index_interval_bytes=100,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=0,
    retention_ms=-1,
)
TRANSACTIONAL = 2
"""Producer IDs from here on send transactions."""
PRODUCERS = st.integers(0, 5)


@pytest.mark.clause("X-13")
@pytest.mark.clause(
    "P-1",
    "P-2",
    "P-3",
    "P-4",
    "P-6",
    "P-12",
    "LogLoaderTest.testProducerSnapshotsRecoveryAfterUncleanShutdown",
    "LogLoaderTest.testFullTransactionIndexRecovery",
    "LogLoaderTest.testRecoverLastSegmentWithNoSnapshots",
    "ProducerStateManagerTest.testFirstUnstableOffsetAfterTruncation",
)
class ReplayMachine(RuleBasedStateMachine):
    """``history`` has every batch that was written and not truncated since. ``olds`` are those before truncations that
    a power loss may undo. ``was_killed``: there was no sync since a process died or a start has truncated, and so an
    append makes no truncation durable."""

    @initialize(seed=st.integers(0, 1000))
    def start(self, seed: int) -> None:
        self.disk = MortalDisk(SimDisk(Random(seed)))
        self.history: list[Step] = []
        self.olds: list[list[Step]] = []
        self.was_killed = False
        self.next: dict[int, tuple[int, int]] = {}
        self.clock_ms = 0
        self.was_cleaned = self.lost_start = False
        self.cleaned_until = 0
        self.log = self._opened(clean=True)
        self.log.append(at(0), build([Record(timestamp_ms=START_MS, key=b"first", value=b"")]), 0)
        self.history.append(Step(0, 0, -1, -1))
        self._sync()  # A log that was never synced may keep only its last segment's name.

    def _opened(self, clean: bool) -> UnifiedLog:
        log = run_to_end(open_log(self.disk, DIRECTORY, CONFIG, at(self.clock_ms), clean))
        assert log.quarantine is None
        return log

    # --- actions ------------------------------------------------------------------------------------------------------

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3), keys=st.integers(0, 3), times=st.integers(1, 4))
    def send(self, producer_id: int, count: int, keys: int, times: int) -> None:
        for _ in range(times):
            epoch, sequence = self.next.get(producer_id, (0, 0))
            self.next[producer_id] = epoch, sequence + count
            first = self.log.log_end_offset
            transactional = producer_id >= TRANSACTIONAL
            records = [
                Record(timestamp_ms=START_MS, key=b"%d" % (keys + n), value=b"%d" % (first + n)) for n in range(count)
            ]
            who: dict[str, Any] = {"producer_epoch": epoch, "base_sequence": sequence}
            data = build(records, producer_id=producer_id, is_transactional=transactional, **who)
            self._note(Step(first, first + count - 1, producer_id, epoch, sequence, transactional))
            self.log.append(at(self.clock_ms), data, 0)

    @rule(producer_id=PRODUCERS, commit=st.booleans(), raises=st.sampled_from([0, 0, 1]))
    def end(self, producer_id: int, commit: bool, raises: int) -> None:
        if producer_id < TRANSACTIONAL:
            return
        epoch, sequence = self.next.get(producer_id, (0, 0))
        epoch, sequence = (epoch + 1, 0) if raises else (epoch, sequence)
        self.next[producer_id] = epoch, sequence
        offset = self.log.log_end_offset
        self._note(Step(offset, offset, producer_id, epoch, commit=commit))
        marker = build_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp_ms=START_MS + self.clock_ms,
        )
        self.log.append(at(self.clock_ms), marker, 0, origin=BatchOrigin.BROKER)

    def _note(self, step: Step) -> None:
        self.history.append(step)
        if not self.was_killed:
            self.olds = []

    @rule()
    def roll(self) -> None:
        if self.log.segments and self.log.segments[-1].size_bytes:
            self.log.roll(at(self.clock_ms))

    @rule(share=st.floats(0, 1))
    def advance(self, share: float) -> None:
        log = self.log
        log.advance_high_watermark(log.high_watermark + int((log.log_end_offset - log.high_watermark) * share) + 1)

    @rule(back=st.integers(1, 12))
    def cut(self, back: int) -> None:
        """Physical: what was committed when the log was cleaned decided what the cleaner left, and is never cut off."""
        end = max(self.log.log_end_offset - back, self.log.log_start_offset, self.cleaned_until)
        self._forget_from(end)
        self.log.truncate_to(end)

    def _forget_from(self, end: int) -> None:
        self.olds.append(self.history)
        self.history = [step for step in self.history if step.last < end]
        self._find_sequences()

    def _find_sequences(self) -> None:
        past = replayed_naively(self.history)
        self.next = {who: (epoch, last + 1) for who, (epoch, last, _) in past.producers.items()}

    @rule(back=st.integers(0, 20))
    def delete(self, back: int) -> None:
        offset = self.log.last_stable_offset - back
        if offset > self.log.log_start_offset:
            self.lost_start = True
            self.log.delete_records_before(offset)
            self._sync()

    @rule()
    def clean(self) -> None:
        self.clock_ms += 10
        part = cleanable(self.log, at(self.clock_ms))
        if part is not None:
            self.was_cleaned = True
            self.cleaned_until = max(self.cleaned_until, self.log.high_watermark)
            for step in Cleaning(self.log, part, at(self.clock_ms), 1 << 20).run():
                self.disk.disk.finish_sync(self.disk.disk.begin_sync(step.sync))

    @rule()
    def clean_again(self) -> None:
        """Clean the cleaned part again, so that markers go whose delete horizon has passed."""
        if self.log.cleaned_offset:
            self.log.note_cleaned(0)
            self.clean()

    @rule()
    def sync(self) -> None:
        self._sync()

    def _sync(self) -> None:
        point = self.log.sync_point()
        self.disk.disk.finish_sync(self.disk.disk.begin_sync(point.paths))
        self.log.mark_synced(point)
        self.olds, self.was_killed = [], False

    # --- ends of the log's life, and its files
    # --------------------------------------------------------------------------

    @rule(damage=st.sampled_from(["", "", "flip", "cut", "empty", "missing"]), seed=st.integers(0, 99))
    def restart(self, damage: str, seed: int) -> None:
        for _ in range(2):
            self.log.close_cleanly()
            self._sync()
        self._damage(damage, Random(seed))
        self.log = self._opened(clean=True)

    @rule(
        what=st.sampled_from(["send", "end", "roll", "cut", "clean", "clean_again", "sync", "stop", "delete"]),
        left=st.integers(0, 14),
        loses_power=st.booleans(),
        damage=st.sampled_from(["", "", "", "flip", "cut", "empty", "missing"]),
        seed=st.integers(0, 99),
    )
    def die(self, what: str, left: int, loses_power: bool, damage: str, seed: int) -> None:
        actions: dict[str, Callable[[], object]] = {
            "send": lambda: self.send(seed % 6, 2, seed % 3, 3),
            "end": lambda: self.end(TRANSACTIONAL + seed % 4, bool(seed % 2), 0),
            "cut": lambda: self.cut(1 + seed % 12),
            "delete": lambda: self.delete(seed % 10),
            "stop": self.log.close_cleanly,
        }
        self.disk.left = left
        before = [self.history[:], *self.olds]
        with suppress(Died):
            actions.get(what, getattr(self, what, lambda: None))()
        before = [self.history[:], *before]
        self.disk.left = None
        if loses_power:
            self.disk.disk.power_loss()
        self.disk.disk.process_started()
        self._damage(damage, Random(seed))
        self.log = self._opened(clean=False)
        stored = {_step_of(header) for _, header in iterate(_all_of(self.log, 0))}
        for written in (self.history, *self.olds, *before):
            self.history = [step for step in written if step.last < self.log.log_end_offset]
            if stored <= {step._replace(commit=None) for step in self.history}:
                break
        else:
            raise AssertionError(f"{stored} was never written")
        # Physical: until the next sync a power loss may undo what this start has cut off, and bring it back.
        has_cut = bool(self.log.recovered.cuts or self.log.recovered.deleted_segments)
        self.was_killed = not loses_power or has_cut
        self.olds = before if self.was_killed else []
        self._find_sequences()

    def _damage(self, how: str, random: Random) -> None:
        disk = self.disk.disk
        paths = [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith((".snapshot", ".txnindex"))]
        if not how or not paths or self.lost_start:
            return
        for path in random.sample(paths, 1 + random.randrange(len(paths))):
            content = disk.read(path, 0, disk.size(path))
            if how == "missing":
                disk.delete(path)
            elif how == "empty":
                disk.write(path, b"")
            elif how == "cut" and content:
                disk.write(path, content[: random.randrange(len(content))])
            elif content:
                bit = random.randrange(8 * len(content))
                flipped = bytearray(content)
                flipped[bit // 8] ^= 1 << bit % 8
                disk.write(path, flipped)

    # --- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def as_a_replay(self) -> None:
        if not hasattr(self, "log"):
            return
        log, past = self.log, replayed_naively(self.history)
        log.check_invariants()
        known = {
            who: (producer.producer_epoch, producer.last_sequence, producer.current_txn_first_offset)
            for who, producer in log.producers.by_id.items()
        }
        wanted_state = past.producers
        if self.lost_start:  # As in Kafka, producers may be forgotten whose records were all deleted.
            kept = {who for who, (_, _, open_from) in past.producers.items() if open_from >= log.log_start_offset}
            assert kept <= set(known) <= set(past.producers)
            wanted_state = {who: past.producers[who] for who in known}
            # Physical: of a producer whose batches were all deleted, only a marker may be left (LogLoader replays from
            # the log start), unless the log is as it was or a snapshot has the producer.
            for who in self._known_by_a_marker(log.log_start_offset):
                if known.get(who, (0, 0, 0))[1] < 0:
                    wanted_state[who] = (past.producers[who][0], -1, -1)
        if self.was_cleaned:
            # Physical: a producer of which the cleaner has left nothing is only known from snapshots. The empty batch
            # of a marker shows nothing, in Kafka neither.
            headers = [header for _, header in iterate(_all_of(log, log.log_start_offset))]
            stored = {header.producer_id for header in headers if header.record_count or not header.is_control}
            wanted_state = {who: state for who, state in wanted_state.items() if who in known or who in stored}
        assert known == wanted_state
        for who, producer in log.producers.by_id.items():
            marks = [(mark.first_sequence, mark.first_offset, mark.last_offset) for mark in producer.batch_metadata]
            batch = past.batches.get(who, [])
            if self.lost_start and not marks:
                assert who in self._known_by_a_marker(log.log_start_offset) or not batch
            elif self.was_cleaned or self.lost_start:
                # Physical: the cleaner leaves some of a producer's batches, and the last one in any case (KIP-98). The
                # last five that are left may be older than the last five that were sent.
                assert len(marks) <= 5
                assert marks[-1:] == batch[-1:]
                assert marks == [each for each in batch if each in marks]
            else:
                assert marks == batch[-5:]
        if not self.was_cleaned and not self.lost_start:
            assert log.last_stable_offset == past.last_stable_offset(log.high_watermark)
        end = min(past.last_stable_offset(log.log_end_offset), log.log_end_offset)
        self._check_readers(log, end)

    def _known_by_a_marker(self, log_start_offset: int) -> set[int]:
        """Return the producers that have a marker from the log start on, and no batch of records."""
        left = [step for step in self.history if step.last >= log_start_offset]
        return {step.producer_id for step in left if step.commit is not None} - {
            step.producer_id for step in left if step.commit is None
        }

    def _check_readers(self, log: UnifiedLog, end: int) -> None:
        """A read_committed consumer (Kafka's CompletedFetch) skips exactly the aborted batches, wherever it starts."""
        past = replayed_naively(self.history)
        begins = [header.base_offset for _, header in iterate(_all_of(log, log.log_start_offset))][::3]
        for begin in (offset for offset in begins if offset < end):
            offset = max(begin, log.log_start_offset)
            data = log.read(offset, 300, end)
            waiting = sorted(log.aborted_among(offset, data), key=lambda each: each.first_offset, reverse=True)
            skipped: set[int] = set()
            for position, header in iterate(data):
                while waiting and waiting[-1].first_offset <= header.last_offset:
                    skipped.add(waiting.pop().producer_id)
                if header.is_control:
                    marker = read_marker(data[position : position + header.size_bytes], header)
                    if marker is not None and marker[0] is ControlType.ABORT:
                        skipped.discard(header.producer_id)
                elif header.is_transactional and header.record_count:
                    aborted = past.is_aborted(header.producer_id, header.base_offset)
                    assert (header.producer_id in skipped) == aborted, f"offset {header.base_offset} from {begin}"


def _step_of(header: BatchHeader) -> Step:
    """Return the step of a batch's header."""
    sequence = -1 if header.is_control else header.base_sequence
    is_transactional = header.is_transactional and not header.is_control
    who = header.producer_id, header.producer_epoch
    return Step(header.base_offset, header.last_offset, *who, sequence, is_transactional)


def _all_of(log: UnifiedLog, offset: int) -> bytes:
    parts: list[bytes] = []
    end, offset = log.log_end_offset, max(offset, log.log_start_offset)
    while offset < end:
        data = log.read(offset, 1 << 20, end)
        if not data:
            break
        parts.append(data)
        offset = [header for _, header in iterate(data)][-1].last_offset + 1
    return b"".join(parts)


TestReplay = pytest.mark.thorough(ReplayMachine.TestCase)
TestReplay.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
