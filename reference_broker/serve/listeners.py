"""The sockets of listeners, and their advertised addresses.

Each failure has a sentence that says what to do.
"""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference_broker.configuration.listeners import ANY_ADDRESS, DEFAULT_NAME, Endpoint
from reference_broker.serve.process import StartError, is_out_of_descriptors

if TYPE_CHECKING:
    from reference_broker.configuration.broker_config import BrokerConfig


ACCEPTS_PER_TURN = 128
"""The number of connections of a listener that are accepted in one turn of the event loop, which takes some 4 ms."""
NO_ROOM_PAUSE_S = 0.1
"""The pause in accepting after a connection found no free descriptor, or no memory of the system."""
DEFAULT_LISTEN = "127.0.0.1:9092"


@dataclass(frozen=True, slots=True)
class BoundListener:
    """A listener with its socket."""

    name: str
    host: str
    socket: socket.socket
    option: str
    """The option or setting that gave the address."""

    @property
    def shown(self) -> str:
        return shown_address(self.host, bound_port(self.socket))

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.socket.getsockname()[0].partition("%")[0]).is_loopback


def bind_listeners(listen: str | None, config: "BrokerConfig") -> tuple[BoundListener, ...]:
    """Open one socket for each of the ``listeners``, or the single one of ``--listen``. Raise StartError, and leaves
    no socket open then."""
    plan = config.listener_plan()
    if plan.listeners and listen is not None:
        raise StartError("--listen and listeners are both given: give one of them.")
    wanted = [(each.name, each.host or "0.0.0.0", each.port, "listeners") for each in plan.listeners]
    if not wanted:
        wanted = [(DEFAULT_NAME, *parse_address(listen or DEFAULT_LISTEN, "--listen"), "--listen")]
    bound: list[BoundListener] = []
    try:
        for name, host, port, option in wanted:
            bound.append(BoundListener(name, host, listening_socket(host, port, option), option))
    except StartError:
        for listener in bound:
            listener.socket.close()
        raise
    return tuple(bound)


def advertised_endpoints(
    bound: Sequence[BoundListener], config: "BrokerConfig", advertise: str | None
) -> tuple[Endpoint, ...]:
    """Return the addresses that the node registers, one for each listener of brokers. Raise StartError if others
    cannot connect to one of them."""
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
        Endpoint(_reachable(listener), bound_port(listener.socket), listener.name)
        for listener in bound
        if listener.name not in plan.controllers
    )


class Acceptor:
    """Accepts connections on a socket until ``close``, which closes the socket, too.

    uvloop's servers accept one connection in each turn of the event loop. Among thousands that come at once, the last
    one would wait for seconds. So this accepts up to ACCEPTS_PER_TURN, and then does not look at the socket until the
    turn is over: while more than 1,024 sockets are ready, uvloop looks at each of them up to 48 times in one turn.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.Protocol], listening: socket.socket
    ) -> None:
        self._loop = loop
        self._protocol = protocol
        self._listening = listening
        self._connecting: set[asyncio.Task[None]] = set()
        loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stop accepting. A second call does nothing."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as failure:  # The peer has gone already, or there is no room.
                if is_out_of_descriptors(failure) or failure.errno in (errno.ENOBUFS, errno.ENOMEM):
                    self._pause()
                    return
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._connect(accepted))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        self._loop.remove_reader(self._listening)
        self._loop.call_soon(self._resume)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted)
        except OSError:  # The peer has gone already.
            accepted.close()

    def _pause(self) -> None:
        """Accept nothing for a moment. The system queues connections meanwhile."""
        self._loop.remove_reader(self._listening)
        self._loop.call_later(NO_ROOM_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)


def _reachable(listener: BoundListener) -> str:
    """Return the host of a listener, or this machine's name if it listens on all interfaces, as Kafka does."""
    if listener.host not in ANY_ADDRESS:
        return listener.host
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError as failure:
        raise StartError(
            f"{listener.option}: {listener.host} stands for all interfaces, and this machine's name {name!r} is "
            "unknown; say with --advertise or advertised.listeners where others reach this node."
        ) from failure
    return name


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``. An IPv6 address is in brackets. With port 0 the system chooses. Raise StartError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise StartError(f"{option} is {text!r}: give HOST:PORT, such as 127.0.0.1:9092.")
    return host.strip("[]"), int(port)


def listening_socket(host: str, port: int, option: str) -> socket.socket:
    """Return a socket that listens, so that clients can connect before they are accepted. Raise StartError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as failure:
        raise StartError(f"{option}: the host {host!r} is unknown; give an address of this machine.") from failure
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(1024)
    except OSError as failure:
        sock.close()
        shown = shown_address(host, port)
        if failure.errno == errno.EADDRINUSE:
            fix = "stop the process that listens there or give another port"
            raise StartError(f"{option}: {shown} is in use; {fix}.") from failure
        raise StartError(f"{option}: cannot listen on {shown} ({failure.strerror}); give another address.") from failure
    return sock


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound_port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port
