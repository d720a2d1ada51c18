"""A leader's view of its followers, compared with a model that walks over everything at each request."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.replication.leader.replicas import Followers, Proposal, Replica

MAX_LAG_MS = 1000


@dataclass(eq=False)
class Session:
    contact_us: int = 0


@dataclass(eq=False)
class Cached:
    session: Session = field(default_factory=Session)
    fetch_offset: int = 0
    log_start_offset: int = 0
    current_leader_epoch: int = -1
    live: bool = True
    is_fetched_unnamed: bool = True


def followers(isr: tuple[int, ...] = (1, 2, 3), replicas: tuple[int, ...] = (1, 2, 3), end: int = 0) -> Followers:
    made = Followers(1, 0, end, end)
    made.assign(replicas)
    made.begin_leadership(isr, 0)
    made.commit(isr)
    return made


def at(followers: Followers, **ends: int) -> None:
    for name, end in ends.items():
        followers.states[int(name[1:])].log_end_offset = end


def mark(followers: Followers, end: int, now_us: int = 0, eligible: bool = True) -> int:
    return followers.high_watermark(end, now_us, MAX_LAG_MS, lambda _: eligible)


@dataclass
class Walked:
    """Kafka's Replica: every accepted request updates every cached partition, one by one."""

    last_caught_up_us: int = 0
    leader_end_at_fetch: int = -1
    last_fetch_us: int = 0

    def fetched(self, offset: int, leader_end: int, now_us: int) -> None:
        if offset >= leader_end:
            self.last_caught_up_us = max(self.last_caught_up_us, now_us)
        elif offset >= self.leader_end_at_fetch:
            self.last_caught_up_us = max(self.last_caught_up_us, self.last_fetch_us)
        self.leader_end_at_fetch = max(leader_end, self.leader_end_at_fetch)
        self.last_fetch_us = now_us


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("request"), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([1, 300, 999, 1001, 5000])),
    ),
    max_size=60,
)


@pytest.mark.clause("F-22")
@given(OPERATIONS)
def test_contact_time_equals_walk_over_cached_partitions(operations: list[tuple[str, int]]) -> None:
    """A request names the partition when its offset moved; the leader checks it then, or when it has changed."""
    made, cached, walked = followers(isr=(1, 2), replicas=(1, 2)), Cached(), Walked()
    state = made.states[2]
    end = delivered = now_us = 0
    is_marked = True
    for what, much in operations:
        if what == "append":
            end += much
            made.appended(end)
            is_marked = True
        elif what == "wait":
            now_us += much * 1000
        else:
            is_named = cached.fetch_offset != delivered
            cached.fetch_offset = delivered
            cached.session.contact_us = now_us
            if is_named or is_marked:
                state.fetched(cached, end)
            walked.fetched(delivered, end, now_us)
            delivered = end if much else delivered
            is_marked = delivered < end  # A partition with undelivered records is checked again.
        expected = state.log_end_offset == end or now_us - walked.last_caught_up_us <= MAX_LAG_MS * 1000
        assert (made.lagging(now_us, MAX_LAG_MS) == ()) == expected


def test_high_watermark_is_smallest_end_of_maximal_isr() -> None:
    made = followers(isr=(1, 2))
    at(made, f2=7, f3=4)
    assert mark(made, 9, now_us=10**9) == 7
    made.propose(Proposal((1, 2, 3), (11, 12, 13), 0, 0, joining=3))
    assert made.isr == (1, 2)
    assert made.maximal_isr == (1, 2, 3)
    assert mark(made, 9, now_us=10**9) == 4
    made.withdraw()
    assert mark(made, 9, now_us=10**9) == 7


def test_proposed_shrink_takes_effect_once_committed() -> None:
    made = followers()
    at(made, f2=7, f3=4)
    made.propose(Proposal((1, 2), (11, 12), 0, 0))
    assert (made.maximal_isr, mark(made, 9)) == ((1, 2, 3), 4)
    made.commit((1, 2))
    assert made.maximal_isr == (1, 2)
    assert made.proposal is None
    assert mark(made, 9, now_us=10**9) == 7


@pytest.mark.parametrize(
    ("now_us", "eligible", "expected"), [(0, True, 4), (0, False, 7), (MAX_LAG_MS * 1000 + 1, True, 7)]
)
def test_eligible_caught_up_replica_holds_high_watermark(now_us: int, eligible: bool, expected: int) -> None:
    made = followers(isr=(1, 2))
    at(made, f2=7, f3=4)
    made.states[3].last_caught_up_us = 0
    assert mark(made, 9, now_us, eligible) == expected


def test_replica_out_of_sync_at_election_does_not_hold_high_watermark() -> None:
    made = followers(isr=(1, 2))
    at(made, f2=9)
    assert mark(made, 9) == 9


def test_is_under_min_isr_counts_leader() -> None:
    made = followers(isr=(1,))
    assert [made.is_under_min_isr(wanted) for wanted in (1, 2, 3, 4)] == [False, True, True, True]
    full = followers()
    assert [full.is_under_min_isr(wanted) for wanted in (3, 4)] == [False, False]


