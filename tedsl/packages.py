"""How to install a package that is not there, in words that work wherever tedsl came from.

The package itself is named, not an extra of tedsl's: `pip install 'tedsl[plot]'` asks an index for
tedsl, which is in none that a clone knows of; and which release is there.  Imports nothing of
tedsl.
"""

from __future__ import annotations

import functools
import re
from importlib.metadata import PackageNotFoundError, version

REQUIRED = {
    "distributed": "distributed>=2024.8",
    "lightgbm": "lightgbm>=4.3",
    "llvmlite": "llvmlite>=0.48",
    "matplotlib": "matplotlib>=3.8",
    "torch": "torch>=2.6",
    "triton": "triton>=3.6",
}
"""Packages that may be missing where a part of tedsl needs them, with the versions that will do."""


def install(package: str) -> str:
    """The command that installs a package for the Python that runs."""
    required = REQUIRED.get(package, package)
    return f"python -m pip install {repr(required) if '>' in required else required}"


@functools.cache
def release(package: str) -> tuple[int, ...] | None:
    """The release of a package, as (3, 7, 1); None where it is not installed."""
    try:
        known = re.match(r"\d+(\.\d+)*", version(package))
    except PackageNotFoundError:
        return None
    return None if known is None else tuple(map(int, known.group().split(".")))
