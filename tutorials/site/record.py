"""Run every tutorial and keep what it prints, for the site.

    python tutorials/site/record.py [--only 03 04] [--options=--quick]

Writes `recorded/<tutorial>.txt` (machine, versions, commit and options, an empty line, the output)
and its pictures.  Run it on a quiet machine: the figures are what readers see.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pages_of_tutorials import RECORDED, TUTORIALS, scripts

TIME_LIMIT = 900
WIDEST = 60_000
"""Bytes from which a picture is made smaller."""


def main() -> int:
    """Record the tutorials that were asked for; 1 where one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="numbers, such as 03")
    parser.add_argument("--options", default="", help="for the tutorials, such as --quick")
    parser.add_argument("--busy", action="store_true", help="record on a busy machine all the same")
    options = parser.parse_args()
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores and not options.busy:
        print(f"{load:.0f} programs share {cores} cores: the figures would not be true (--busy)")
        return 1
    RECORDED.mkdir(exist_ok=True)
    failed = 0
    for path in scripts():
        if not options.only or path.stem[:2] in options.only:
            failed |= record(path, shlex.split(options.options))
    return failed


def record(path: Path, more: list[str]) -> int:
    """Run one; what is kept of it is replaced where it ended well."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_DATA_HOME": folder, "COLUMNS": "112"}
        done = subprocess.run(
            [sys.executable, str(path), *more],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
        if done.returncode:
            print(f"{path.name} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
            return 1
        text = f"{about(more)}\n\n{done.stdout}"
        (RECORDED / f"{path.stem}.txt").write_text(text, encoding="utf-8")
        for picture in sorted((Path(folder) / "pictures").glob("*.png")):
            shutil.copy(picture, RECORDED / picture.name)
    print(f"{path.name}: {len(done.stdout.splitlines())} lines")
    return 0


def about(options: list[str]) -> str:
    """One line: what it ran on."""
    tools = ", ".join(
        f"{each} {importlib.metadata.version(each)}" for each in ("numpy", "llvmlite")
    )
    command = ["git", "-C", str(TUTORIALS), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    said = f" with `{shlex.join(options)}`" if options else ""
    return f"On {os.cpu_count()} {platform.machine()} cores{said}; {tools}; commit {commit}."


if __name__ == "__main__":
    sys.exit(main())
