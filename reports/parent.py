"""Ends a process with the one that started it, also if that is killed and can tidy nothing up."""

import os
import signal
import time
from threading import Thread

LOOKS_EVERY_S = 0.5


def end_with_parent(parent: int) -> None:
    """Kills this process's group, Java included, once the process ``parent`` (its ID), which started this one, is dead.
    The group must be its own."""

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(LOOKS_EVERY_S)
        os.killpg(0, signal.SIGKILL)

    Thread(target=wait, daemon=True).start()
