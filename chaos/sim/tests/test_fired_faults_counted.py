"""A fault counts as fired once, when it has reached its target."""

from collections import Counter

from chaos.faults.node_requests import NodeRequest
from chaos.sim.links import CLIENTS
from chaos.sim.one_seed import play_seed
from chaos.sim.stepwise_faults import STAYS_US, Intruder
from chaos.sim.tests.test_peers import Pair
from reference_broker.core.events import Request
from reference_broker.metadata.identifiers import client_id_of
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest
from scenarios import loader

REQUESTS = [
    NodeRequest(ApiKey.FETCH, 17, client_id_of(0, bytes(16)), FetchRequest(session_id=0, session_epoch=-1), "old")
] * 3


def test_response_to_a_second_copy_is_no_second_hit() -> None:
    verdict, world = play_seed(loader.find("02-duplicated-request"), 1)
    kinds = Counter(row.kind for row in world.faults)
    assert kinds["request_duplicated_response"]
    assert sum(hits for _, hits in verdict.faults) == kinds["request_duplicated"]


def intruded(lost: bool) -> tuple[list[str], int]:
    """Return the reports of the intruder, and how many requests the node saw."""
    pair, reports = Pair(), list[str]()
    link = pair.links.between(CLIENTS, 1)
    link.up.breaks_frames = lost
    Intruder(
        pair.network, 1, REQUESTS, lambda: reports.append("arrived"), lambda responses: reports.append(f"{responses}")
    )
    pair.run(2 * STAYS_US)
    return reports, len(pair.receiver.of(Request))


def test_forged_requests_count_once_they_reach_the_node() -> None:
    assert intruded(lost=False) == (["arrived", "3"], 3)


def test_forged_requests_that_are_lost_after_the_connection_was_taken_do_not_count() -> None:
    assert intruded(lost=True) == (["0"], 0)
