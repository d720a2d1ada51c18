"""What the transactions of a partition make of its records when they are loaded."""

from dataclasses import dataclass, field

from reference_broker.coordination.led_partitions import RECORDS_PER_SLICE, Skipped
from reference_broker.coordination.record_fields import DamagedRecord
from reference_broker.ports.node_ports import Slices
from reference_broker.records.batch import BatchHeader
from reference_broker.records.record import Record
from reference_broker.transactions.state.states import DECIDED
from reference_broker.transactions.storage.codec import read_key, read_transaction
from reference_broker.transactions.storage.partition import Held, TransactionsPartition


@dataclass(slots=True)
class TransactionsTaker:
    """Implements ``coordination.loading.Taker``."""

    target: TransactionsPartition
    _values: dict[str, bytes] = field(default_factory=dict)
    """The last value of each transactional ID."""

    def take(self, header: BatchHeader, record: Record, end_offset: int) -> None:  # noqa: ARG002 - the taker's form
        transactional_id = None if header.is_control else read_key(record.key or b"")
        if transactional_id is None:
            return
        self._values.pop(transactional_id, None)
        if record.value is not None:
            self._values[transactional_id] = record.value

    def read_so_far(self) -> None:
        """Only the last value of each ID counts."""

    def restore(self, skipped: Skipped) -> Slices:
        for number, (transactional_id, value) in enumerate(self._values.items(), 1):
            try:
                found = read_transaction(transactional_id, value)
            except DamagedRecord as damaged:
                skipped(-1, f"transactional ID {transactional_id}: {damaged}")
                continue
            missing = dict(found.partitions) if found.state in DECIDED else {}
            self.target.held[transactional_id] = Held(found, missing=missing)
            self.target.plan(found)
            if number % RECORDS_PER_SLICE == 0:
                yield
