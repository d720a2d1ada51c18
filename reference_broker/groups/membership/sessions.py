"""Session timeouts: a member that is not heard of in time is given up.

Hearing of a member costs one store into its session. One timer a member, set anew only when it fires or when the
deadline comes nearer: a thousand heartbeats a second set no timers.
"""

from collections.abc import Callable

from reference_broker.groups.membership.group_run import GroupRun, Session
from reference_broker.ports.node_ports import Ports


class Sessions:
    """``expired(run, member_id)``: nothing was heard of a member, or of one that was given an ID, in time."""

    __slots__ = ("_expired", "_ports")

    def __init__(self, ports: Ports, expired: Callable[[GroupRun, str], None]) -> None:
        self._ports = ports
        self._expired = expired

    def expect(self, run: GroupRun, member_id: str, timeout_ms: int) -> None:
        """From now on it may be silent for this long."""
        deadline_us = self._ports.now().mono_us + timeout_ms * 1000
        session = run.sessions.get(member_id)
        if session is None:
            session = run.sessions[member_id] = Session(deadline_us, deadline_us, 0)
            self._arm(run, member_id, session)
            return
        session.deadline_us = deadline_us
        if deadline_us < session.fires_us:
            self._ports.cancel_timer(session.timer)
            self._arm(run, member_id, session)

    def forget(self, run: GroupRun, member_id: str) -> None:
        """It is no member any more."""
        session = run.sessions.pop(member_id, None)
        if session is not None:
            self._ports.cancel_timer(session.timer)

    def forget_all(self, run: GroupRun) -> None:
        for session in run.sessions.values():
            self._ports.cancel_timer(session.timer)
        run.sessions.clear()

    def _arm(self, run: GroupRun, member_id: str, session: Session) -> None:
        session.fires_us = session.deadline_us
        session.timer = self._ports.set_timer(session.deadline_us, lambda: self._fired(run, member_id, session))

    def _fired(self, run: GroupRun, member_id: str, session: Session) -> None:
        if self._ports.now().mono_us < session.deadline_us:
            self._arm(run, member_id, session)
            return
        del run.sessions[member_id]
        self._expired(run, member_id)
