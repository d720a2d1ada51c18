"""The sockets of a node's listeners, and the addresses that it tells others."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference_broker.configuration.listeners import ANY_ADDRESS, DEFAULT_NAME
from reference_broker.serve.addresses import bound_port, listening_socket, parse_address, shown_address
from reference_broker.serve.errors import StartError

if TYPE_CHECKING:
    from reference_broker.configuration.broker_config import BrokerConfig
    from reference_broker.controller.activation import Endpoint

ACCEPTS_PER_TURN = 8
"""How many connections of a listener are accepted between two looks at the other sockets."""
BACKLOG = 1024
"""How many connections the system keeps until they are accepted."""
DEFAULT_LISTEN = "127.0.0.1:9092"


@dataclass(frozen=True, slots=True)
class Door:
    """A socket that listens. ``name`` is that of its listener. ``option`` is where a person gave the address."""

    name: str
    host: str
    socket: socket.socket
    option: str

    @property
    def shown(self) -> str:
        return shown_address(self.host, bound_port(self.socket))

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.socket.getsockname()[0].partition("%")[0]).is_loopback


def open_doors(listen: str | None, config: "BrokerConfig") -> tuple[Door, ...]:
    """Opens one socket for each of the ``listeners``, or the single one of ``--listen``. Raises StartError, and leaves
    no socket open then."""
    plan = config.listener_plan()
    if plan.listeners and listen is not None:
        raise StartError("--listen and listeners are both given: give one of them.")
    wanted = [(each.name, each.host or "0.0.0.0", each.port, "listeners") for each in plan.listeners]
    if not wanted:
        wanted = [(DEFAULT_NAME, *parse_address(listen or DEFAULT_LISTEN, "--listen"), "--listen")]
    doors: list[Door] = []
    try:
        for name, host, port, option in wanted:
            doors.append(Door(name, host, listening_socket(host, port, option), option))
    except StartError:
        for door in doors:
            door.socket.close()
        raise
    return tuple(doors)


def told_endpoints(doors: Sequence[Door], config: "BrokerConfig", advertise: str | None) -> "tuple[Endpoint, ...]":
    """The addresses that the node registers, one for each listener of brokers. Raises StartError if one of them is no
    address that others can connect to."""
    from reference_broker.controller.activation import Endpoint  # Late: it loads much, and the sockets come first.

    plan = config.listener_plan()
    if advertise is not None:
        if plan.listeners:
            raise StartError("--advertise and listeners are both given: give advertised.listeners.")
        host, port = parse_address(advertise, "--advertise")
        if host in ANY_ADDRESS:
            raise StartError(f"--advertise is {advertise!r}: give an address that others can connect to.")
        return (Endpoint(host, port),)
    if plan.advertised:
        return tuple(Endpoint(each.host, each.port, each.name) for each in plan.advertised)
    return tuple(
        Endpoint(_reachable(door), bound_port(door.socket), door.name)
        for door in doors
        if door.name not in plan.controllers
    )


async def accepting(
    loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.Protocol], listening: socket.socket
) -> list[asyncio.Server]:
    """Accepts connections until all returned servers are closed, which own the socket.

    In each turn of its loop, uvloop accepts one connection for each descriptor. Among thousands that come at once, the
    last one would wait for seconds. So the socket is watched under ACCEPTS_PER_TURN descriptors.
    """
    watched = [listening, *(listening.dup() for _ in range(ACCEPTS_PER_TURN - 1))]
    return [await loop.create_server(protocol, sock=each, backlog=BACKLOG) for each in watched]


def _reachable(door: Door) -> str:
    """The host of a listener, or this machine's name if it listens on all interfaces. Kafka takes that name, too."""
    if door.host not in ANY_ADDRESS:
        return door.host
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError as failure:
        raise StartError(
            f"{door.option}: {door.host} stands for all interfaces, and this machine's name {name!r} is unknown; say "
            "with --advertise or advertised.listeners where others reach this node."
        ) from failure
    return name
