"""Runs the rows of ``crucible bench``. With a peer, both brokers are measured in the same run and take turns."""

import pkgutil
import subprocess
import tempfile
from importlib import import_module
from pathlib import Path

from bench import rows
from bench.children import children, end_children, stop_behind
from bench.peers.kafka import HEAP, SETTINGS
from bench.peers.node import PeerError
from bench.peers.systems import systems
from bench.rows.context import MEASURES, BenchRun, Progress
from bench.rows.options import ROWS, Options
from bench.rows.results import Results
from reference_broker.blocking.transport import TransportError

FAILURES = (PeerError, TransportError, OSError, subprocess.TimeoutExpired)
"""Raised when a broker cannot be had, refuses a request, hangs or goes away."""

for _file in pkgutil.iter_modules(rows.__path__):
    import_module(f"{rows.__name__}.{_file.name}")  # A file that measures declares its rows.
assert MEASURES.keys() == set(ROWS), "bench/rows declares other rows than options.ROWS names"


def run(progress: Progress, options: Options) -> Results:
    """Measure the rows that ``options`` choose. ``Results.missing`` says which could not be measured, and why."""
    results = Results(options.peer, settings=_settings(options.peer))
    earlier = children()
    for row in options.chosen():
        with tempfile.TemporaryDirectory(prefix="crucible-bench-", ignore_cleanup_errors=True) as scratch:
            try:
                MEASURES[row](BenchRun(results, systems(options.peer), Path(scratch), options, progress))
            except FAILURES as failure:  # The other rows took minutes, so their figures are kept.
                if (stop := stop_behind(failure)) is not None:
                    end_children(earlier)
                    raise stop from None
                results.missing[row] = f"{type(failure).__name__}: {failure}"
                progress(f"{row} could not be measured: {results.missing[row]}")
            except KeyboardInterrupt:
                end_children(earlier)
                raise
    return results


def _settings(peer: str | None) -> dict[str, str]:
    """Return the peer's settings that differ from its defaults."""
    return {**SETTINGS, "java": HEAP} if peer else {}
