"""Says how many of a fleet's clients live at each moment of the load. Without a shape all of them live all the time."""

from typing import Final

import msgspec

STEP: Final = "step"
SPIKE: Final = "spike"
SOAK: Final = "soak"
KINDS: Final = (STEP, SPIKE, SOAK)

SPIKE_FROM: Final = 0.4
SPIKE_UNTIL: Final = 0.6
SOAK_RAMP: Final = 0.1


class LoadShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``kind`` of a shape is one of these:

    - ``step`` adds clients in ``steps`` equal steps of equal length.
    - ``spike`` has ``base_percent`` of the clients, and all of them from 40 % to 60 % of the time.
    - ``soak`` adds clients evenly over the first tenth of the time, and keeps them.
    """

    kind: str
    steps: int = 5
    base_percent: int = 20


def share(shape: LoadShape, elapsed_s: float, seconds: float) -> float:
    """Returns the share of all clients, from 0 to 1, that live ``elapsed_s`` into a load of ``seconds``."""
    done = min(1.0, max(0.0, elapsed_s / seconds)) if seconds > 0 else 1.0
    if shape.kind == STEP:
        return min(shape.steps, int(done * shape.steps) + 1) / shape.steps
    if shape.kind == SPIKE:
        return 1.0 if SPIKE_FROM <= done < SPIKE_UNTIL else shape.base_percent / 100
    return min(1.0, done / SOAK_RAMP)


def clients_at(shape: LoadShape, clients: int, elapsed_s: float, seconds: float) -> int:
    """Returns how many clients live at this moment. It is at least one."""
    return max(1, round(clients * share(shape, elapsed_s, seconds)))
