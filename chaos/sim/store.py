"""The object store of all nodes of a simulated run. It outlives their processes and their disks.

A request that has left its node is carried out even if the node dies meanwhile. A file is sent in parts, from the disk
as it is then; if its node dies before the last part is sent, an incomplete upload remains, which no node sees.
"""

from dataclasses import dataclass, field
from random import Random

from chaos.sim.agenda import Agenda
from chaos.sim.machine import Machine
from reference_broker.core.effect_ports import store_event
from reference_broker.core.events import StoreCall
from reference_broker.ports.disk import DiskError
from reference_broker.ports.store import FailureKind, MemoryStore, Put, PutFile, StoreFailure, StoreResult, refused_key

REQUEST_US = (300, 8_000)
"""The range from which each way is drawn, of a request and of its response."""
PART_BYTES = 16 * 1024


@dataclass(slots=True)
class Upload:
    """A file that is being sent: the parts that have arrived."""

    call: StoreCall
    put: PutFile
    machine: Machine
    incarnation: int
    content: bytearray = field(default_factory=bytearray)


class SimStore:
    """``content`` has the objects. ``uploads`` are the running ones, and those whose nodes have died."""

    def __init__(self, agenda: Agenda, random: Random, content: MemoryStore | None = None) -> None:
        self.content = MemoryStore() if content is None else content
        self.uploads: list[Upload] = []
        self._agenda = agenda
        self._random = random

    @property
    def half_written(self) -> list[str]:
        """The keys of the uploads whose nodes are gone."""
        return [upload.put.key for upload in self.uploads if upload.machine.incarnation_alive != upload.incarnation]

    def call(self, machine: Machine, call: StoreCall) -> None:
        refusal = refused_key(call.operation)
        if refusal is not None:
            self._respond(machine, machine.incarnation, call, refusal)
        elif isinstance(call.operation, PutFile):
            upload = Upload(call, call.operation, machine, machine.incarnation)
            self.uploads.append(upload)
            self._agenda.after(self._way_us(), self._send_part, upload)
        else:
            self._agenda.after(self._way_us(), self._arrived, machine, machine.incarnation, call)

    def _arrived(self, machine: Machine, incarnation: int, call: StoreCall) -> None:
        self._respond(machine, incarnation, call, self.content.carry_out(call.operation, machine.disk))

    def _send_part(self, upload: Upload) -> None:
        machine, put = upload.machine, upload.put
        if machine.incarnation_alive != upload.incarnation:
            return
        if machine.paused:  # A stopped process reads no file, and goes on later.
            self._agenda.at(machine.paused_until_us + 1, self._send_part, upload)
            return
        part_bytes = min(PART_BYTES, put.size_bytes - len(upload.content))
        try:
            part = machine.disk.read(put.path, len(upload.content), part_bytes)
        except DiskError as failure:
            self._give_up(upload, str(failure))
            return
        if len(part) < part_bytes:
            self._give_up(upload, f"{put.path} has fewer than {put.size_bytes} bytes")
            return
        upload.content += part
        follows = self._finish if len(upload.content) == put.size_bytes else self._send_part
        self._agenda.after(self._way_us(), follows, upload)

    def _give_up(self, upload: Upload, reason: str) -> None:
        self.uploads.remove(upload)
        self._respond(upload.machine, upload.incarnation, upload.call, StoreFailure(FailureKind.MISSING, reason))

    def _finish(self, upload: Upload) -> None:
        self.uploads.remove(upload)
        whole = Put(upload.put.key, bytes(upload.content))
        result = self.content.carry_out(whole, upload.machine.disk)
        self._respond(upload.machine, upload.incarnation, upload.call, result)

    def _respond(self, machine: Machine, incarnation: int, call: StoreCall, result: StoreResult | StoreFailure) -> None:
        self._agenda.after(self._way_us(), machine.deliver, incarnation, store_event(call.token, result))

    def _way_us(self) -> int:
        low, high = REQUEST_US
        return low + int(self._random.random() * (high - low + 1))
