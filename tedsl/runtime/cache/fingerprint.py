"""A digest of everything that generated code depends on: the key of the on-disk cache.

Equal digests mean equal programs: what is digested are the tokens of all nodes of a lowered module.
Imports nothing of tedsl but `ir.tokens`, `folders` and the cache.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path

from tedsl import folders
from tedsl.ir.tokens import Tokens
from tedsl.runtime.cache.disk import disk_cache

FORMAT = "1"  # raise when the meaning of a cache entry changes


@dataclass(frozen=True, slots=True)
class Digest:
    """A SHA-256 in hex, and what was met on the way.

    Attributes:
        digest: the SHA-256.
        nodes: every dataclass that was written, in order, each once.
        opaque: true when one of them says itself what of it generated code depends on.
    """

    digest: str
    nodes: Sequence[object]
    opaque: bool


def fingerprint(*roots: object, **facts: str) -> str:
    """The SHA-256 of `roots` (dataclasses, tuples, enums, numbers, text) and of named facts, in
    hex.
    """
    return digest_of(*roots, **facts).digest


def digest_of(*roots: object, **facts: str) -> Digest:
    """As `fingerprint`, with what was met on the way."""
    write = Tokens()
    for root in roots:
        write(root)
    for name, value in sorted(facts.items()):
        write(name)
        write(value)
    text = "\0".join((*write.tokens, ""))
    return Digest(hashlib.sha256(text.encode()).hexdigest(), write.nodes, write.opaque)


_NOT_CODE = ("runtime/", "cli/", "checking/", "cost/", "workload/")
"""Folders that run code, check or weigh it, and do not make it."""
PACKAGE = Path(folders.__file__).resolve().parent
_OWN = Path(__file__).resolve().relative_to(PACKAGE).as_posix()


@cache
def code_version() -> str:
    """A digest of tedsl's own sources, so that no entry outlives the compiler that made it."""
    return version_of(PACKAGE)


def version_of(root: Path) -> str:
    """A digest of the sources below `root` that make code.

    It is kept in the on-disk cache under what the file system says of the sources (as git and make
    trust it too): reading them would take a quarter of the time in which a tuned kernel is ready.
    """
    files = sorted(sources_below(str(root)), key=itemgetter(0))
    facts = hashlib.sha256(f"{FORMAT} {root}".encode())
    for name, status in files:
        times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
        facts.update(f"{name} {status.st_ino} {status.st_size} {times}\n".encode())
    disk, key = disk_cache(), facts.hexdigest()
    known = None if disk is None else disk.get(key, "version")
    if known is not None:
        return known["version"].decode()
    version = _digest_of(root, [name for name, _ in files])
    if disk is not None:
        disk.put(key, {"version": version.encode()})
    return version


def _digest_of(root: Path, names: Sequence[str]) -> str:
    digest = hashlib.sha256(FORMAT.encode())
    for name in names:
        digest.update(name.encode())
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def sources_below(folder: str, prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """The Python files below a folder that make code, by their path from it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.name.endswith(".py"):
                if not name.startswith(_NOT_CODE) or name == _OWN:
                    yield name, entry.stat()
            elif "." not in entry.name and entry.is_dir():
                yield from sources_below(entry.path, f"{name}/")


@cache
def tool_versions(*packages: str) -> str:
    """Versions of Python and of the named distributions; an absent one counts as such."""
    found = [f"python {platform.python_version()} {platform.machine()} {platform.system()}"]
    found += [f"{package} {package_version(package) or 'absent'}" for package in packages]
    return "; ".join(found)


@cache
def package_version(package: str) -> str:
    """The version of an installed distribution, without a parse of all that is said of it; empty
    when it is not there."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return ""
    found = re.search(r"^Version: *(.+)$", distribution.read_text("METADATA") or "", re.MULTILINE)
    return found[1] if found else str(distribution.version)
