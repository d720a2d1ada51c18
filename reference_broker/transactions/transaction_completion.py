"""The end of a transaction: PrepareCommit or PrepareAbort, the markers, CompleteCommit or CompleteAbort."""

from collections.abc import Callable
from dataclasses import dataclass

from reference_broker.metadata.features import transaction_version
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Gauge
from reference_broker.ports.coroutines import pause, run_coroutine
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.slicing import RESUMED_TRANSACTIONS_PER_SLICE, Sliced, run_slices
from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.transactions.markers import EPOCH_RAISED_FROM, Marker
from reference_broker.transactions.producer_ids import NO_BLOCK, ProducerIdManager
from reference_broker.transactions.transaction_marker_channel_manager import (
    PendingCompleteTxn,
    TransactionMarkerChannelManager,
)
from reference_broker.transactions.transaction_metadata import (
    PREPARED,
    TransactionMetadata,
    TxnTransitMetadata,
    prepare_abort_or_commit,
    prepare_complete,
    prepare_fence_producer_epoch,
)
from reference_broker.transactions.transaction_state_manager import TransactionStateManager
from reference_broker.wire.errors import Error

COMPLETION_RETRY_US = 1_000_000
"""The delay before a complete state that could not be written is retried."""


@dataclass(slots=True)
class TransactionCompletion:
    """Ends transactions: writes the prepared state, sends the markers, and writes the complete state.

    The outcome is final once the prepared state is replicated. From then on this node, or one that takes over, ends the
    transaction (X-3): it sends markers until each partition has one, and then writes the complete state until that is
    replicated.
    """

    _ports: Ports
    _image: Callable[[], MetadataImage]
    """Returns the metadata as this node knows it."""
    _producer_ids: ProducerIdManager
    _marker_channels: TransactionMarkerChannelManager
    _unwritten: Gauge
    """Number of transactions whose complete state could not be written and is retried."""

    def end_transaction(
        self,
        state_manager: TransactionStateManager,
        metadata: TransactionMetadata,
        client_version: int,
        respond: Callable[[Error], None],
        *,
        commits: bool,
    ) -> None:
        """Commit or abort for the producer. Respond once the prepared state is replicated, or with an error:
        COORDINATOR_LOAD_IN_PROGRESS while there is no producer ID for a producer whose epochs are used up, else those
        of the log."""
        next_id = self._next_producer_id(metadata.current, client_version)
        if next_id is None:
            respond(NO_BLOCK)
            return
        transit = prepare_abort_or_commit(
            metadata.current,
            self._ports.now().wall_ms,
            commits=commits,
            client_version=client_version,
            next_producer_id=next_id,
        )
        run_coroutine(self._prepare_then_send_markers(state_manager, metadata, transit, respond))

    def fence_and_abort(
        self, state_manager: TransactionStateManager, metadata: TransactionMetadata, respond: Callable[[Error], None]
    ) -> None:
        """Abort an open transaction with an epoch that no producer has. Respond as ``end_transaction`` does."""
        version = transaction_version(self._image())
        next_id = self._next_producer_id(metadata.current, version)
        if next_id is None:
            respond(NO_BLOCK)
            return
        transit = prepare_fence_producer_epoch(
            metadata.current, self._ports.now().wall_ms, version=version, next_producer_id=next_id
        )
        run_coroutine(self._prepare_then_send_markers(state_manager, metadata, transit, respond))

    def _next_producer_id(self, current: TxnTransitMetadata, client_version: int) -> int | None:
        """Return the producer ID after this transaction, -1 where no new one is needed, or None while there is none."""
        if client_version < EPOCH_RAISED_FROM or not current.is_exhausted:
            return NO_PRODUCER_ID
        return self._producer_ids.take()

    async def _prepare_then_send_markers(
        self,
        state_manager: TransactionStateManager,
        metadata: TransactionMetadata,
        transit: TxnTransitMetadata,
        respond: Callable[[Error], None],
    ) -> None:
        append = state_manager.append_transaction_to_log(metadata, transit)
        respond(await append.error)
        if await append.is_complete:
            self._send_markers(state_manager, metadata)

    # --- after a load -------------------------------------------------------------------------------------------------

    def resume(self, state_manager: TransactionStateManager) -> None:
        """Send the markers of the prepared transactions that were loaded."""
        run_slices(self._ports, self._resume(state_manager))

    def _resume(self, state_manager: TransactionStateManager) -> Sliced[None]:
        prepared = [each for each in state_manager.entries.values() if _is_prepared(each)]
        for number, metadata in enumerate(prepared, 1):
            if not state_manager.is_led:
                return
            if _is_prepared(metadata):  # Decision transaction-ending-resumed
                self._send_markers(state_manager, metadata)
            if number % RESUMED_TRANSACTIONS_PER_SLICE == 0:
                yield

    # --- the markers, and the completion ------------------------------------------------------------------------------

    def _send_markers(self, state_manager: TransactionStateManager, metadata: TransactionMetadata) -> None:
        """Send the markers, unless they are being sent: a transaction that is prepared while the loaded ones are
        resumed comes here twice."""
        if metadata.is_sending_markers:
            return
        current = metadata.current
        assert current.state in PREPARED, f"markers of {current.transactional_id}, which is {current.state.value}"
        self._ports.note(
            "transaction_decided",
            ("transactional_id", current.transactional_id),
            ("producer_id", current.producer_id),
            ("producer_epoch", current.producer_epoch),
            ("outcome", "commit" if PREPARED[current.state] else "abort"),
            ("partitions", len(current.partitions)),
        )
        marker = Marker(
            producer_id=current.producer_id,
            producer_epoch=current.producer_epoch,
            coordinator_epoch=state_manager.coordinator_epoch,
            is_commit=PREPARED[current.state],
            transaction_version=current.client_version,
        )
        self._marker_channels.add_markers_to_send(
            PendingCompleteTxn(
                marker,
                metadata.start_sending_markers(),
                is_coordinated=lambda: state_manager.is_led and metadata.current is current,
                complete=lambda: run_coroutine(self._write_completion(state_manager, metadata)),
            )
        )

    async def _write_completion(self, state_manager: TransactionStateManager, metadata: TransactionMetadata) -> None:
        """Write the complete state, since every partition has its marker. If its record is in the log already, it is
        replicated by itself; if not, it is written again."""
        while state_manager.is_led:  # Decision transaction-completion-lost
            transit = prepare_complete(metadata.current, self._ports.now().wall_ms)
            error = await state_manager.append_transaction_to_log(metadata, transit).error
            is_in_log = metadata.pending_state is not None
            if not error or not state_manager.is_led or is_in_log:  # Decision transaction-completion-failed
                return
            self._unwritten.value += 1
            await pause(self._ports, COMPLETION_RETRY_US)
            self._unwritten.value -= 1


def _is_prepared(metadata: TransactionMetadata) -> bool:
    return metadata.current.state in PREPARED and metadata.pending_state is None
