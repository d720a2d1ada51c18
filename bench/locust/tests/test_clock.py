"""Offsets of clocks by round trips, and the bounds of their error."""

import random

from bench.locust.clock import ClockOffset, Round, WallClock, best, offset_of


def round_trip(offset_us: int, there_us: int, back_us: int, at_us: int = 1_000_000) -> Round:
    """A round whose ways took so long, with a master whose clock is ahead by ``offset_us``."""
    return Round(at_us, at_us + there_us + offset_us, at_us + there_us + back_us)


def test_error_covers_ways_of_any_length() -> None:
    chance = random.Random(1)
    for _ in range(1_000):
        offset_us = chance.randrange(-9_000_000, 9_000_000)
        each = round_trip(offset_us, chance.randrange(5_000), chance.randrange(5_000))
        assert abs(each.offset_us - offset_us) <= each.error_us


def test_shortest_round_is_kept() -> None:
    rounds = [round_trip(5_000_000, 9_000, 100), round_trip(5_000_000, 150, 130), round_trip(5_000_000, 100, 4_000)]
    assert best(rounds) == rounds[1]
    assert (best(rounds).offset_us, best(rounds).error_us) == (5_000_010, 140)


def test_clocks_that_drift_apart_in_a_run_are_less_certain() -> None:
    before, after = round_trip(5_000_000, 100, 100), round_trip(5_003_000, 200, 200)
    assert offset_of(before, before) == ClockOffset(5_000_000, 100)
    assert offset_of(before, after) == ClockOffset(5_000_000, 3_200)


def test_corrected_clock_shows_the_masters_time() -> None:
    own = WallClock(lambda: 100_000_000_000, shift_s=-5.0)
    assert own.own_us() == 95_000_000
    own.correct(Round(own.own_us(), 100_000_000, own.own_us()).offset_us)
    assert own.now_ns() == 100_000_000_000
