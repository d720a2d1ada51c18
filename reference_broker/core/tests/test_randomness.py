"""The node's random numbers: the same for the same seed and purpose, in every interpreter."""

from hashlib import sha256
from itertools import count

import pytest

from reference_broker.core.randomness import KeyedRandom
from reference_broker.core.tests.node_world import NodeWorld, fetch_request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest


@pytest.mark.clause("F-2")
def test_session_ids_are_hashes_of_secret() -> None:
    """A generator whose state can be computed from its output, such as a Mersenne Twister, would draw other IDs."""
    world = NodeWorld(seed=77)
    world.create("t")
    key = sha256(b"77/fetch-sessions").digest()
    draws = (int.from_bytes(sha256(key + number.to_bytes(8, "big")).digest(), "big") >> 225 for number in count(1))
    for _ in range(50):
        request = FetchRequest(session_id=0, session_epoch=0, max_wait_ms=0, topics=fetch_request("t").topics)
        response = world.request(ApiKey.FETCH, 12, request)
        assert response.session_id == next(1 + draw for draw in draws if draw < 2**31 - 1)


def test_same_seed_and_purpose_draw_same_numbers() -> None:
    one, two = KeyedRandom(7, "sessions"), KeyedRandom(7, "sessions")
    assert [one.getrandbits(31) for _ in range(50)] == [two.getrandbits(31) for _ in range(50)]


def test_sequence_is_stable_across_releases() -> None:
    assert KeyedRandom(7, "sessions").getrandbits(64) == 13724761474081301839


@pytest.mark.parametrize("other", [(8, "sessions"), (7, "topics")])
def test_other_seed_or_purpose_draws_other_numbers(other: tuple[int, str]) -> None:
    assert KeyedRandom(7, "sessions").getrandbits(128) != KeyedRandom(*other).getrandbits(128)


@pytest.mark.parametrize("bits", [0, 1, 31, 64, 255, 256, 257, 1000])
def test_getrandbits_stays_within_its_bits_and_uses_them(bits: int) -> None:
    source = KeyedRandom(1, "bits")
    drawn = [source.getrandbits(bits) for _ in range(200)]
    assert all(0 <= value < 1 << bits for value in drawn)
    if bits:
        assert any(value >> (bits - 1) for value in drawn)


def test_derived_draws_are_in_range_and_spread() -> None:
    source = KeyedRandom(2, "range")
    drawn = [source.randint(1, 6) for _ in range(600)]
    assert sorted(set(drawn)) == [1, 2, 3, 4, 5, 6]
    assert min(drawn.count(face) for face in range(1, 7)) > 50
    below = [source.randrange(3) for _ in range(300)]
    assert sorted(set(below)) == [0, 1, 2]


def test_draw_from_empty_range_raises() -> None:
    with pytest.raises(ValueError, match="nothing lies in 5 up to below 5"):
        KeyedRandom(2, "range").randrange(5, 5)


def test_shuffle_keeps_elements_and_reaches_every_order() -> None:
    source, seen = KeyedRandom(3, "shuffle"), dict[tuple[int, ...], None]()
    for _ in range(100):
        items = [1, 2, 3]
        source.shuffle(items)
        seen[tuple(items)] = None
    assert sorted(seen) == [(1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1)]
