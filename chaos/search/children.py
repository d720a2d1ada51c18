"""Work that child processes share.

A world is one large cycle of objects. A long-lived process would have to collect the garbage of each, which takes a
twelfth of a search's time. A child process ends instead, which frees its memory. It is forked, so it has all modules
from the start.
"""

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

FORK = get_context("fork")

Part = TypeVar("Part")
Result = TypeVar("Result")


class ChildDiedError(Exception):
    """A child ended without a result. It has written its reason to stderr, unless it was killed."""


@dataclass(slots=True)
class _Child:
    process: BaseProcess
    number: int
    """place of the part that it works on"""
    parts_left: int
    """number of parts that it may do after that one"""


def in_children(
    work: Callable[[Part], Result],
    parts: Sequence[Part],
    processes: int,
    *,
    parts_each: int = 1,
    first_here: bool = False,
) -> Iterator[Result]:
    """Yield ``work(part)`` for each part, in the order of ``parts``, with at most ``processes`` children at a time.

    A child gets its parts one by one, and ends after ``parts_each`` of them. With ``first_here`` this process does the
    first part, in place of the last of the first children. Its caches are forked with all later children. Raise
    ChildDiedError. Children that still run when the caller stops iterating are ended.
    """
    running: dict[Connection, _Child] = {}
    done: dict[int, Result] = {}
    left = deque(range(first_here, len(parts)))

    def fill(most: int) -> None:
        while left and len(running) < most:
            connection, process = _started(work, parts, parts_each)
            running[connection] = _Child(process, left.popleft(), parts_each - 1)
            connection.send(running[connection].number)

    try:
        if first_here and parts:
            fill(processes - 1)
            yield work(parts[0])
        for number in range(first_here, len(parts)):
            while number not in done:
                fill(processes)
                for connection in [each for each in wait(list(running)) if isinstance(each, Connection)]:
                    child = running[connection]
                    done[child.number] = _received(connection, child.process)
                    if left and child.parts_left:
                        child.number, child.parts_left = left.popleft(), child.parts_left - 1
                        connection.send(child.number)
                    else:
                        del running[connection]
                        _end(connection, child)
            yield done.pop(number)
    finally:
        for connection, child in running.items():
            connection.close()
            child.process.terminate()
            child.process.join()


def _started(work: Callable[[Part], Result], parts: Sequence[Part], parts_each: int) -> tuple[Connection, BaseProcess]:
    own, of_child = FORK.Pipe()
    process = FORK.Process(target=_work, args=(work, parts, parts_each, of_child))
    process.start()
    of_child.close()
    return own, process


def _work(work: Callable[[Part], Result], parts: Sequence[Part], parts_each: int, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent gets Ctrl-C too, and ends its children.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for _ in range(parts_each):
        try:
            number: int | None = connection.recv()
        except EOFError:  # The parent is gone.
            return
        if number is None:
            return
        connection.send(work(parts[number]))


def _end(connection: Connection, child: _Child) -> None:
    if child.parts_left:
        connection.send(None)  # Closing is not enough, because its siblings have copies of this end.
    connection.close()
    child.process.join()


def _received(connection: Connection, process: BaseProcess) -> Any:
    try:
        return connection.recv()
    except EOFError:
        process.join()
        raise ChildDiedError(f"a child process ended with exit code {process.exitcode}") from None
