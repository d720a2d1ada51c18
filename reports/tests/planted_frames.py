"""Frames before an external broker: one violation each of their guarantees, and legal near misses."""

from collections.abc import Callable, Mapping, Sequence

from reports.tests.history import Row

UNKNOWN, WRONG_EPOCH, UNKNOWN_SERVER_ERROR = 70, 71, -1
LARGEST = 2**31 - 1
NOW_NONE = "lost"
Lines = Mapping[int, tuple[int, int]]
"""By partition: the high watermark, and the bytes of records."""


class Wire:
    """Frames that passed the proxy. Each fetch gets its response before the next one, unless ``respond`` is called
    later.

    A session's ID is 7 if nothing else is said.
    """

    def __init__(self, nodes: int = 1) -> None:
        self.frames: list[Row] = []
        self.lines: list[Row] = []
        self._nodes = nodes
        self._last = 0
        self.us_each = 1000

    def fetch(
        self,
        epoch: int,
        lines: Lines | None = None,
        *,
        session: int = 7,
        response_session: int | None = None,
        error: int = 0,
        connection: int = 1,
        named: Sequence[int] = (),
        forgotten: Sequence[int] = (),
        what: str = "response",
        waits: bool = False,
    ) -> Row:
        seq = self._next()
        if response_session is None:
            response_session = 0 if error else session
        row: Row = {
            "node": 0,
            "nodes": self._nodes,
            "source": -1,
            "connection": connection,
            "client_id": f"client-{connection}",
            "api_key": 1,
            "api_version": 17,
            "session_id": session,
            "session_epoch": epoch,
            "what": what,
            "seq": seq,
            "at_us": seq * self.us_each,
            "error": error,
            "response_session_id": response_session,
            "throttle_ms": 0,
            "request_bytes": 60,
            "response_bytes": 60,
        }
        self.frames.append(row)
        for kind, partitions in (("named", named), ("forgotten", forgotten)):
            self.lines += [self._line(seq, kind, partition) for partition in partitions]
        for each, (watermark, size) in (lines or {}).items():
            line = self._line(seq, "returned", each)
            self.lines.append({**line, "high_watermark": watermark, "log_start_offset": 0, "record_bytes": size})
        if not waits:
            self.respond(row)
        return row

    def respond(self, row: Row) -> None:
        seq = -1 if row["what"] == NOW_NONE else self._next()
        row.update(response_seq=seq, until_us=self._last * self.us_each)

    def opens(self, session: int = 7, connection: int = 1) -> None:
        """A full fetch of the partitions 0 and 1 that gets a session."""
        self.fetch(0, {0: (5, 10), 1: (0, 0)}, session=0, response_session=session, connection=connection, named=(0, 1))

    def line_of(self, partition: int) -> Row:
        """The last line of that partition."""
        return next(line for line in reversed(self.lines) if line["partition"] == partition)

    def _line(self, seq: int, kind: str, partition: int) -> Row:
        numbers = {"offset": -1, "high_watermark": -1, "log_start_offset": -1, "error": 0, "record_bytes": 0}
        return {
            "seq": seq,
            "node": 0,
            "kind": kind,
            "topic": "t",
            "partition": partition,
            **numbers,
            "points_on": False,
        }

    def _next(self) -> int:
        self._last += 1
        return self._last


def goes_on(wire: Wire) -> None:
    """Return the frames of a session without any violation."""
    wire.opens()
    wire.fetch(1, {0: (6, 10)})
    wire.fetch(2)
    wire.fetch(-1, {0: (9, 10)}, session=0, response_session=0, connection=2, named=(0,))
    wire.fetch(3, {0: (9, 7)})
    wire.fetch(4, {2: (0, 0)}, named=(2,), forgotten=(1,))
    wire.fetch(5, {1: (0, 0)}, named=(1,))
    wire.fetch(6, what="response_taken")
    wire.fetch(7)


