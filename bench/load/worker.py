"""A load worker that joins a benchmark of another machine (`crucible worker --join HOST:PORT`)."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.children import ends_with_me
from bench.locust.processes import MASTER_GONE_CODE, ROOT

LOCUSTFILE: Final = Path(__file__).with_name("locustfile.py")
PAUSE_S: Final = 1.0


class MasterGoneError(Exception):
    """The benchmark has vanished during a run. The message is one sentence."""


def serve(address: tuple[str, int], once: bool, progress: Callable[[str], None]) -> int:
    """Take part in one run after the other of whatever benchmark listens there, until a stop. Each run is a process of
    its own, which has Locust's log as its output. With ``once``, return the process's exit code after the first run.

    :raises MasterGoneError: the benchmark vanished during the first run, with ``once``.
    """
    host, port = address
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--worker"]
    command += ["--master-host", host, "--master-port", str(port), "--loglevel", "WARNING"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    while True:
        progress(f"waits for a benchmark at {host}:{port}")
        code = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, preexec_fn=ends_with_me(), check=False
        ).returncode
        sentence = f"a run has ended (exit code {code})"
        if code == MASTER_GONE_CODE:
            sentence = f"the benchmark at {host}:{port} is gone, and this worker's part of its run is lost."
        if once and code == MASTER_GONE_CODE:
            raise MasterGoneError(sentence)
        if once:
            return code
        progress(sentence)
        time.sleep(PAUSE_S)
