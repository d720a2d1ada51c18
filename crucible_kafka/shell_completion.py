"""Completion in a shell: bash, zsh and fish."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

ROOT = Path(__file__).resolve().parents[1]
NAME = "crucible"
VARIABLE = "_CRUCIBLE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


def script(main: click.Command, shell: str) -> str:
    """Return the script that a person's shell must read. It serves ``./crucible`` and an installed ``crucible``."""
    kind = get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    source = kind(main, {}, NAME, VARIABLE).source_template % kind(main, {}, NAME, VARIABLE).source_vars()
    return f"{source}\n"


def scenarios(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer the names of scenarios, or files once a path is begun."""
    if "/" in typed or typed.endswith(".toml"):
        return [CompletionItem(typed, type="file")]
    names = sorted(path.stem for path in (ROOT / "scenarios" / "catalogue").glob("*/*.toml"))
    return [CompletionItem(name) for name in names if name.startswith(typed)]


def mutants(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    from chaos.mutants.registry import table

    return [
        CompletionItem(name, help=f"scenarios {' '.join(numbers)}")
        for name, numbers in table()
        if name.startswith(typed)
    ]


def targets(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    if "/" in typed:
        return [CompletionItem(typed, type="file")]
    bundled = sorted(path.stem for path in (ROOT / "bench" / "targets").glob("*.toml"))
    return [CompletionItem(name) for name in bundled if name.startswith(typed)]


def run_folders(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer folders in runs/, the newest first, or any folder once a path is begun."""
    folders = sorted((ROOT / "runs").glob("*-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    names = [f"runs/{folder.name}" for folder in folders if folder.is_dir()]
    return [CompletionItem(name) for name in names if name.startswith(typed)] or [CompletionItem(typed, type="dir")]
