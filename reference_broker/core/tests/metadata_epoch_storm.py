"""Random faults on whole nodes with the metadata epoch: the content of an epoch is the same everywhere.

Requests and responses take their time, some of them long. Nodes are killed, started, shut down, cut off; topics are
created and deleted, some in transactions; the feature is disabled and enabled; a node may restart with code without the
epoch.
"""

from datetime import timedelta
from random import Random
from typing import Any

from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest
from kio.static.primitive import i8, i16, i32Timedelta

from reference_broker.core.events import Event, Note, Send
from reference_broker.core.node import NodeFailed
from reference_broker.core.tests.cluster_world import ClusterWorld, Member
from reference_broker.core.tests.node_world import create_request, delete_request
from reference_broker.metadata.cache import MetadataCache
from reference_broker.metadata.features import METADATA_EPOCH_FEATURE, sends_metadata_epoch
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.node_ports import Channel
from reference_broker.quorum.node_files import StartRefused
from reference_broker.wire.apis import ApiKey

TOPICS = 10
LONGEST_US = 1_500_000
"""Of a link, one way."""

Content = tuple[Any, ...]


def content_of(known: MetadataCache | MetadataImage) -> Content:
    """Return the part of a Metadata response that is made of it."""
    brokers = known.brokers if isinstance(known.brokers, tuple) else tuple(known.brokers.values())
    live = sorted((broker.broker_id, broker.host, broker.port, broker.rack) for broker in brokers if not broker.fenced)
    topics = sorted(
        (name, topic.topic_id, tuple((p.leader, p.leader_epoch, p.isr, p.replicas) for p in topic.partitions))
        for name, topic in known.topics.items()
    )
    return tuple(live), tuple(topics)


class Watched(ClusterWorld):
    """``contents``: the content of each epoch. ``places``: the offset of each epoch in the log, and its controller
    epoch."""

    def __init__(self, random: Random, nodes: int, **config: str) -> None:
        self.random = random
        self.slow_links: dict[tuple[int, int, bool], int] = {}
        self.contents: dict[int, Content] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.applied: dict[int, tuple[object, int]] = {}
        self._seen: dict[int, MetadataCache] = {}
        self._open: dict[int, bool] = {}
        super().__init__(nodes, **config)

    def link_us(self, here: int, there: int, channel: Any) -> int:
        return self.slow_links.get((here, there, channel is Channel.METADATA), 100) + self.random.randrange(2_000)

    def _give(self, member: Member, event: Event) -> None:
        """Handle the event. Code without the epoch ends where it would have to send one."""
        try:
            super()._give(member, event)
        except (NodeFailed, StartRefused) as failure:
            if member.node.broker.config.crucible_metadata_epoch_enable or "does not know" not in str(failure):
                raise
            self.kill(self._number_of(member))

    def _take(self, member: Member, effects: Any) -> None:
        effects = tuple(effects)
        number = self._number_of(member)
        for effect in effects:
            if isinstance(effect, Note) and effect.what == "metadata_epoch":
                self._written(member, dict(effect.fields))
            elif isinstance(effect, Note) and effect.what == "update_metadata_applied":
                self._took(number, member, int(dict(effect.fields)["epoch"]))
            elif isinstance(effect, Note) and effect.what == "metadata_appended":
                self._open[number] = dict(effect.fields)["kind"] in ("begin", "batch")
            elif isinstance(effect, Send) and effect.api_key == ApiKey.UPDATE_METADATA:
                self._sent(number, effect)
        super()._take(member, effects)
        self._look(number, member)

    def _written(self, member: Member, note: dict[str, int | str]) -> None:
        epoch, place = int(note["epoch"]), (int(note["offset"]), int(note["controller_epoch"]))
        known = self.places.setdefault(epoch, place)
        assert known == place, f"epoch {epoch} is at {known} and {place}"
        for other, (offset, _) in self.places.items():
            assert (other < epoch) == (offset < place[0]) or other == epoch, f"{other} at {offset}, {epoch} at {place}"
        content = member.node.broker.controller.broadcast._content
        if content is not None and content.metadata_epoch == epoch:
            self._check("the log", epoch, content_of(content.image))

    def _sent(self, number: int, send: Send) -> None:
        body: Any = send.body
        assert not self._open[number], f"epoch {body.metadata_epoch} is sent inside a transaction"
        place = self.places.get(body.metadata_epoch)
        assert place is not None, f"epoch {body.metadata_epoch} is sent before it is committed"
        assert place[1] == body.controller_epoch, f"epoch {body.metadata_epoch} of {place[1]} is sent by another"

    def _took(self, number: int, member: Member, epoch: int) -> None:
        incarnation, last = self.applied.get(number, (member, -1))
        if incarnation is member:
            assert epoch > last, f"node {number} applied {epoch} after {last}"
        self.applied[number] = (member, epoch)

    def _look(self, number: int, member: Member) -> None:
        if not member.node.listening:
            return
        cache = member.node.broker.metadata
        if self._seen.get(number) is cache:
            return
        self._seen[number] = cache
        if cache.metadata_epoch >= 0:
            self._check(f"node {number}", cache.metadata_epoch, content_of(cache))

    def _check(self, where: str, epoch: int, content: Content) -> None:
        known = self.contents.setdefault(epoch, content)
        assert known == content, f"{where} has for epoch {epoch}:\n{content}\nothers:\n{known}"


