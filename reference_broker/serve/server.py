"""One node as a process: bind, lock, build, recover, serve, stop."""

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from reference_broker.core.events import Hooks
from reference_broker.ports.disk import Disk, DiskError
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE
from reference_broker.serve.disk import DataFolder, FileDisk
from reference_broker.serve.listeners import (
    Acceptor,
    BoundListener,
    advertised_endpoints,
    bind_listeners,
    bound_port,
    listening_socket,
    parse_address,
    shown_address,
)
from reference_broker.serve.log_lines import LogLines, describe_bug
from reference_broker.serve.metrics_endpoint import MetricsProtocol
from reference_broker.serve.process import (
    DescriptorPlan,
    StartError,
    await_end_signals,
    open_files_limit,
    plan_descriptors,
    print_line,
    raise_open_files_limit,
)
from reference_broker.serve.start_up import collect_seldom, warm_up

if TYPE_CHECKING:
    from reference_broker.configuration.broker_config import BrokerConfig
    from reference_broker.configuration.listeners import Endpoint
    from reference_broker.core.node import Node
    from reference_broker.serve.driver import Driver, DriverFaultActions, LifecycleObserver, Meter

SHUTDOWN_LIMIT_S = 30.0
"""A clean shutdown that takes longer than this is cut short; the next start recovers."""
IDLE_CHECK_EVERY_S = 5.0
PATIENCE_S = 5.0
"""A start that takes longer logs what it waits for, and repeats that each time twice as long has passed."""

EXIT_CLEAN = 0
EXIT_SETUP = 2
EXIT_CRASH = 4


@dataclass(frozen=True, slots=True)
class Attached:
    """What a wrapper adds: hooks in their order, and the disk that the node gets.

    ``serve.driver`` has the protocols of ``watchers`` and ``meter``.
    """

    hooks: Sequence[Hooks]
    disk: Disk
    watchers: "Sequence[LifecycleObserver]" = ()
    meter: "Meter | None" = None


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How fault injection and tracing attach to a node."""

    attach: "Callable[[DriverFaultActions, Disk], Attached]"
    """Called before the node is built."""
    built: "Callable[[Node], None]"
    """Called after the node is built, before it starts."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``crucible broker``. Addresses are HOST:PORT."""

    listen: str | None
    """None if the configuration has ``listeners``, or for 127.0.0.1:9092."""
    data: Path
    node_id: int
    config: "BrokerConfig"
    advertised: str | None = None
    metrics_listen: str | None = None
    wall_offset_ms: int = 0


