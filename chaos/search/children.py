"""Work in child processes, a new one for each part of the work.

A world is one large cycle of objects. A long-lived process would have to look for the garbage of each, which takes a
twelfth of a search's time. A child just ends, and its memory goes with it. It is forked, so it has all modules at once.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

FORK = get_context("fork")

Part = TypeVar("Part")
Result = TypeVar("Result")


class ChildDiedError(Exception):
    """A child ended without a result. It has written its reason to stderr, unless it was killed."""


def in_children(
    work: Callable[[Part], Result],
    parts: Sequence[Part],
    processes: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """Yield ``work(part)`` for each part, in the order of ``parts``, with at most ``processes`` children at a time.

    This process does ``meanwhile`` in place of the last of the first children. What it builds and caches is forked with
    all later ones. Raise ChildDiedError. Children that still run when the caller stops iterating are ended.
    """
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    done: dict[int, Result] = {}
    begun = 0

    def fill(most: int) -> None:
        nonlocal begun
        while begun < len(parts) and len(running) < most:
            reader, child = _started(work, parts[begun])
            running[reader] = begun, child
            begun += 1

    try:
        fill(processes - 1)
        meanwhile()
        for number in range(len(parts)):
            while number not in done:
                fill(processes)
                ready = wait(list(running))
                for each in [each for each in running if each in ready]:
                    place, child = running[each]
                    done[place] = _received(each, child)
                    del running[each]
            yield done.pop(number)
    finally:
        for reader, (_, child) in running.items():
            reader.close()
            child.terminate()
            child.join()


def _started(work: Callable[[Part], Result], part: Part) -> tuple[Connection, BaseProcess]:
    reader, writer = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_work, args=(work, part, writer))
    child.start()
    writer.close()
    return reader, child


def _work(work: Callable[[Part], Result], part: Part, writer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent gets Ctrl-C too, and ends its children.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    writer.send(work(part))


def _received(reader: Connection, child: BaseProcess) -> Any:
    try:
        return reader.recv()
    except EOFError:
        child.join()
        raise ChildDiedError(f"a child process ended with exit code {child.exitcode}") from None
    finally:
        reader.close()
        child.join()