class Storm:
    def __init__(self, seed: int, steps: int = 60) -> None:
        self.random = random = Random(seed)
        self.steps = steps
        self.nodes = random.choice((3, 3, 4, 5))
        self.world = Watched(
            random,
            self.nodes,
            crucible_bootstrap_metadata_epoch=random.choice("0111"),
            broker_session_timeout_ms="3000",
            broker_heartbeat_interval_ms="500",
            crucible_metadata_batch_max_bytes=random.choice(("512", "8192")),
            metadata_log_max_record_bytes_between_snapshots=random.choice(("1500", "20971520")),
            controller_quorum_request_timeout_ms=random.choice(("200", "1000")),
        )
        self.world.ready()
        self.step = 0

    def play(self) -> None:
        actions = (
            *(self._create,) * 8,
            *(self._delete,) * 4,
            *(self._slow,) * 3,
            *(self._heal,) * 3,
            *(self._switch,) * 2,
            *(self._restart,) * 2,
            self._kill,
            self._shut_down,
            self._cut,
            self._isolate,
            self._other_code,
            self._power_cut,
        )
        for step in range(self.steps):
            self.step = step
            self.random.choice(actions)()
            self.world.run(self.random.choice((0, 1, 2, 5, 20, 100, 300, 1000, 3000)))
        self.settle()

    def settle(self) -> None:
        """Start all nodes with the newest code, and wait until all have the newest epoch and are idle."""
        world = self.world
        self._heal()
        for number, member in world.members.items():
            if member.alive and not member.node.broker.config.crucible_metadata_epoch_enable:
                world.kill(number)
        self._restart_all()
        world.run_until(self.is_whole, 90_000)
        world.run(4_000)
        world.sends.clear()
        world.run(4_000)
        assert self.is_whole()
        assert not [send for _, send in world.sends if send.api_key == ApiKey.UPDATE_METADATA], "it never rests"
        for member in world.living:
            calls = member.node._calls.values()
            assert all(call._request.api_key != ApiKey.UPDATE_METADATA for call in calls), "an update still waits"
            assert len(member.node.broker.controller.broadcast._recipients) <= self.nodes

    def is_whole(self) -> bool:
        world = self.world
        active = [each for each in world.living if each.node.broker.controller.is_active]
        if len(active) != 1 or not all(member.node.ready for member in world.members.values()):
            return False
        image = active[0].node.broker.loader.image
        epoch = image.metadata_epoch if sends_metadata_epoch(image) else -1
        wanted = content_of(image)
        caches = [each.node.broker.metadata for each in world.living]
        return len(wanted[0]) == self.nodes and all(
            cache.metadata_epoch == epoch and content_of(cache) == wanted for cache in caches
        )

    # Actions

    def _create(self) -> None:
        for _ in range(self.random.choice((1, 1, 2, 4))):
            name = f"t{self.random.randrange(TOPICS)}"
            partitions = self.random.choice((1, 2, 3, 30))
            self._send(ApiKey.CREATE_TOPICS, 7, create_request(name, partitions))
            self.world.run(self.random.choice((0, 0, 1, 3)))

    def _delete(self) -> None:
        self._send(ApiKey.DELETE_TOPICS, 6, delete_request(f"t{self.random.randrange(TOPICS)}"))

    def _switch(self) -> None:
        for _ in range(self.random.choice((1, 1, 2, 3))):
            level = int(self.random.random() < 0.7)
            key = FeatureUpdateKey(
                feature=METADATA_EPOCH_FEATURE, max_version_level=i16(level), upgrade_type=i8(1 if level else 2)
            )
            body = UpdateFeaturesRequest(timeout=i32Timedelta.parse(timedelta(seconds=5)), feature_updates=(key,))
            self._send(ApiKey.UPDATE_FEATURES, 2, body)

    def _send(self, api_key: int, version: int, body: object) -> None:
        """Send the request to all nodes that believe to be the active controller, or to any."""
        active = [
            n
            for n, member in self.world.members.items()
            if member.alive and member.node.listening and member.node.broker.controller.is_active
        ]
        ready = [n for n in active if self.world.members[n].node.ready]
        for number in ready:
            self.world.send(number, api_key, version, body)

    def _kill(self) -> None:
        living = [number for number, member in self.world.members.items() if member.alive]
        if len(living) > self.nodes // 2:
            active = [n for n in living if self.world.members[n].node.broker.controller.is_active]
            self.world.kill(self.random.choice(active if active and self.random.random() < 0.4 else living))

    def _restart(self) -> None:
        dead = [number for number, member in self.world.members.items() if not member.alive]
        if dead:
            self.world.start(self.random.choice(dead))

    def _restart_all(self) -> None:
        for number, member in self.world.members.items():
            if not member.alive:
                self.world.start(number)

    def _shut_down(self) -> None:
        living = [number for number, member in self.world.members.items() if member.alive and member.node.ready]
        if len(living) > self.nodes // 2 + 1:
            number = self.random.choice(living)
            self.world.shut_down(number)
            self.world.start(number)

    def _other_code(self) -> None:
        """Restart with other code. At a level that it does not know it is not unfenced."""
        living = [number for number, member in self.world.members.items() if member.alive]
        if len(living) == self.nodes and self.random.random() < 0.5:
            number = self.random.choice(living)
            self.world.kill(number)
            self.world.start(number, crucible_metadata_epoch_enable="false")

    def _power_cut(self) -> None:
        for number, member in self.world.members.items():
            if member.alive:
                self.world.kill(number)
        self._restart_all()

    def _cut(self) -> None:
        self.world.sever(*self.random.sample(range(self.nodes), 2))

    def _isolate(self) -> None:
        number = self.random.randrange(self.nodes)
        for other in range(self.nodes):
            if other != number:
                self.world.sever(number, other)

    def _slow(self) -> None:
        one, other = self.random.sample(range(self.nodes), 2)
        active = [
            n
            for n, member in self.world.members.items()
            if member.alive and member.node.listening and member.node.broker.controller.is_active
        ]
        if active and active[0] != other and self.random.random() < 0.7:
            one = active[0]
        what = self.random.random() < 0.7
        self.world.slow_links[one, other, what] = self.random.choice((5_000, 50_000, 400_000, LONGEST_US))

    def _heal(self) -> None:
        self.world.slow_links.clear()
        self.world.heal()
