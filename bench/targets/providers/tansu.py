"""tansu, a broker in Rust. Cargo builds it once into ``.cache``, which takes a quarter of an hour or more and 60 MB."""

import os
import shutil
import subprocess
from collections.abc import Mapping

from bench.targets.model import TargetError
from bench.targets.providers.kafka import CACHE

BUILD_LIMIT_S = 7200.0
PROFILE = {"CARGO_PROFILE_RELEASE_OPT_LEVEL": "1", "CARGO_PROFILE_RELEASE_LTO": "off"}
"""Compiles faster. The broker is slower then, which does not matter for its responses."""
WORDS = ("tansu",)


def provide(version: str) -> Mapping[str, str]:
    """Raise TargetError."""
    folder = CACHE / f"tansu-{version}"
    product = folder / "bin" / "tansu"
    if not product.exists():
        _build(version, [*("install", "tansu", "--locked", "--root", str(folder), "--version", version)])
    return {"tansu": str(product)}


def _build(version: str, words: list[str]) -> None:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise TargetError("tansu must be compiled and there is no Rust: install Rust 1.90 or newer (rustup).")
    only_memory = ["--no-default-features", "--features", "dynostore"]
    command = ["nice", "-n", "19", cargo, *words, *only_memory]
    try:
        built = subprocess.run(
            command, env={**os.environ, **PROFILE}, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise TargetError(f"Building tansu {version} failed: {failure}.") from failure
    if built.returncode != 0:
        last = (built.stderr.strip().splitlines() or ["no output"])[-1]
        raise TargetError(f"Building tansu {version} failed: {last}")
