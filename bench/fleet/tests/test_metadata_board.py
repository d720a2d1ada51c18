"""Clients of one worker share metadata; none waits long for one that got no response."""

import pytest

from bench.fleet.behaviours.cluster import REQUEST_LIMIT_US, MetadataBoard
from bench.fleet.behaviours.protocol import ClientSettings, Request
from bench.fleet.behaviours.session_fetcher import SessionFetcher
from bench.fleet.tests.conftest import FakeBroker, FleetWorld
from bench.fleet.tests.test_clients_of_a_cluster import (
    HOT,
    assert_all_read_once_in_order,
    fetcher,
    operations,
    producer,
    settings,
    spread,
)
from reference_broker.wire.apis import ApiKey

__all__ = ["settings", "spread"]


def fetchers(settings: ClientSettings, count: int) -> list[SessionFetcher]:
    found = [fetcher("incremental", settings, f"fetcher-{number}") for number in range(count)]
    board = MetadataBoard(found[0].topics)
    for each in found:
        each.board = board
    return found


@pytest.mark.thorough
@pytest.mark.usefixtures("spread")
def test_twenty_simultaneous_clients_send_one_request(world: FleetWorld, settings: ClientSettings) -> None:
    world.start(*fetchers(settings, 20))
    world.run(2)
    assert len(operations(world, "metadata")) <= 2
    assert len({operation.process for operation in operations(world, "fetch")}) == 20


@pytest.mark.usefixtures("spread")
def test_missing_response_delays_others_by_its_timeout_only(world: FleetWorld, settings: ClientSettings) -> None:
    lost: list[Request] = []

    def lose_the_first(request: Request) -> str | None:
        if request.api_key == ApiKey.METADATA and not lost:
            lost.append(request)
            return "lose_response"
        return None

    world.fault = lose_the_first
    began = world.now_us
    world.start(*fetchers(settings, 5))
    world.run(8)
    first = [
        min(operation.invoke_us for operation in operations(world, "fetch") if operation.process == f"fetcher-{number}")
        for number in range(5)
    ]
    assert lost
    assert max(first) - began < REQUEST_LIMIT_US + 3_000_000


@pytest.mark.thorough
def test_moving_leaders_are_followed_with_few_requests(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings
) -> None:
    load, readers = producer(settings), fetchers(settings, 6)
    world.start(load, *readers)
    for turn in range(4):
        world.run(1)
        for number, where in enumerate(HOT):
            spread.move(where, (number + turn) % 3)
    world.run(2)
    world.stop(load)
    world.run(2)
    world.stop(*readers)
    world.run(20)
    for reader in readers:
        assert reader.process in world.finished
        assert_all_read_once_in_order(world, spread, reader.process)
    requests = [operation for operation in operations(world, "metadata") if operation.process != load.process]
    assert len(requests) < 6 * 4
