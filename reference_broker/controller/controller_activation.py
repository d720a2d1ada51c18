"""The start and the end of a controller term.

A leader of the quorum becomes the active controller when the first record of its epoch is committed and loaded, because
it has everything that was committed before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.activation_records import ActivationRecords, activation_records
from reference_broker.controller.controller_term import ControllerTerm, Leadership
from reference_broker.controller.write_operations import NOT_CONTROLLER
from reference_broker.metadata.features import check_levels
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.ports.node_ports import NodeContext


class PeriodicTask(Protocol):
    """Work that the active controller does on its own: sessions of brokers, elections, metadata epochs."""

    def activated(self) -> None: ...
    def deactivated(self) -> None: ...


@dataclass(slots=True, eq=False)
class ControllerActivation:
    """Decides when this node becomes the active controller, and when it stops."""

    _node: NodeContext
    _config: BrokerConfig
    _loader: MetadataLoader
    _quorum: Leadership
    _tasks: Sequence[PeriodicTask]
    _activated: Callable[[], None]
    """Called last when a term begins."""
    term: ControllerTerm | None = None
    """The present term, or None while this node is not active."""
    _claim: tuple[int, int] | None = None
    """The leadership that has not become a term yet: (epoch, offset of its first record)."""

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Drop the claim if another node leads a newer epoch."""
        # Decision controller-claim-overtaken
        if leader_id != self._node.node_id and self._claim is not None and epoch > self._claim[0]:
            self._claim = None

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        """Become active once the record at ``start_offset``, the epoch's first, is committed and loaded."""
        assert self.term is None, f"leadership of epoch {epoch} is won before that of an earlier one was lost"
        self._claim = (epoch, start_offset)
        self.progressed()

    def leadership_lost(self, epoch: int) -> None:  # noqa: ARG002 - the listener's signature
        """End the term. All pending changes get NOT_CONTROLLER, because this node will not know their outcome."""
        self._claim = None
        term, self.term = self.term, None
        if term is None:  # Decision controller-lost-before-activated
            return
        for task in self._tasks:
            task.deactivated()
        self._loader.split_at_epochs(False)
        for completed in term.end():
            completed(NOT_CONTROLLER)

    def progressed(self) -> None:
        """Become active if the first record of the claimed epoch has been loaded."""
        if self._claim is None or self._loader.last_offset < self._claim[1]:  # Decision controller-activation-due
            return
        epoch, start_offset = self._claim
        self._claim = None
        image, in_transaction = self._loader.image, self._loader.in_transaction
        first = self._activation_records(image, in_transaction)
        term = self.term = ControllerTerm(
            self._node, self._config, self._loader, self._quorum, image, lambda: self.leadership_lost(epoch)
        )
        self._node.ports.note("controller_activated", ("epoch", epoch), ("offset", start_offset))
        self._loader.split_at_epochs(True)
        for task in self._tasks:
            task.activated()
        term.begin(first)
        if self.term is term:  # The term ends at once if the disk refuses its first records.
            self._activated()

    def _activation_records(self, image: MetadataImage, in_transaction: bool) -> ActivationRecords:
        """Return what the term writes first. Raise MetadataFault if this node does not know a finalized feature
        level."""
        config = self._config
        check_levels(image, config)
        epoch_level = config.crucible_bootstrap_metadata_epoch if config.crucible_metadata_epoch_enable else 0
        min_isr = config.min_insync_replicas if config.crucible_bootstrap_eligible_leader_replicas else 0
        version = config.crucible_bootstrap_metadata_version
        transaction_level = config.crucible_bootstrap_transaction_version
        return activation_records(image, in_transaction, version, epoch_level, min_isr, transaction_level)
