"""``crucible serve``: a cluster with the control API. It ends by a signal, or when no client is left."""

import json
import os
import select
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Final

from crucible_kafka.control.http_server import LOOPBACK, ControlServer
from crucible_kafka.library import Cluster, StartFailed
from reference_broker.serve.listeners import parse_address
from reference_broker.serve.process import StartError, hold_standard_descriptors, print_line

EXIT_CLEAN, EXIT_SETUP = 0, 2
CHECK_EVERY_S: Final = 0.2
"""Interval of the check that its parent lives."""
TOKEN_BYTES: Final = 24
STDIN: Final = 0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of one call."""

    nodes: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    control: str = "127.0.0.1:0"
    stay: bool = False
    """Whether to go on when the parent or stdin ends."""


def run_serve(options: ServeOptions) -> int:
    """Print the ready line, serve, and return the exit code. A signal comes as KeyboardInterrupt, also before that."""
    hold_standard_descriptors()
    parent = os.getppid()
    try:
        host, port = parse_address(options.control, "--control")
        if host not in LOOPBACK:
            raise StartError(f"--control: {host} is not the loopback interface: give 127.0.0.1:PORT.")
        kafka = Cluster(nodes=options.nodes, config=options.config).start()
        try:
            token = token_urlsafe(TOKEN_BYTES)
            server = ControlServer(kafka, host, port, token)
            try:
                ready = {"ready": True, "bootstrap_servers": kafka.bootstrap_servers, "control": server.url}
                print_line(json.dumps({**ready, "token": token}))
                with suppress(KeyboardInterrupt):
                    _wait(None if options.stay else parent)
            finally:
                server.close()
        finally:
            kafka.close()
    except (StartError, StartFailed, ValueError) as wrong:
        print(f"crucible serve: {wrong}", file=sys.stderr)  # noqa: T201
        return EXIT_SETUP
    return EXIT_CLEAN


def _wait(parent: int | None) -> None:
    """Wait for the end of the parent process or of stdin; if ``parent`` is None, for ever."""
    watches_stdin = parent is not None and _is_pipe(STDIN)
    while True:
        time.sleep(CHECK_EVERY_S)
        if parent is not None and os.getppid() != parent:
            return
        if watches_stdin and select.select([STDIN], [], [], 0)[0] and not os.read(STDIN, 1 << 16):
            return


def _is_pipe(descriptor: int) -> bool:
    """Return whether its end means that the process at the other end is gone. The null device has ended from the
    start."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
