"""Waits for Locust's web page, on which somebody starts, watches and stops the load by hand.

Each start makes new clients of the same spec. Their names begin with the number of the start. Users beyond the spec's
clients have nothing to do and end at once. The history goes on from start to start. When the fleet ends, all partitions
are read to their end, so the history can be judged as any other.
"""

import socket
import time
from typing import Final

from bench.fleet.processes import LocustProcesses, WorkerDiedError

PAGE_S: Final = 60


def wait_for_page(page: tuple[str, int], locust: LocustProcesses) -> None:
    """Waits until somebody listens there.

    :raises WorkerDiedError: nobody listened in time, or a Locust process ended (perhaps because the port is taken).
    """
    deadline_s = time.monotonic() + PAGE_S
    while time.monotonic() < deadline_s:
        locust.report()
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(page) == 0:
                return
        time.sleep(0.1)
    raise WorkerDiedError(f"Locust's web page did not come up at {page[0]}:{page[1]} within {PAGE_S} s.")
