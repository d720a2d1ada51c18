"""Random faults for some time: kills, power losses, pauses, cuts in one or both directions, losses, resignations."""

from reference_broker.quorum.tests.quorum_world import SECOND_US, SimulatedQuorum


class Storm:
    """Without wiped nodes: a static quorum does not survive a majority that loses its votes."""

    def __init__(self, world: SimulatedQuorum, period_us: int = 400_000) -> None:
        self.world = world
        self.period_us = period_us
        self.calm = False

    def begin(self) -> None:
        self._inject_fault()

    def end(self) -> None:
        """Heal and start everything."""
        self.calm = True
        world = self.world
        world.network.heal()
        for process in list(world.processes.values()):
            if process.paused:
                world.resume(process.node_id)
        self._start_all()

    def _start_all(self) -> None:
        """Start the nodes repeatedly: some are still shutting down."""
        self.world.after(SECOND_US, self._start_all)
        down = [each for each in self.world.ids if each not in self.world.processes]
        if down:
            self.world.start(*down)

    def _inject_fault(self) -> None:
        if self.calm:
            return
        world, random = self.world, self.world.random
        faults = (
            self._kill,
            self._kill,
            self._start,
            self._start,
            self._start,
            self._pause,
            self._resume,
            self._resume,
            self._cut,
            self._cut,
            self._isolate,
            self._heal,
            self._lose,
            self._leave,
        )
        random.choice(faults)()
        world.after(1 + random.randrange(2 * self.period_us), self._inject_fault)

    def _pick(self, of: list[int]) -> int | None:
        return self.world.random.choice(of) if of else None

    def _victim(self) -> int | None:
        """Return a node, often the leader."""
        leader = self.world.leader
        if leader is not None and self.world.random.randrange(2):
            return leader.node_id
        return self._pick(sorted(self.world.processes))

    def _kill(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.world.kill(victim, power_loss=bool(self.world.random.randrange(2)))

    def _leave(self) -> None:
        victim = self._victim()
        if victim is not None and not self.world.processes[victim].paused:
            self.world.shut_down(victim)

    def _start(self) -> None:
        node = self._pick([each for each in self.world.ids if each not in self.world.processes])
        if node is not None:
            self.world.start(node)

    def _pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.world.pause(victim)

    def _resume(self) -> None:
        node = self._pick([process.node_id for process in self.world.processes.values() if process.paused])
        if node is not None:
            self.world.resume(node)

    def _cut(self) -> None:
        source, target = self.world.random.choice(self.world.ids), self.world.random.choice(self.world.ids)
        self.world.network.cut[source, target] = True
        if self.world.random.randrange(2):
            self.world.network.cut[target, source] = True

    def _isolate(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.world.network.isolate(victim)

    def _heal(self) -> None:
        self.world.network.heal()

    def _lose(self) -> None:
        self.world.network.loss = self.world.random.randrange(200)


def settle(world: SimulatedQuorum, ahead: int = 10) -> None:
    """Wait for one leader that all follow, and progress on every node, after a storm."""
    world.run_until(world.converged)
    wanted = max(process.quorum.log.end.offset for process in world.processes.values()) + ahead
    world.run_until(lambda: world.high_watermark() >= wanted)


def weather(seed: int, seconds: int = 12) -> SimulatedQuorum:
    """Run a storm drawn from the seed."""
    world = SimulatedQuorum(seed)
    voters = 1 + world.random.randrange(5)
    observers = world.random.randrange(3)
    world = SimulatedQuorum(seed, voters, observers)
    world.start()
    world.keep_appending(world.random.choice((10_000, 40_000, 200_000)))
    if world.random.randrange(3):
        world.keep_snapshotting()
    storm = Storm(world, world.random.choice((150_000, 400_000, 1_000_000)))
    storm.begin()
    world.run(seconds * SECOND_US)
    storm.end()
    settle(world)
    return world
