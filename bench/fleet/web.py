"""Locust's web page with this fleet's users: somebody starts, watches and stops the load by hand.

Each start makes new clients of the same spec, their names begin with the number of the start. Users beyond the spec's
clients have nothing to do and end at once. The history goes on from start to start and is read to the end when the
fleet ends, so that it can be judged as any other.
"""

import socket
import time
from typing import Final

from bench.fleet.processes import LocustProcesses, WorkerDiedError

PAGE_S: Final = 60


def wait_for_page(page: tuple[str, int], locust: LocustProcesses) -> None:
    """Until somebody listens there.

    :raises WorkerDiedError: nobody does, or a Locust process ended (the port may be taken: see its log).
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
