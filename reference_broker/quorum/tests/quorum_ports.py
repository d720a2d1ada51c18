"""The ports and the listener of a quorum under test.

It opens the log, records notes, and passes requests and calls of the listener to two methods.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.ports.disk import Disk
from reference_broker.ports.node_ports import Channel, Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.metadata_log import MetadataLog, open_metadata_log
from reference_broker.quorum.tests.quorum_snapshots import NamedSnapshots
from reference_broker.quorum.values import OffsetAndEpoch


def opened(disk: Disk, config: BrokerConfig, now: Now, snapshots: NamedSnapshots) -> MetadataLog:
    return run_to_end(open_metadata_log(disk, config, now, False, snapshots))


@dataclass
class SentRequest:
    api_key: int
    body: object
    replied: Callable[[object], None]
    failed: Callable[[], None]
    open: bool = True


class QuorumPorts(ABC):
    """The methods of Ports and QuorumListener that are the same in all tests."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, dict[str, int | str]]] = []

    @abstractmethod
    def send_request(self, peer: int, api_version: int, request: SentRequest, timeout_ms: int) -> None:
        """Send a request of the quorum."""

    @abstractmethod
    def notify(self, what: str, *values: object) -> None:
        """``what``: the listener's method."""

    # ports.node_ports.Ports

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self.notes.append((what, dict(fields)))

    def send(
        self,
        peer: int,
        channel: Channel,
        api_key: int,
        api_version: int,
        body: object,
        timeout_ms: int,
        replied: Callable[[object], None],
        failed: Callable[[], None],
    ) -> None:
        assert channel is Channel.RAFT
        self.send_request(peer, api_version, SentRequest(api_key, body, replied, failed), timeout_ms)

    # quorum.values.QuorumListener

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        self.notify("leader_changed", leader_id, epoch)

    def leadership_won(self, epoch: int, start_offset: int) -> None:
        self.notify("leadership_won", epoch, start_offset)

    def leadership_lost(self, epoch: int) -> None:
        self.notify("leadership_lost", epoch)

    def high_watermark_advanced(self, high_watermark: int) -> None:
        self.notify("high_watermark_advanced", high_watermark)

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None:
        self.notify("snapshot_installed", snapshot)
