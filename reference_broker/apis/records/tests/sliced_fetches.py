"""Fetches whose work takes a slice for each partition, as if each of them were a very large one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from reference_broker.apis.records import fetch, first_revision
from reference_broker.apis.records.tests.fetch_machine import Fetching
from reference_broker.apis.tests.fetch_world import FakeCall, FetchWorld
from reference_broker.replication.partitions import Partition
from reference_broker.sessions import fetch_session
from reference_broker.wire.fetch import FetchRequest


@contextmanager
def slices_of_one() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (fetch, fetch_session, first_revision):
            stack.enter_context(patch.object(module, "SESSION_PARTITIONS_PER_SLICE", 1))
        stack.enter_context(patch.object(fetch, "READ_PARTITIONS_PER_SLICE", 1))
        yield


class SettledWorld(FetchWorld):
    """A world that runs all slices of a request before anything else happens."""

    def send(self, request: FetchRequest, version: int = 12, client_id: str = "c", connection: int = 1) -> FakeCall:
        call = super().send(request, version, client_id, connection)
        self.pass_ms(0)
        return call


class InSlices(Fetching):
    """The same random worlds in slices, of which the model knows nothing."""

    def __init__(self) -> None:
        self._patched = ExitStack()
        self._patched.enter_context(slices_of_one())
        super().__init__()

    def new_world(self, **settings: int) -> FetchWorld:
        return SettledWorld(**settings)  # type: ignore[arg-type]

    def step(self, act: Callable[[], object], touched: Partition | None = None, arrived: bool = False) -> None:
        def done() -> Any:
            act()
            self.world.pass_ms(0)

        super().step(done, touched, arrived)

    def end_slices(self) -> None:
        self.world.pass_ms(0)

    def teardown(self) -> None:
        self._patched.close()
