"""The descriptors 0, 1 and 2 of the process. A node must not depend on who reads them."""

import os
import sys


def hold_standard_descriptors() -> None:
    """Opens the null device for each of 0, 1 and 2 that was closed when the process started.

    Otherwise the next file or socket that is opened would get that number, and a log line could end up in it.
    """
    for wanted in (0, 1, 2):
        try:
            os.fstat(wanted)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == wanted, f"descriptor {wanted} is free, but the system gave {opened}"


def print_line(line: str) -> bool:
    """Writes a line to stdout. Returns False if it cannot be written, since the node serves all the same."""
    if sys.stdout is None:
        return False
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        return False
    return True
