"""What an installed wheel offers beside the broker: some commands, and one sentence for each of the others.

A clone has everything, and uses nothing of this module.
"""

import sys
from pathlib import Path
from typing import NoReturn

import click

COMMANDS = ("broker", "cluster", "probe", "proxy")
"""Those that work without a clone."""
ROOMS = Path(__file__).resolve().parent / "_rooms"
"""The modules of other rooms that they need (``tools/wheel_rooms.py``). They have common names such as ``bench``. So
they can be imported in the process of a command only, and not where somebody imports this package."""
_ONLY_IN_A_CLONE = ("kafka@", "kafka/", "--toxiproxy")
"""Examples that have one of these words need what a wheel lacks."""


def enter_rooms() -> None:
    """Let this process import the rooms."""
    sys.path.insert(0, str(ROOMS))


def refuse(what: str) -> NoReturn:
    """End with one sentence and exit code 2."""
    click.echo(
        f"crucible: {what} needs a clone: get Crucible's repository with git clone, and call ./crucible in it "
        f"(pip installs {', '.join(COMMANDS[:-1])} and {COMMANDS[-1]} alone).",
        err=True,
    )
    sys.exit(2)


class CloneCommand(click.Command):
    """A command that needs a clone. Whatever words follow it, it says so."""

    def __init__(self, command: click.Command) -> None:
        super().__init__(command.name, help=command.help, add_help_option=False)
        self.ignore_unknown_options = self.allow_extra_args = True

    def invoke(self, ctx: click.Context) -> NoReturn:  # noqa: ARG002
        refuse(str(self.name))


def adapt_help(command: click.Command) -> click.Command:
    """Name the installed command in the help of a command and of those below it, and omit what needs a clone."""
    for name in ("help", "epilog"):
        lines = (getattr(command, name) or "").split("\n")
        kept = [line for line in lines if not any(word in line for word in _ONLY_IN_A_CLONE)]
        setattr(command, name, "\n".join(kept).replace("./crucible", "crucible"))
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        adapt_help(each)
    return command


HELP = """A reference broker for the Kafka protocol, alone or as a cluster; a conformance probe; a proxy that injects
faults.

Start with `crucible broker --listen 127.0.0.1:9092 --data data`. Benchmarks, chaos tests and the simulator need a clone
of the repository.
"""
