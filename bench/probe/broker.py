"""The broker that is probed: its nodes, and the versions that it advertises.

A ``Target`` is a broker that runs already, or one that the probe has started and can start again.
"""

import ipaddress
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.probe.case import NotAdvertised
from bench.probe.conversation import Broken, Conversation, Garbled
from reference_broker.wire.apis import VERSIONS, ApiKey, api_name

MEETING_LIMIT_S = 10.0
Address = tuple[str, int]


class NotKafka(Exception):  # noqa: N818
    """Nothing at the address speaks the Kafka protocol."""


@dataclass(frozen=True, slots=True)
class ProbedBroker:
    """The broker that the probe was pointed at."""

    address: Address  # the address that was given
    node_id: int  # the node that leads all topics of the probe
    leader: Address  # address of that node
    controller: Address
    nodes: Mapping[int, Address]  # the addresses that clients get, by node ID
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Version ranges of the ApiVersions response, by API key."""

    def version(self, api_key: int, wanted: tuple[int, int]) -> int:
        """The highest version among the wanted ones that the broker advertises and the codecs here know. Raise
        NotAdvertised."""
        if api_key not in self.versions:
            raise NotAdvertised(f"{api_name(api_key)} is not advertised")
        ranges = (wanted, self.versions[api_key], VERSIONS[api_key][:2])
        least, greatest = max(each[0] for each in ranges), min(each[1] for each in ranges)
        if least > greatest:
            low, high = self.versions[api_key]
            raise NotAdvertised(f"{api_name(api_key)} is advertised in versions {low} to {high} only")
        return greatest

    def common_versions(self, api_key: int) -> range:
        """All versions that the broker advertises and the codecs here know. Raise NotAdvertised if there are none."""
        greatest = self.version(api_key, (0, 0x7FFF))
        return range(max(self.versions[api_key][0], VERSIONS[api_key][0]), greatest + 1)


def meet(address: Address) -> ProbedBroker:
    """Request the broker's versions and metadata. Raise NotKafka with one sentence."""
    deadline = time.monotonic() + MEETING_LIMIT_S
    host, port = address
    try:
        with Conversation(address, [], lambda: deadline - time.monotonic()) as conversation:
            response = conversation.call(ApiKey.API_VERSIONS, 0, {})
            versions = {int(key.api_key): (int(key.min_version), int(key.max_version)) for key in response.api_keys}
            stranger = ProbedBroker(address, -1, address, address, {}, versions)
            metadata = _readable_metadata(stranger, conversation)
    except (Broken, NotAdvertised) as error:
        raise NotKafka(f"{host}:{port} does not respond like a Kafka broker: {error}") from None
    nodes = {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in metadata.brokers}
    if not nodes:
        raise NotKafka(f"{host}:{port} names no brokers")
    if len(nodes) == 1:
        return ProbedBroker(address, next(iter(nodes)), address, address, nodes, versions)
    node_id = next((each for each, known in nodes.items() if known == address), min(nodes))
    controller = nodes.get(int(metadata.controller_id), nodes[node_id])
    return ProbedBroker(address, node_id, nodes[node_id], controller, nodes, versions)


def _readable_metadata(broker: ProbedBroker, conversation: Conversation) -> Any:
    """The broker's response in the highest version that can be decoded. A case reports those that cannot. Raise
    Broken."""
    version = broker.version(ApiKey.METADATA, (1, 0x7FFF))
    while True:
        try:
            return conversation.call(ApiKey.METADATA, version, {"topics": ()})
        except Garbled:
            if version <= max(1, broker.versions[ApiKey.METADATA][0]):
                raise
            version -= 1


def is_loopback(host: str) -> bool:
    """Return whether all addresses of the host are this machine's own."""
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)


END_NOTICED_S = 2.0
"""A process that has closed its connections may take this long to end, when it writes a long report of its crash."""


class Processes(Protocol):
    """The processes of a broker that the probe has started."""

    def ended(self) -> str:
        """Return how a process ended, with the last lines of its log; empty while all run."""
        ...

    def restart(self) -> None:
        """Kill all that still run, and start them again. Raise TargetError."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """The broker under test."""

    address: Address
    processes: Processes | None = None  # its processes, if the probe has started them
    keeps_data: bool = False  # a restart loses nothing

    @property
    def can_restart(self) -> bool:
        return self.processes is not None and self.keeps_data

    def why_gone(self) -> str:
        """Return why the broker serves nobody any more, with its last log lines; empty if it serves."""
        if why := self._ended():
            return why
        try:
            meet(self.address)
        except NotKafka as error:
            return self._ended(END_NOTICED_S) or f"the broker serves nobody any more: {error}"
        return ""

    def _ended(self, within_s: float = 0.0) -> str:
        deadline = time.monotonic() + within_s
        while self.processes is not None:
            if (why := self.processes.ended()) or time.monotonic() >= deadline:
                return why
            time.sleep(0.02)
        return ""
