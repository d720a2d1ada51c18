"""The process that a node runs in: its descriptors, the memory allocator, and the signals that end it."""

import ctypes
import errno
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RESERVED_DESCRIPTORS: Final = 48
"""Standard streams, the lock, listening sockets (several each), connections to other nodes, folders that are listed."""
MIN_CONNECTIONS: Final = 8
MAX_SYNC_DESCRIPTORS: Final = 1024
MAX_OPEN_FILES: Final = 65_536
"""The soft limit of open files is not raised beyond this."""

MAPPED_FROM_BYTES: Final = 5 << 18
"""Blocks of this size and more are mapped on their own, and returned to the system when they are freed. The pieces of
an ordinary fetch (a megabyte of each partition) are smaller and stay fast."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StartError(Exception):
    """The node cannot start. The message is one sentence that says what to do. The exit code is 2."""


def hold_standard_descriptors() -> None:
    """Open the null device for each of the descriptors 0, 1 and 2 that was closed when the process started.

    Otherwise the next file or socket that is opened would get that number, and a log line could end up in it.
    """
    for wanted in (0, 1, 2):
        try:
            os.fstat(wanted)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == wanted, f"descriptor {wanted} is free, but the system gave {opened}"


def print_line(line: str) -> bool:
    """Write a line to stdout. Return False if it cannot be written, since the node serves all the same."""
    if sys.stdout is None:
        return False
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except (OSError, ValueError):
        return False
    return True


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one, but not above MAX_OPEN_FILES. Return the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


def open_files_limit() -> int:
    """Return the soft limit of open files as it is, at most MAX_OPEN_FILES."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else min(soft, MAX_OPEN_FILES)


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """The largest number of descriptors for each use."""

    files: int
    syncs: int
    connections: int


def plan_descriptors(limit: int, wanted_files: int = 0) -> DescriptorPlan:
    """Share out ``limit`` descriptors (RLIMIT_NOFILE). ``wanted_files`` is ``crucible.max.open.files``; 0: a quarter.

    Connections get the rest. The event loop accepts all that wait before it can refuse any, so for a moment there
    may be more; then ``OpenFiles`` and ``FileSyncs`` make room for what the node needs.
    """
    files = wanted_files or max(16, limit // 4)
    syncs = max(8, min(MAX_SYNC_DESCRIPTORS, limit // 8))
    return DescriptorPlan(files, syncs, max(MIN_CONNECTIONS, limit - files - syncs - RESERVED_DESCRIPTORS))


def is_out_of_descriptors(failure: BaseException) -> bool:
    """Return whether something failed only because the process, or the machine, has no free descriptor at the
    moment."""
    return isinstance(failure, OSError) and failure.errno in (errno.EMFILE, errno.ENFILE)


def return_large_blocks() -> None:
    """Set glibc's thresholds for good.

    Left alone, glibc raises them with each large block that is freed, up to 32 MiB. Responses of 20 MiB then come from
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


def await_end_signals(ended: Callable[[], None]) -> None:
    """Call ``ended`` when the first of these signals comes, in a thread of its own.

    The signals stay blocked for good in this thread and in those that it starts from now on. So no handler runs in the
    middle of other code, a flood of signals costs nothing, and none that comes while the interpreter ends can kill a
    process that has ended cleanly. Child processes inherit what is blocked: ``let_signals_end_me`` is for those that
    do not call this function themselves.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup makes it ignored.
    awaited = END_SIGNALS[:-1] if ignored else END_SIGNALS
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)

    def wait() -> None:
        signal.sigwait(awaited)
        ended()

    threading.Thread(target=wait, name="end-signals", daemon=True).start()


def let_signals_end_me() -> None:
    """Let the signals end a new process, before it becomes another program."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
