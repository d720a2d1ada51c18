"""Decides when this node becomes the active controller, and when it stops.

A leader becomes the active controller when the first record of its epoch is committed and loaded, because it has
everything that was committed before. When leadership is lost, everyone who waits for a change gets NOT_CONTROLLER.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.activation import Activation, activation
from reference_broker.controller.refusal import NOT_CONTROLLER
from reference_broker.controller.reign import Leadership, Reign
from reference_broker.metadata.features import check_levels
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.loader import MetadataLoader
from reference_broker.ports.node_ports import Surroundings


class Upkeep(Protocol):
    """Work that the active controller does by itself while it is active."""

    def activated(self) -> None: ...
    def deactivated(self) -> None: ...


@dataclass(slots=True, eq=False)
class Succession:
    """``reign`` is this node's time as the active controller, or None while it is not. ``_activated`` is called last
    when a reign begins. ``_claim`` is a leadership that has not become a reign yet."""

    _surroundings: Surroundings
    _config: BrokerConfig
    _loader: MetadataLoader
    _quorum: Leadership
    _upkeep: Sequence[Upkeep]
    _activated: Callable[[], None]
    reign: Reign | None = None
    _claim: tuple[int, int] | None = None
    """(epoch, offset of its first record)."""

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Drops the claim if another node leads a newer epoch."""
        if leader_id != self._surroundings.node_id and self._claim is not None and epoch > self._claim[0]:
            self._claim = None

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        """Becomes active once the record at ``start_offset``, the epoch's first, is committed and loaded."""
        assert self.reign is None, f"leadership of epoch {epoch} is won before that of an earlier one was lost"
        self._claim = (epoch, start_offset)
        self.progressed()

    def leadership_lost(self, epoch: int) -> None:  # noqa: ARG002 - the listener's signature
        """Ends the reign. Everyone who waits gets NOT_CONTROLLER, because this node will not know what became of their
        changes."""
        self._claim = None
        reign, self.reign = self.reign, None
        if reign is None:
            return
        for each in self._upkeep:
            each.deactivated()
        self._loader.split_at_epochs(False)
        for answered in reign.end():
            answered(NOT_CONTROLLER)

    def progressed(self) -> None:
        """Becomes active if the records that the claim waits for have been loaded."""
        if self._claim is None or self._loader.last_offset < self._claim[1]:
            return
        epoch, start_offset = self._claim
        self._claim = None
        image, in_transaction = self._loader.image, self._loader.in_transaction
        first = self._first(image, in_transaction)
        reign = self.reign = Reign(
            self._surroundings, self._config, self._loader, self._quorum, image, lambda: self.leadership_lost(epoch)
        )
        self._surroundings.ports.note("controller_activated", ("epoch", epoch), ("offset", start_offset))
        self._loader.split_at_epochs(True)
        for each in self._upkeep:
            each.activated()
        reign.begin(first)
        if self.reign is reign:  # It ends at once if the disk refuses its first records.
            self._activated()

    def _first(self, image: MetadataImage, in_transaction: bool) -> Activation:
        """What the reign writes first. Raises MetadataFault if this node does not know a finalized feature level."""
        config = self._config
        check_levels(image, config)
        epoch_level = config.crucible_bootstrap_metadata_epoch if config.crucible_metadata_epoch_enable else 0
        min_isr = config.min_insync_replicas if config.crucible_bootstrap_eligible_leader_replicas else 0
        version = config.crucible_bootstrap_metadata_version
        transaction_level = config.crucible_bootstrap_transaction_version
        return activation(image, in_transaction, version, epoch_level, min_isr, transaction_level)
