"""Coroutines of steps with several waits: they last several events, and go on with the result of each wait.

asyncio is not used. ``run_coroutine`` runs a coroutine up to its first ``Wait``, and the callback of the
wait resumes it, up to the next one. While a coroutine waits, other events run and change what it
works on: the code after an ``await`` checks what it relies on.

``ports.slicing`` says when code is a coroutine, a ``Sliced`` generator or a callback.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from reference_broker.ports.node_ports import Ports, later
from reference_broker.ports.slicing import Sliced

T = TypeVar("T")


class Wait(Generic[T]):
    """Makes a function that takes a callback awaitable: ``error = await Wait(function)``.

    ``begin`` is called once, with the callback for the result. It calls that once, immediately or in a later event.
    """

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Callable[[T], None]], object]) -> None:
        self.begin = begin

    def __await__(self) -> Generator["Wait[T]", T, T]:
        return (yield self)


def _always() -> bool:
    return True


def run_coroutine(coroutine: Coroutine[Wait[Any], Any, None], is_current: Callable[[], bool] = _always) -> None:
    """Run the coroutine up to its first ``Wait``. Each result resumes it, up to the next one.

    Work that may be cancelled passes ``is_current``. Once that returns False the coroutine ends at its next ``await``:
    the wait does not begin, and a wait that has begun does not resume it.
    """

    def resume(result: object) -> None:
        if not is_current():
            coroutine.close()
            return
        try:
            wait = coroutine.send(result)
        except StopIteration:
            return
        if is_current():
            wait.begin(resume)
        else:
            coroutine.close()

    resume(None)


def pause(ports: Ports, delay_us: int) -> Wait[None]:
    """Wait for ``delay_us``, in any case until another event."""
    return Wait(lambda resume: later(ports, delay_us, lambda: resume(None)))


async def result_of(ports: Ports, work: Sliced[T]) -> T:
    """Run the first slice of the work now, and each further one in an event of its own. Return the work's result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await pause(ports, 0)


class Future(Generic[T]):
    """The result of work that has begun. It may be awaited once, before or after it is there."""

    __slots__ = ("_result", "_resume")

    def __init__(self) -> None:
        self._result: tuple[T] | None = None
        self._resume: Callable[[T], None] | None = None

    def set_result(self, result: T) -> None:
        """Resume the coroutine that awaits the result, or keep it for the one that will. Call this once."""
        if self._resume is None:
            self._result = (result,)
        else:
            self._resume(result)

    def __await__(self) -> Generator[Wait[T], T, T]:
        return (yield Wait(self.add_done_callback))

    def add_done_callback(self, callback: Callable[[T], None]) -> None:
        """Call ``callback`` with the result, now or when it is there. For code that does nothing else after it, instead
        of an ``await``."""
        if self._result is None:
            self._resume = callback
        else:
            callback(self._result[0])


def completed(result: T) -> Future[T]:
    """Return a future whose result is there."""
    future = Future[T]()
    future.set_result(result)
    return future


def start(work: Coroutine[Wait[Any], Any, T]) -> Future[T]:
    """Run the coroutine as ``run_coroutine`` does. Return its result, for code that awaits it later."""
    future = Future[T]()

    async def run() -> None:
        future.set_result(await work)

    run_coroutine(run())
    return future
