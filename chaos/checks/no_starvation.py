"""no-starvation: a partition with data is left out of at most P-1 answers in a row, in a session of P partitions.

The final revision moves a partition that was served to the end of its list. The first revision begins request N at
place N modulo the number of partitions (F-15, G-7). By F-16 the first partition in that order is served.

All partitions of a small session are looked at after each answer. Of a large one they are looked at after every P/64
answers, since more would cost too much. Starvation is then seen by so many answers later.
"""

from dataclasses import dataclass

from chaos.checks.batches import batches_of, read_batches, record_count
from chaos.checks.check import Check
from chaos.checks.fetch_model import Answer, Named, Wish
from chaos.checks.read_replicas import may_be_read

LOOKS_AT_ONCE = 64
"""So many partitions of a session are looked at for each answer."""


@dataclass(slots=True)
class _Turns:
    """``answers`` counts a session's answers. No partition waits for longer than since ``counted_from``. ``most`` is
    the largest number of partitions that the session has had, and ``number`` that of its last request."""

    answers: int = 0
    counted_from: int = 0
    most: int = 0
    number: int = 0


class NoStarvation(Check):
    guarantee = "no-starvation"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        # F-15 and G-7 speak of sessions. G-6: an answer that is told again is no other one.
        if answer.session_id == 0 or answer.repeated:
            return
        wishes = answer.asked.wishes
        turns = answer.session.kept(_Turns)
        turns.answers += 1
        turns.most = max(turns.most, len(wishes))
        if answer.asked.is_first and answer.asked.number != turns.number + 1:
            turns.counted_from = turns.answers  # G-7: numbers that got no answer may have been a partition's turns.
        turns.number = answer.asked.number
        for named, data in answer.data.items():
            if named in wishes and (data.records or data.error_code or data.diverging_epoch is not None):
                wishes[named].fed_at = turns.answers
        if turns.answers % max(1, len(wishes) // LOOKS_AT_ONCE) == 0:
            for named, wish in wishes.items():
                self._look(at_us, answer, named, wish, turns)

    def _look(self, at_us: int, answer: Answer, named: Named, wish: Wish, turns: _Turns) -> None:
        partition = answer.served(named)
        if partition is None or may_be_read(answer, partition, wish.offset):
            wish.fed_at = 0  # KIP-392: the client is to read elsewhere.
            return
        log = partition.log
        # a reader of committed records is told nothing above the last stable offset.
        end = log.last_stable_offset if answer.asked.reads_committed else log.high_watermark
        # Physical: records of the remote tier come when the store gives them, which may take long or fail.
        if not log.local_log_start_offset <= wish.offset < end:
            wish.fed_at = 0
            return
        wish.fed_at = max(wish.fed_at or turns.answers, turns.counted_from)
        left_out = turns.answers - wish.fed_at
        if left_out >= turns.most and next(read_batches(log, wish.offset, end), None) is not None:
            # Physical: where a cleaner has taken all that is left up to the end, the log holds no batch there.
            self.violated(
                at_us,
                f"{answer.client_id}, session {answer.session_id}: {partition.topic}-{partition.index} has data from "
                f"{wish.offset} to {end}, but {left_out} answers in a row left it out, in a "
                f"session of {turns.most} partitions",
            )
            wish.fed_at = turns.answers


class NoEmptyAnswer(Check):
    """no-starvation within one partition: an answer that has batches has a record, if one follows that its reader may
    read (F-16, KIP-74).

    A cleaner keeps batches without records. Kafka's protocol guide counts the records of a batch in its header, and
    clients take an answer without any for one whose next record is too large for it.
    """

    guarantee = "no-starvation"
    needs_one_node = True

    def answered(self, at_us: int, answer: Answer) -> None:
        for named, data in answer.data.items():
            sent = list(batches_of(bytes(data.records or b"")))
            if not sent or any(record_count(batch) for _, batch in sent):
                continue
            partition = answer.served(named)
            begin = sent[-1][0].last_offset + 1
            end = data.last_stable_offset if answer.asked.reads_committed else data.high_watermark
            if partition is None or begin < partition.log.local_log_start_offset:
                continue  # Physical: the following records are in the remote tier, which may be away.
            follows = (each for each, batch in read_batches(partition.log, begin, end) if record_count(batch))
            record = next(follows, None)
            if record is not None and record.last_offset < end:
                self.violated(
                    at_us,
                    f"{answer.client_id} was sent no record of {partition.topic}-{partition.index}, only batches "
                    f"without records up to {begin - 1}, although {record.named} follows below {end}",
                )
