"""Commands of an installed wheel beside the broker: some commands, and one sentence for each of the others.

A clone has everything, and uses nothing of this module.
"""

import sys
from copy import copy
from pathlib import Path
from typing import NoReturn

import click

COMMANDS = ("broker", "client", "cluster", "probe", "proxy", "serve")
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
    """Return a command whose help, and that of commands below it, names the installed command and omits what needs a
    clone."""
    adapted = copy(command)
    adapted.help, adapted.epilog = _adapted(command.help), _adapted(command.epilog)
    if isinstance(adapted, click.Group):
        adapted.commands = {name: adapt_help(command) for name, command in adapted.commands.items()}
    return adapted


def _adapted(text: str | None) -> str:
    lines = (text or "").split("\n")
    adapted_lines = [line for line in lines if not any(word in line for word in _ONLY_IN_A_CLONE)]
    return "\n".join(adapted_lines).replace("./crucible", "crucible")


HELP = """A reference broker for the Kafka protocol, alone or as a cluster; conformance suites for brokers (probe) and
clients (client); a proxy that injects faults; a cluster for tests of any language.

Start with `crucible broker --listen 127.0.0.1:9092 --data data`. Benchmarks, chaos tests and the simulator need a clone
of the repository.
"""
