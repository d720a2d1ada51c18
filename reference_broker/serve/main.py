"""``crucible broker``: runs a node. It takes the options of the command line, and returns the exit code."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reference_broker.serve.log_lines import report_on_stderr
from reference_broker.serve.process import StartError, hold_standard_descriptors, return_large_blocks
from reference_broker.serve.start_up import collect_nothing, leave_out

if TYPE_CHECKING:
    from reference_broker.serve.server import Wrapper

STDIN = 0


def run_broker(
    listen: str | None,
    data: str | Path,
    node_id: int = 0,
    config: Mapping[str, str] | Sequence[str] = (),
    advertised: str | None = None,
    metrics_listen: str | None = None,
    wrapper: "Wrapper | None" = None,
    wall_offset_ms: int = 0,
    started: Callable[[], None] | None = None,
) -> int:
    """Run one node, which is broker and controller, until SIGTERM. Return the exit code: 0 for a clean end, 2 for a
    node that cannot start, 4 for a crash.

    ``listen`` is None if ``config`` has ``listeners``, or for 127.0.0.1:9092. The node uses the whole process: its
    signals, stdout for the ready line, and stderr for the log. ``config`` has Kafka's names, as a mapping or as a list
    of KEY=VALUE. ``wrapper`` is what fault injection and tracing add. ``started`` is called once end signals are
    handled.
    """
    hold_standard_descriptors()
    return_large_blocks()
    leave_out()
    collect_nothing()
    try:
        from reference_broker.configuration.broker_config import BrokerConfig, ConfigError
        from reference_broker.serve.server import Options, Server, print_ready

        try:
            parsed = BrokerConfig.parse(config if isinstance(config, Mapping) else _pairs(config))
        except ConfigError as wrong:
            raise StartError(str(wrong)) from wrong
        options = Options(listen, Path(data), node_id, parsed, advertised, metrics_listen, wall_offset_ms)
        return Server(options, print_ready, wrapper, started).run()
    except StartError as wrong:
        report_on_stderr(f"crucible broker: {wrong}")
        return 2


def _pairs(words: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise StartError(f"--config is {word!r}: give KEY=VALUE, such as num.partitions=4.")
        pairs[key.strip()] = value.strip()
    return pairs


def end_with_stdin() -> None:
    """End this process as SIGTERM does when its stdin ends.

    The parent process holds the other end of that pipe. The system closes it even if the parent is killed, so no node
    outlives it.
    """

    def wait() -> None:
        while os.read(STDIN, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def main() -> int:
    """Run ``python -m reference_broker.serve.main``, which has the options of ``crucible broker``."""
    import argparse

    parser = argparse.ArgumentParser(prog="crucible broker", description="One combined node.")
    parser.add_argument("--listen", metavar="HOST:PORT", help="default: 127.0.0.1:9092, or what listeners says")
    parser.add_argument("--data", required=True, metavar="DIR")
    parser.add_argument("--node-id", type=int, default=0)
    parser.add_argument("--config", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--advertised", metavar="HOST:PORT")
    parser.add_argument("--metrics", metavar="HOST:PORT")
    parser.add_argument("--end-with-stdin", action="store_true", help="End when stdin ends, as at SIGTERM.")
    given = parser.parse_args()
    started = end_with_stdin if given.end_with_stdin else None
    return run_broker(
        given.listen, given.data, given.node_id, given.config, given.advertised, given.metrics, started=started
    )


if __name__ == "__main__":
    sys.exit(main())
