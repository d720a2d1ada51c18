"""The faults done from outside, by kind."""

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

from chaos.faults.timed import End, Place
from chaos.live.casting import ONLY_SIMULATED
from chaos.live.targets import Target
from scenarios.vocabulary import TIMED_KINDS

Begin: TypeAlias = Callable[[Place, Target], End]

LIVE: dict[str, Begin] = {
    kind: import_module(f"chaos.faults.{kind}").begin for kind in TIMED_KINDS if kind != ONLY_SIMULATED
}
"""For each kind of fault that a live run can begin at a time, ``begin`` of the file that has the kind's name."""
