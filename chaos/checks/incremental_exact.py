from dataclasses import dataclass, field

from chaos.checks.batches import read_batches, record_count
from chaos.checks.check import Check
from chaos.checks.fetch_model import Answer, Named, Wish
from chaos.checks.no_starvation import LOOKS_AT_ONCE
from chaos.checks.read_replicas import NO_REPLICA, may_be_read
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import PartitionData

ERROR, NEWS, DATA, ELSEWHERE = "has an error", "has changed", "has data", "has a preferred read replica"


@dataclass(slots=True)
class _Session:
    """``answers`` counts its answers. ``first_told`` are the partitions of the first answer to its last request, and
    ``changed_since`` are those that changed before that request was answered again. ``idle_epochs`` has the leader
    epochs in which partitions were last seen without data."""

    answers: int = 0
    first_told: dict[Named, None] = field(default_factory=dict)
    changed_since: dict[Named, None] = field(default_factory=dict)
    idle_epochs: dict[Named, int] = field(default_factory=dict)


class IncrementalExact(Check):
    """incremental-answer-exact: an incremental answer holds each line that is due, and no line that nothing justifies.

    Final revision (F-14): a partition is told if and only if its high watermark or log start differs from what was last
    told, or it has data within the limits, or it has an error, a diverging epoch or a preferred replica. After an
    error, and of a new partition, the next state is told in any case. F-16: if there is any data, the answer has some.
    Sessions of followers are judged, too.

    First revision (G-5, G-6): what has changed is told. An answer that is told again holds all partitions of the first
    one.

    Any other line is known to be due only if it was due after the event of an earlier answer already. Physical: one
    event may change a partition after it has made an answer. In sessions of more than 64 partitions due lines are
    looked for after every P/64 answers, since more would cost too much.
    """

    guarantee = "incremental-answer-exact"
    needs_one_node = True
    judges_followers = True

    def answered(self, at_us: int, answer: Answer) -> None:
        if answer.session_id == 0:
            return  # F-7: the session is closed. F-4, F-5: there is none.
        session = answer.session.kept(_Session)
        if answer.asked.incremental:
            for named, data in answer.data.items():
                self._justified(at_us, answer, session, named, data)
            if answer.repeated:
                self._told_again(at_us, answer, session)
        session.answers += 1
        if not answer.repeated:
            session.first_told = dict.fromkeys(answer.data) if answer.asked.incremental else {}
            session.changed_since = {}
        for named, data in answer.data.items():
            wish = answer.asked.wishes.get(named)
            if wish is not None:
                told = None if data.error_code else (data.high_watermark, data.log_start_offset)
                if answer.repeated and (named not in session.first_told or told != wish.told):
                    session.changed_since[named] = None
                wish.told = told
                wish.served = wish.served or bool(data.records)
                wish.owed = ""
        if session.answers % max(1, len(answer.asked.wishes) // LOOKS_AT_ONCE) == 0:
            self._look_for_due(at_us, answer, session)

    # Each line is justified

    def _justified(self, at_us: int, answer: Answer, session: _Session, named: Named, data: PartitionData) -> None:
        wish = answer.asked.wishes.get(named)
        if wish is None:
            self._tell(at_us, answer, named, "is not in the session, and was told")
            return
        if data.records or data.error_code or data.diverging_epoch or data.preferred_read_replica != NO_REPLICA:
            return
        if wish.told != (data.high_watermark, data.log_start_offset):
            return
        if answer.asked.is_first and not self._is_unchanged_in_first(answer, session, named, wish):
            return
        self._tell(at_us, answer, named, f"was told again, without records, and with {wish.told} as before")

    @staticmethod
    def _is_unchanged_in_first(answer: Answer, session: _Session, named: Named, wish: Wish) -> bool:
        """G-5: data that was left out, a change of the log's end, or an offset that was named makes a partition dirty.
        G-6: so does the first answer, if it is told again. What changes after the first answer to N has the number
        N+1 (G-5). So a second answer to N tells it, and the answer to N+1 tells it once more."""
        partition = answer.led(named)
        is_read_up = partition is not None and wish.offset >= partition.log.log_end_offset
        is_new = answer.repeated or named in answer.asked.named or named in session.changed_since
        # While another node led there was an error to send, and a dirty number only grows (G-5).
        is_led_on = partition is not None and session.idle_epochs.get(named) == partition.leader_epoch
        return is_read_up and is_led_on and not is_new and 0 < session.answers == wish.idle_at

    def _told_again(self, at_us: int, answer: Answer, session: _Session) -> None:
        for named in session.first_told:
            wish = answer.asked.wishes.get(named)
            # G-4: of a partition that a full request has put there anew, nothing has been told.
            if wish is not None and wish.told is not None and named not in answer.data:
                self._tell(at_us, answer, named, "was told by the first answer to this request, and not by the second")

    # Each due line is there

    def _look_for_due(self, at_us: int, answer: Answer, session: _Session) -> None:
        sent_bytes = sum(len(data.records or b"") for data in answer.data.values())
        for named, wish in answer.asked.wishes.items():
            partition = answer.served(named)
            owed = self._owed(answer, wish, partition)
            lacks = answer.asked.incremental and not answer.repeated and named not in answer.data
            if lacks and wish.told is None and not answer.asked.is_first:
                self._tell(
                    at_us,
                    answer,
                    named,
                    "is new or had an error in the previous response, and is missing now",
                )
            elif lacks and owed and owed == wish.owed and self._has_room(answer, wish, partition, sent_bytes):
                self._tell(at_us, answer, named, f"{owed}, and was not told; last told: {wish.told}")
            wish.owed = owed
            if partition is not None and wish.offset >= partition.log.log_end_offset:
                wish.idle_at = session.answers
                session.idle_epochs[named] = partition.leader_epoch

    @staticmethod
    def _owed(answer: Answer, wish: Wish, partition: Partition | None) -> str:
        """Returns why the next answer must tell the partition, or nothing if it need not."""
        if partition is None or wish.leader_epoch not in (-1, partition.leader_epoch):
            return ERROR
        log = partition.log
        if answer.asked.by_follower and wish.offset < log.local_log_start_offset:
            return ERROR  # KIP-405: a follower begins where the local records begin.
        # Unlike Kafka (card of Fetch): above the high watermark a session may hear of a replica only when that moves.
        if wish.offset <= log.high_watermark and may_be_read(answer, partition, wish.offset):
            return ELSEWHERE
        if not log.log_start_offset <= wish.offset <= log.log_end_offset:
            return ERROR
        # Physical: records of the remote tier come when the store gives them, which may take long or fail.
        has_data = log.local_log_start_offset <= wish.offset < _end(answer, partition)
        if answer.asked.is_first and has_data:
            # G-5: news of a partition with data wait with it. G-3: the client has processed what was sent.
            return "" if wish.served else DATA
        if wish.told != (log.high_watermark, log.log_start_offset):
            return NEWS
        # of records above the last stable offset a reader of committed ones is told nothing.
        is_stable = not answer.asked.reads_committed or log.last_stable_offset == log.high_watermark
        return DATA if has_data and is_stable else ""

    @staticmethod
    def _has_room(answer: Answer, wish: Wish, partition: Partition | None, sent_bytes: int) -> bool:
        """Returns whether the limits leave room for the line. Only records need any (F-15, G-5)."""
        if wish.owed != DATA or partition is None:
            return True
        batch = b""
        for _, data in read_batches(partition.log, wish.offset, _end(answer, partition)):
            batch = batch or data
            if record_count(data):  # A fetch reads past batches that the cleaner has emptied.
                batch = data
                break
        if not batch:
            return False  # Physical: the log holds no record there any more (compaction).
        left = answer.asked.max_bytes - sent_bytes
        # G-5: what the limit leaves out is due in the next answer, so only an answer without records is known to err.
        has_left = not answer.asked.is_first and len(batch) <= wish.max_bytes <= left
        return has_left or not sent_bytes  # F-16.

    def _tell(self, at_us: int, answer: Answer, named: Named, what: str) -> None:
        topic = named[0] if isinstance(named[0], str) else named[0].hex()
        who = f"{answer.client_id}, session {answer.session_id}, answer to {answer.asked.number}"
        self.violated(at_us, f"{who}: {topic}-{named[1]} {what}")


def _end(answer: Answer, partition: Partition) -> int:
    """Followers read beyond the high watermark."""
    return partition.log.log_end_offset if answer.asked.by_follower else partition.log.high_watermark
