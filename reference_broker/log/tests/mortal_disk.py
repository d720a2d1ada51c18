"""A disk whose process dies at an operation."""

from typing import Any

from chaos.sim.disk import SimDisk

CHANGES = ("append", "write", "truncate", "rename", "delete", "make_durable")


class Died(Exception):  # noqa: N818 - says what happened
    """The process ended at an operation on the disk."""


class MortalDisk:
    """A disk whose process dies before a change, after ``left`` more of them."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.left: int | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.disk, name)
        if name not in CHANGES:
            return found

        def change(*how: Any) -> Any:
            if self.left is not None:
                if self.left == 0:
                    raise Died
                self.left -= 1
            return found(*how)

        return change