@pytest.mark.parametrize(
    ("end", "high_watermark", "epoch_start", "joins"),
    [(5, 5, 0, True), (4, 5, 0, False), (5, 3, 6, False), (6, 3, 6, True)],
)
def test_joining_replica_must_reach_high_watermark_and_epoch_start(
    end: int, high_watermark: int, epoch_start: int, joins: bool
) -> None:
    made = followers(isr=(1, 2), end=epoch_start)
    at(made, f3=end)
    assert made.may_join(made.states[3], high_watermark) is joins
    made.propose(Proposal((1,), (11,), 0, 0))
    assert not made.may_join(made.states[3], high_watermark), "one proposal at a time"


def test_low_watermark_excludes_dead_replicas() -> None:
    made = followers()
    made.states[2].log_start_offset, made.states[3].log_start_offset = 4, 1
    assert made.low_watermark(6, lambda _: True) == 1
    assert made.low_watermark(6, lambda one: one != 3) == 4
    assert made.low_watermark(6, lambda _: False) == 6


def test_new_assignment_keeps_state_of_remaining_replicas() -> None:
    made = followers()
    at(made, f2=5, f3=6)
    made.assign((1, 3, 4))
    made.commit((1, 3))
    assert {one: state.log_end_offset for one, state in made.states.items()} == {3: 6, 4: -1}
    assert ([each.replica_id for each in made.in_sync], [each.replica_id for each in made.out_of_sync]) == ([3], [4])


@pytest.mark.parametrize(("fetched", "expected"), [(0, 9), (7, 9), (9, 9)])
def test_added_replica_does_not_hold_back_high_watermark_while_it_copies_the_log(fetched: int, expected: int) -> None:
    made = followers(end=9)
    at(made, f2=9, f3=9)
    made.assign((1, 2, 3, 4))
    made.commit((1, 2, 3))
    made.states[4].fetched(Cached(Session(1), fetched), 9)
    assert mark(made, 9, now_us=2) == expected


def test_added_replica_holds_back_high_watermark_once_it_has_caught_up() -> None:
    made = followers(end=9)
    made.assign((1, 2, 3, 4))
    made.commit((1, 2, 3))
    made.states[4].fetched(Cached(Session(1), 9), 9)
    at(made, f2=10, f3=10)
    assert mark(made, 10, now_us=2) == 9


def test_new_epoch_restarts_lag_of_in_sync_replicas() -> None:
    made = followers()
    at(made, f2=5, f3=5)
    made.begin_epoch(1, 9, (1, 2), 10**9)
    made.commit((1, 2))
    assert (made.epoch_start_offset, made.leader_epoch) == (9, 1)
    assert made.lagging(10**9, MAX_LAG_MS) == ()
    assert made.states[3].last_caught_up_us < 0
    assert mark(made, 9, 10**9) == 5


def test_watching_stops_when_all_replicas_are_caught_up() -> None:
    made = followers(end=5)
    at(made, f2=5, f3=5)
    assert made.is_at_rest(5)
    assert not made.is_at_rest(6)
    made.propose(Proposal((1, 2), (11, 12), 0, 0))
    assert not made.is_at_rest(5)
    made.commit((1, 2))
    assert not made.is_at_rest(5)


def test_silent_session_keeps_no_replica_in_sync() -> None:
    state, cached = Replica(2, 0), Cached(fetch_offset=3)
    assert not state.has_fetched_lately(0, MAX_LAG_MS)
    state.fetched(cached, 3)
    assert state.has_fetched_lately(MAX_LAG_MS * 1000, MAX_LAG_MS)
    assert not state.has_fetched_lately(MAX_LAG_MS * 1000 + 1, MAX_LAG_MS)
    cached.session.contact_us = 5_000_000
    assert state.has_fetched_lately(6_000_000, MAX_LAG_MS)
    cached.is_fetched_unnamed = False
    assert not state.has_fetched_lately(6_000_000, MAX_LAG_MS)


@pytest.mark.clause("F-22")
def test_overtaken_full_fetch_does_not_replace_session_in_use() -> None:
    state = followers(end=3).states[2]
    used, overtaken = Cached(Session(1000), fetch_offset=3), Cached(Session(2000), fetch_offset=0)
    state.fetched(used, 3)
    state.fetched(overtaken, 3)
    state.return_to_former_session(3)
    assert state.log_end_offset == 0, "the session before it has not fetched since"
    used.session.contact_us = 3000
    state.return_to_former_session(3)
    assert (state.log_end_offset, state.last_caught_up_us) == (3, 3000)
    overtaken.session.contact_us = 2500
    state.return_to_former_session(3)
    assert state.log_end_offset == 3


@pytest.mark.clause("F-22")
@pytest.mark.parametrize("lost", ["closed", "restarted", "epoch"])
def test_session_with_less_state_is_not_resumed(lost: str) -> None:
    state = followers(end=3).states[2]
    before, latest = Cached(Session(1000), fetch_offset=3), Cached(Session(2000), fetch_offset=0)
    state.fetched(before, 3)
    if lost == "restarted":
        state.forget()
    elif lost == "epoch":
        state.begin_epoch(3, 1500, in_sync=True)
    state.fetched(latest, 3)
    before.live = lost != "closed"
    before.session.contact_us = 3000
    state.return_to_former_session(3)
    assert state.log_end_offset == 0
