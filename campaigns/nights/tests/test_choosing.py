"""The scenario that the search plays next. Nothing is played here."""

from collections import Counter

from campaigns.nights.choosing import FEW_SEEDS, MAX_RED_SEEDS, TURN_S, Played, Standings, seeds_at_once

CLAUSES = {"common": ("F-1",), "common too": ("F-1",), "alone": ("F-1", "X-1"), "no clause": ()}
LONG_S = 3600.0


def known(*plays: Played, clauses: dict[str, tuple[str, ...]] | None = None) -> Standings:
    """All scenarios had enough seeds for an hour some nights ago, and then these plays."""
    standings = Standings(clauses or CLAUSES)
    standings.take(Played(clause, 3, 1_000, 0, 3600.0) for clause in standings.clauses)
    standings.take(plays)
    return standings


def choices(standings: Standings, count: int) -> Counter[str]:
    """Return the choices of this many turns, if all that is played passes."""
    chosen = Counter[str]()
    for _ in range(count):
        choice = standings.choose({}, LONG_S)
        assert choice is not None
        chosen[choice[0]] += 1
        standings.take([Played(choice[0], 0, 10, 0, TURN_S)])
    return chosen


def test_scenario_with_fewest_seeds_is_first() -> None:
    standings = Standings(CLAUSES)
    standings.take([Played(each, 1, FEW_SEEDS, 0, 60.0) for each in ("common", "no clause")])
    standings.take([Played("common too", 1, 3, 0, 60.0), Played("alone", 1, 2, 0, 60.0)])
    assert standings.choose({}, LONG_S) == ("alone", "few seeds")
    assert standings.choose({"alone": 1}, LONG_S) == ("common too", "few seeds")


def test_scenario_that_alone_exercises_a_clause_gets_more_time() -> None:
    chosen = choices(known(), 300)
    assert chosen["alone"] > 1.3 * chosen["common"]
    assert min(chosen[clause] for clause in CLAUSES) >= 1


def test_one_that_failed_lately_is_played_more_often_and_one_that_failed_long_ago_is_not() -> None:
    lately = choices(known(Played("common", 1, 100, 9, 60.0)), 60)["common"]
    long_ago = choices(known(Played("common", 25, 100, 9, 60.0)), 60)["common"]
    never = choices(known(), 60)["common"]
    assert lately > 2 * never
    assert long_ago <= never + 2


def test_one_that_was_red_often_enough_tonight_waits_for_tomorrow() -> None:
    standings = Standings(CLAUSES)
    standings.take(Played(clause, 1, 100, 0, 600.0) for clause in CLAUSES)
    standings.take([Played("common", 1, 40, 20, 100.0), Played("common", 0, 10, MAX_RED_SEEDS - 1, 10.0)])
    assert standings.choose({}, LONG_S) == ("common", "found much")
    standings.take([Played("common", 0, 1, 1, 1.0)])
    assert choices(standings, 60)["common"] == 0


def test_scenario_longer_than_remaining_time_is_not_started() -> None:
    standings = Standings({"long": (), "short": ()})
    standings.take([Played("long", 1, FEW_SEEDS, 0, FEW_SEEDS * 60.0), Played("short", 1, FEW_SEEDS, 0, 8.0)])
    assert standings.choose({}, 30.0) == ("short", "covered least")
    assert standings.choose({}, 0.5) is None


def test_running_play_counts_as_played() -> None:
    first = known().choose({}, LONG_S)
    assert first is not None
    assert known().choose({first[0]: 50}, LONG_S) != first


def test_removed_scenario_does_not_count() -> None:
    standings = known(Played("gone", 1, 10, 3, 60.0))
    assert "gone" not in standings.known


def test_turn_has_seeds_that_fit_and_one_if_duration_is_unknown() -> None:
    assert seeds_at_once(None, LONG_S) == 1
    assert seeds_at_once(2.0, LONG_S) == int(TURN_S / 2)
    assert seeds_at_once(2.0, 7.0) == 3
    assert seeds_at_once(60.0, LONG_S) == 1
    assert seeds_at_once(0.0, LONG_S) == 32