def wrong_epoch_accepted(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(7)


def right_epoch_refused(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, error=WRONG_EPOCH)


def wrong_epoch_refused(wire: Wire) -> None:
    """F-10: the session stays as it was."""
    goes_on(wire)
    wire.fetch(7, error=WRONG_EPOCH)
    wire.fetch(8)


def epoch_after_lost_response(wire: Wire) -> None:
    """Return whether the node has applied the request of the closed connection is unknown."""
    goes_on(wire)
    wire.fetch(8, what=NOW_NONE)
    wire.fetch(8, error=WRONG_EPOCH, connection=3)
    wire.fetch(9, connection=3)
    wire.fetch(10, connection=3, error=WRONG_EPOCH)


def two_at_a_time(wire: Wire) -> None:
    """Of two requests under way on two connections, either may come first."""
    goes_on(wire)
    one = wire.fetch(8, waits=True)
    one.update(error=WRONG_EPOCH, response_session_id=0)
    wire.fetch(8, connection=-2)
    wire.respond(one)
    wire.fetch(9)


def one_epoch_accepted_twice(wire: Wire) -> None:
    """Whichever came first, the other one had to be refused (F-10)."""
    goes_on(wire)
    one = wire.fetch(8, waits=True)
    wire.fetch(8, connection=-2)
    wire.respond(one)


def named_beside_another_request(wire: Wire) -> None:
    """A copy of an older request comes while a partition is named. What was named is known all the same."""
    goes_on(wire)
    one = wire.fetch(8, {3: (0, 0)}, named=(3,), waits=True)
    wire.fetch(7, error=WRONG_EPOCH, connection=-2)
    wire.respond(one)
    wire.fetch(9, {3: (4, 4)})


def sent_beside_another_request(wire: Wire) -> None:
    """The same, while a response has a change."""
    goes_on(wire)
    wire.fetch(-1, {0: (12, 10)}, session=0, response_session=0, connection=2, named=(0,))
    one = wire.fetch(8, {0: (12, 3)}, waits=True)
    wire.fetch(7, error=WRONG_EPOCH, connection=-2)
    wire.respond(one)
    wire.fetch(9)


def sent_though_forgotten_beside_another_request(wire: Wire) -> None:
    goes_on(wire)
    one = wire.fetch(8, forgotten=(0,), waits=True)
    wire.fetch(7, error=WRONG_EPOCH, connection=-2)
    wire.respond(one)
    wire.fetch(9, {0: (10, 5)})


def other_error_in_between(wire: Wire) -> None:
    """It does not show whether the epoch moved."""
    goes_on(wire)
    wire.fetch(8, error=UNKNOWN_SERVER_ERROR)
    wire.fetch(8, error=WRONG_EPOCH)


def wraps(wire: Wire) -> None:
    wire.opens()
    wire.fetch(LARGEST, error=WRONG_EPOCH)
    wire.fetch(1)


def closed_and_used(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(-1, response_session=0)
    wire.fetch(8)


def closed_and_refused(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(-1, response_session=0)
    wire.fetch(8, error=UNKNOWN)


def forgotten_by_the_node(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, error=UNKNOWN)


def forgotten_with_followers(wire: Wire) -> None:
    """F-18 (a): the session of a follower may have taken its place."""
    forgotten_by_the_node(wire)


def forgotten_after_two_minutes(wire: Wire) -> None:
    """F-18 (b), (c)."""
    wire.us_each = 20_000_000
    forgotten_by_the_node(wire)


def forgotten_on_a_new_connection(wire: Wire) -> None:
    """The node may have been restarted."""
    goes_on(wire)
    wire.fetch(8, error=UNKNOWN, connection=3)


def response_of_another_session(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, response_session=99)


def given_again(wire: Wire) -> None:
    goes_on(wire)
    wire.opens()


def given_again_by_another_process(wire: Wire) -> None:
    goes_on(wire)
    wire.opens(connection=3)


def given_to_a_client_without_a_session(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(-1, session=0, response_session=8, connection=2, named=(0,))


def full_fetch_keeps_its_session(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(0, {0: (9, 0)}, named=(0,))


def full_fetch_gets_a_new_session(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(0, {0: (9, 0)}, named=(0,), response_session=8)
    wire.fetch(1, {0: (9, 4)}, session=8)
    wire.fetch(2, {0: (11, 4)}, session=8, named=(0,))


def sent_again(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, {0: (9, 0)})


def sent_again_with_records(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, {0: (9, 4)})


def sent_again_after_an_error(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, {0: (9, 0)})
    wire.line_of(0)["error"] = 6
    wire.fetch(9, {0: (9, 0)})


def sent_of_another_replica(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, {0: (9, 0)})
    wire.line_of(0)["points_on"] = True


def sent_again_after_a_return(wire: Wire) -> None:
    """It was forgotten and came back, so no response had anything of it."""
    goes_on(wire)
    wire.fetch(8, forgotten=(0,))
    wire.fetch(9, {0: (9, 0)}, named=(0,))


def change_not_sent(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(-1, {0: (12, 10)}, session=0, response_session=0, connection=2, named=(0,))
    wire.fetch(8)
    wire.fetch(9, {0: (12, 3)})


def change_not_sent_while_throttled(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(-1, {0: (12, 10)}, session=0, response_session=0, connection=2, named=(0,))
    wire.fetch(8)["throttle_ms"] = 100
    wire.fetch(9, {0: (12, 3)})


def change_not_known_yet(wire: Wire) -> None:
    """Others get responses while the request is under way."""
    goes_on(wire)
    parked = wire.fetch(8, waits=True)
    wire.fetch(-1, {0: (12, 10)}, session=0, response_session=0, connection=2, named=(0,))
    wire.respond(parked)
    wire.fetch(9, {0: (12, 3)})


def change_of_what_was_forgotten(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, forgotten=(0,))
    wire.fetch(-1, {0: (12, 10)}, session=0, response_session=0, connection=2, named=(0,))
    wire.fetch(9)


def new_and_not_sent(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, named=(3,))


def named_again_and_not_sent(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, named=(0,))


def not_requested(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, {4: (2, 5)})


def sent_though_forgotten(wire: Wire) -> None:
    goes_on(wire)
    wire.fetch(8, forgotten=(0,))
    wire.fetch(9, {0: (10, 5)})


ORDER, LOST = "session-epoch-order", "session-lost"
EXACT, FOREIGN = "incremental-response-exact", "unrequested-partition"

PLANTED_FRAMES: dict[Callable[[Wire], None], set[str]] = {
    goes_on: set(),
    wrong_epoch_accepted: {ORDER},
    right_epoch_refused: {ORDER},
    wrong_epoch_refused: set(),
    epoch_after_lost_response: set(),
    two_at_a_time: set(),
    one_epoch_accepted_twice: {ORDER},
    named_beside_another_request: set(),
    sent_beside_another_request: set(),
    sent_though_forgotten_beside_another_request: {FOREIGN},
    other_error_in_between: set(),
    wraps: set(),
    closed_and_used: {ORDER},
    closed_and_refused: set(),
    forgotten_by_the_node: {LOST},
    forgotten_with_followers: set(),
    forgotten_after_two_minutes: set(),
    forgotten_on_a_new_connection: set(),
    response_of_another_session: {LOST},
    given_again: {LOST},
    given_again_by_another_process: set(),
    given_to_a_client_without_a_session: {LOST},
    full_fetch_keeps_its_session: {LOST},
    full_fetch_gets_a_new_session: set(),
    sent_again: {EXACT},
    sent_again_with_records: set(),
    sent_again_after_an_error: set(),
    sent_of_another_replica: set(),
    sent_again_after_a_return: set(),
    change_not_sent: {EXACT},
    change_not_sent_while_throttled: set(),
    change_not_known_yet: set(),
    change_of_what_was_forgotten: set(),
    new_and_not_sent: {EXACT},
    named_again_and_not_sent: set(),
    not_requested: {FOREIGN},
    sent_though_forgotten: {FOREIGN},
}
"""Planted frames, and the guarantees that they violate."""