class Server:
    """Runs once. ``announce`` gets the ready line's fields."""

    def __init__(
        self,
        options: Options,
        announce: Callable[[dict[str, object]], None],
        wrapper: Wrapper | None = None,
        started: Callable[[], None] | None = None,
        guest_log: LogLines | None = None,
    ) -> None:
        """``started`` is called once end signals are handled.

        With ``guest_log`` the node is a guest in the process of another program, whose signals, limits and garbage
        collector it leaves alone. It logs there, and ``stop`` or ``abandon`` end it.
        """
        self._options = options
        self._started = started
        self._announce = announce
        self._wrapper = wrapper
        self._is_guest = guest_log is not None
        self._log = guest_log or LogLines(options.node_id)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exit_code = EXIT_CLEAN
        self._refusal = ""
        self._driver: Driver
        self._node: Node
        self._listening: list[Acceptor] = []
        self._metrics_listening: asyncio.Server | None = None
        self._stopping = False
        self._descriptors: DescriptorPlan
        self._ended: asyncio.Event

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT, and return the exit code. Raise StartError."""
        bound = bind_listeners(self._options.listen, self._options.config)
        sockets = [listener.socket for listener in bound]
        metrics: socket.socket | None = None
        folder: DataFolder | None = None
        try:
            endpoints = advertised_endpoints(bound, self._options.config, self._options.advertised)
            folder = DataFolder(self._options.data)
            if self._options.metrics_listen is not None:
                metrics = listening_socket(*parse_address(self._options.metrics_listen, "--metrics"), "--metrics")
                sockets.append(metrics)
            # Many uvloop loops in one process, each on a thread of its own, leave the heap in pieces: 14 KB a start.
            new_loop = asyncio.new_event_loop if self._is_guest else _new_loop
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve(bound, endpoints, metrics))
        except DiskError as failure:
            why = failure.strerror or failure
            raise StartError(f"The data directory {self._options.data} cannot be used: {why}.") from failure
        finally:
            for sock in sockets:
                sock.close()
            if folder is not None:
                folder.release()
            self._log.flush()
        if self._refusal:
            raise StartError(self._refusal)
        return self._exit_code

    def stop(self) -> None:
        """Begin a clean shutdown, from any thread. Before the server runs, and after its end, this does nothing."""
        self._call_soon(self._stop)

    def abandon(self) -> None:
        """End at once, from any thread, and leave the files as SIGKILL would: nothing more is synced or marked."""
        self._call_soon(self._end_now)

    def _call_soon(self, step: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed, since the node has ended by itself.
                self._loop.call_soon_threadsafe(step)

    def _warn_beyond_loopback(self, bound: Sequence[BoundListener], endpoints: "Sequence[Endpoint]") -> None:
        """Warn of listeners beyond the loopback interface, which is this broker's only protection."""
        open_to_others = [f"{listener.name}://{listener.shown}" for listener in bound if not listener.is_loopback]
        if open_to_others:
            self._log.warn(
                "listens_beyond_loopback",
                listeners=",".join(open_to_others),
                advertised=",".join(f"{each.name}://{shown_address(each.host, each.port)}" for each in endpoints),
                reason="there is no TLS, no authentication and no ACL: every client of these listeners may do anything",
            )

    async def _serve(
        self, bound: Sequence[BoundListener], endpoints: "Sequence[Endpoint]", metrics: socket.socket | None
    ) -> None:
        loop = self._loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._callback_failed)
        self._ended = asyncio.Event()
        if not self._is_guest:
            await_end_signals(self.stop)  # Before any other thread starts: they inherit what is blocked.
        self._warn_beyond_loopback(bound, endpoints)
        config = self._options.config
        limit = open_files_limit() if self._is_guest else raise_open_files_limit()
        self._descriptors = plan_descriptors(limit, config.crucible_max_open_files)
        disk = FileDisk(self._options.data, self._descriptors.files)
        if not disk.exists(CLEAN_SHUTDOWN_FILE):
            disk.distrust_cache()
        if self._started is not None:
            self._started()
        try:
            self._build(loop, disk, endpoints)
            await self._live(loop, bound, metrics)
        finally:
            disk.close()

    async def _live(
        self, loop: asyncio.AbstractEventLoop, bound: Sequence[BoundListener], metrics: socket.socket | None
    ) -> None:
        try:
            self._driver.start()
            self._progress()
            loop.call_later(PATIENCE_S, self._log_waiting, PATIENCE_S)
            await self._listens.wait()
            if not self._stopping:
                await self._accept_connections(loop, bound, metrics)
            await self._is_ready.wait()
            if not self._stopping:
                self._announce_ready(loop, bound, metrics)
            await self._ended.wait()
        finally:
            self._stop_accepting()
            if self._metrics_listening is not None:
                self._metrics_listening.close()
            self._driver.end()

    def _build(self, loop: asyncio.AbstractEventLoop, disk: FileDisk, endpoints: "Sequence[Endpoint]") -> None:
        # Late imports: the node and the schemas load while nothing else waits for them.
        from reference_broker.apis.registry import SERVED
        from reference_broker.configuration.consistency import doubtful
        from reference_broker.core.node import Node
        from reference_broker.serve.driver import Clock, Driver, DriverFaultActions
        from reference_broker.serve.memory_budget import MemoryBudget
        from reference_broker.serve.node_log import RequestLog
        from reference_broker.serve.peers import dial_map, largest_reply_bytes

        options, config = self._options, self._options.config
        for setting, reason in doubtful(config):
            self._log.warn("doubtful_setting", setting=setting, reason=reason)
        self._listens, self._is_ready = asyncio.Event(), asyncio.Event()
        clock = Clock(options.wall_offset_ms)
        fault_actions = DriverFaultActions(clock, self._log)
        attached = Attached((), disk) if self._wrapper is None else self._wrapper.attach(fault_actions, disk)
        seed = SystemRandom().getrandbits(63)
        self._node = Node(options.node_id, config, attached.disk, seed, endpoints=endpoints)
        if self._wrapper is not None:
            self._wrapper.built(self._node)
        self._driver = Driver(
            self._node,
            disk,
            clock,
            self._log,
            loop,
            SERVED,
            config.socket_request_max_bytes,
            self._max_connections(),
            self._progress,
            self._failed,
            self._refused,
            dial_map(config, options.node_id, self._node.registered_address),
            largest_reply_bytes(config),
            self._descriptors.syncs,
        )
        request_log = (RequestLog(self._log),) if config.crucible_request_log_enable else ()
        self._driver.hooks = (*attached.hooks, *request_log)
        self._driver.watchers = tuple(attached.watchers)
        self._driver.meter = attached.meter
        self._driver.listeners = config.listener_plan()
        self._driver.memory = MemoryBudget(config.queued_max_request_bytes, self._node.metrics)
        if self._wrapper is None:  # With fault injection, a bug ends the node.
            self._node.on_bug = self._driver.request_failed
        if config.remote_log_storage_system_enable:
            from reference_broker.serve.object_store import StoreThreads, opened

            store, limit_s = opened(config, options.data), config.crucible_remote_store_timeout_ms / 1000
            self._driver.store = StoreThreads(store, loop, self._driver.handle_event, limit_s)
        possible = self._descriptors.connections
        self._driver.max_connections = lambda: min(self._node.broker.config.max_connections, possible)
        fault_actions.driver = self._driver

    def _max_connections(self) -> int:
        """``max.connections``, or fewer if the process may not open so many descriptors."""
        wanted, possible = self._options.config.max_connections, self._descriptors.connections
        if possible < wanted:
            log = self._log.warn if "max.connections" in self._options.config.given else self._log.info
            log("fewer_connections", limit=possible, reason="the limit of open files (ulimit -n) is low")
        return min(wanted, possible)

    async def _accept_connections(
        self, loop: asyncio.AbstractEventLoop, bound: Sequence[BoundListener], metrics: socket.socket | None
    ) -> None:
        """Accept connections, since a quorum forms before any node is ready. Until then, requests of clients close
        them."""
        if not self._is_guest:
            collect_seldom()
        several = bool(self._options.config.listeners)
        for listener in bound:
            protocol = partial(self._driver.protocol, listener.name if several else "")
            self._listening.append(Acceptor(loop, protocol, listener.socket))
        if metrics is not None:
            open_ones: set[MetricsProtocol] = set()
            self._metrics_listening = await loop.create_server(
                lambda: MetricsProtocol(self._text, open_ones), sock=metrics
            )

    def _stop_accepting(self) -> None:
        for server in self._listening:
            server.close()

    def _announce_ready(
        self, loop: asyncio.AbstractEventLoop, bound: Sequence[BoundListener], metrics: socket.socket | None
    ) -> None:
        self._driver.watched = False
        ready: dict[str, object] = {
            "ready": True,
            "listen": bound[0].shown,
            "node_id": self._options.node_id,
        }
        if self._options.config.listeners:
            ready["listeners"] = {listener.name: listener.shown for listener in bound}
        if metrics is not None:
            metrics_host = parse_address(self._options.metrics_listen or "", "--metrics")[0]
            ready["metrics"] = shown_address(metrics_host, bound_port(metrics))
        self._log.info("ready", listen=ready["listen"])
        self._announce(ready)
        if not self._is_guest:
            collect_seldom()
            warm_up(loop, collect_seldom)
        loop.call_later(IDLE_CHECK_EVERY_S, self._close_idle)

    def _log_waiting(self, waited_s: float) -> None:
        if not self._is_ready.is_set():
            self._log.warn("not_ready", waited_s=round(waited_s), reason=_waits_for(self._node))
            asyncio.get_running_loop().call_later(waited_s, self._log_waiting, 2 * waited_s)

    def _text(self) -> str:
        from reference_broker.metrics.metrics import prometheus_text

        return prometheus_text(self._node.metrics)

    def _progress(self) -> None:
        """Follow the node's start and stop. Called after each event meanwhile."""
        if self._node.listening:
            self._listens.set()
        if self._node.ready:
            self._is_ready.set()
        if self._stopping and self._node.stopped and not self._ended.is_set():
            self._log.info("stopped")
            self._ended.set()

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._log.info("stopping")
        self._end_waits()
        self._stop_accepting()
        asyncio.get_running_loop().call_later(SHUTDOWN_LIMIT_S, self._shutdown_too_long)
        self._driver.shut_down()
        self._progress()

    def _shutdown_too_long(self) -> None:
        self._log.warn("shutdown_cut_short", limit_s=SHUTDOWN_LIMIT_S)
        self._ended.set()

    def _failed(self, reason: str) -> None:
        self._log.error("crashed", reason=reason)
        self._exit_code = EXIT_CRASH
        self._end_now()

    def _callback_failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception of a callback of the event loop. asyncio would write it to stderr, and might block there."""
        bug = context.get("exception")
        reason = describe_bug(bug) if isinstance(bug, Exception) else str(context.get("message"))
        self._log.limited("error", "callback_failed", reason=reason)

    def _refused(self, reason: str) -> None:
        self._refusal = reason
        self._end_now()

    def _end_now(self) -> None:
        self._end_waits()
        self._stopping = True
        self._ended.set()

    def _end_waits(self) -> None:
        """End the waits for the node's start, since its end came first."""
        self._listens.set()
        self._is_ready.set()

    def _close_idle(self) -> None:
        self._driver.close_idle(self._options.config.connections_max_idle_ms)
        if not self._stopping:
            asyncio.get_running_loop().call_later(IDLE_CHECK_EVERY_S, self._close_idle)


def print_ready(fields: dict[str, object]) -> None:
    """Write the ready line to stdout, as JSON."""
    print_line(json.dumps(fields))


def _waits_for(node: "Node") -> str:
    """Why the node does not serve clients yet, and what must happen for that."""
    if not node.listening:
        return "its logs are being recovered"
    quorum = node.broker.quorum
    if quorum.leader_id < 0:
        voters = ", ".join(str(voter) for voter in quorum.voters)
        return (
            f"no leader is known: a majority of the voters {voters} must run, and be reached at their addresses in "
            "controller.quorum.voters"
        )
    if not node.broker.quorum_node.lifecycle.is_registered:
        return f"the controller, node {quorum.leader_id}, must register it, which takes a majority of the voters"
    return "its partitions are being opened, or the controller has not let it in"


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
