"""The manifest's description of the code, scenario and machine of a run."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from chaos.live import toxiproxy_server
from scenarios.model import Scenario
from scenarios.revisions import revision_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kio", "uvloop", "locust", "pyspark", "pyarrow", "toxiproxy-python")


def of_live_run(scenario: Scenario, folder: Path, seed: int, start_wall_us: int) -> dict[str, Any]:
    """Return the manifest's fields that every live run has."""
    return {
        **of_code_and_machine(),
        "scenario": scenario.name,
        "seed": seed,
        "world": "live",
        "number": scenario.number or 0,
        "run_id": folder.name,
        "revision": revision_of(scenario),
        "start_wall_us": start_wall_us,
    }


def of_code_and_machine() -> dict[str, Any]:
    """Return the manifest's fields about the code that ran, and the machine."""
    commit, dirty = _commit()
    return {"commit": commit, "dirty": dirty, "versions": _versions(), "machine": _machine()}


def _commit() -> tuple[str, bool]:
    """Return the hash, and whether anything was changed since. The hash is empty outside a repository."""
    try:
        return _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain"))
    except (OSError, subprocess.SubprocessError):
        return "", False


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "toxiproxy": toxiproxy_server.VERSION}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def _machine() -> dict[str, str]:
    return {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "memory_bytes": str(psutil.virtual_memory().total),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_average": " ".join(f"{each:.2f}" for each in os.getloadavg()),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor()
    return platform.processor() or "unknown"


def load_words(scenario: Scenario) -> dict[str, str]:
    """Return what each part of the load does, by name."""
    words = {
        each.name: f"{each.count} {each.behaviour} fetchers of {each.partitions} partitions of {each.topic}"
        for each in scenario.load.fetchers
    }
    for group in scenario.load.groups:
        load = words.get(group.name)
        members = f"{group.count} {group.protocol} members{'' if group.metadata_epoch else ' without metadata epochs'}"
        words[group.name] = f"{load}, {members}" if load else members
    if scenario.load.mirror is not None:
        guard = "with" if scenario.load.mirror.metadata_epoch else "without"
        words["mirror"] = f"{scenario.load.mirror.count} members that mirror the topic, {guard} metadata epochs"
    for writers in scenario.load.transactional:
        words[writers.name] = f"{writers.count} writers of transactions in {writers.topic}"
    for workers in scenario.load.workers:
        words[workers.name] = f"{workers.count} workers from {workers.source} to {workers.target}, in transactions"
    for strays in scenario.load.strays:
        words[strays.name] = f"{strays.count} producers that leave hanging transactions in {strays.topic}"
    for janitors in scenario.load.janitors:
        words[janitors.name] = f"{janitors.count} admins that abort hanging transactions in {janitors.topic}"
    for each in scenario.load.producers:
        words[each.name] = f"{each.count} producers to {each.topic}, {each.rate_per_s:g} records/s each"
    return words
