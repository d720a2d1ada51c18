"""Keeps what large requests and answers took from staying with the process after they are gone."""

import ctypes
import sys
from typing import Final

MAPPED_FROM_BYTES: Final = 5 << 18
"""Blocks of this size and more are mapped on their own, and returned to the system when they are freed. The pieces of
an ordinary fetch (a megabyte of each partition) are smaller and stay fast."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def return_large_blocks() -> None:
    """Sets glibc's thresholds for good.

    Left alone, glibc raises them with each large block that is freed, up to 32 MiB. Answers of 20 MiB then come from
    the heap and leave holes there: a node took 410 MiB where its connections held 192. Elsewhere this does nothing.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # Another C library.
        return
    mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
    mallopt(_M_TRIM_THRESHOLD, 2 * MAPPED_FROM_BYTES)
