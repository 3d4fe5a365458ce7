"""Run the tests on an emulated AArch64 processor.

    python tests/helpers/emulate_aarch64.py FOLDER [--cpu cortex-a72] [arguments of pytest]

The first run fills the folder (about 600 MB) with Debian's AArch64 Python, without Triton; later
runs use it as it is.  Needs a Debian system, `qemu-aarch64` (package qemu-user) and pip; no
administrator.  Each run tests a fresh copy of the package, installed beside its dependencies.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from sources import ROOT

# What Linux says of a processor that is like one QEMU emulates: part, variant, features.  QEMU
# shows the host's /proc/cpuinfo unless there is one in the folder, and LLVM reads it.
CPUS = {
    "max": (
        "0xd40",
        "0x1",
        "fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc "
        "dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm uscat ilrcpc flagm ssbs i8mm bf16 rng",
    ),
    "cortex-a72": ("0xd08", "0x0", "fp asimd aes pmull sha1 sha2 crc32 cpuid"),
}
CPUINFO = """processor\t: 0
Features\t: {features}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: {variant}
CPU part\t: {part}
CPU revision\t: 1
"""
NOT_NEEDED = {"triton", "ruff", "pyright", "matplotlib"}
# In a forked child QEMU 7.2 itself stops at the first new thread (plugins/core.c); and a limit in
# microseconds says nothing here.
NOT_EMULATED = (
    "tests/backends/test_cpu_program.py::test_a_forked_child_has_its_own_threads",
    "tests/building/test_build.py::test_a_call_costs_microseconds",
)


def execute(*command: str | Path) -> None:
    """Run a command; what it says appears, and its failure ends the program."""
    subprocess.run([str(word) for word in command], check=True)


def unpack_system(folder: Path) -> None:
    """Python and the C library, from the host's package sources but for AArch64.

    apt works on a state of its own, in which nothing is installed: so it needs no rights and
    leaves the host's alone.
    """
    state = folder / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    settings = {
        "Dir::State": state / "state",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]
    execute(*apt, "update")
    execute(
        *apt, "--yes", "--no-install-recommends", "--download-only", "install",
        "python3", "libstdc++6",
    )  # fmt: skip
    for package in sorted((state / "cache" / "archives").glob("*.deb")):
        execute("dpkg-deb", "--extract", package, folder)
    if not (folder / "lib").exists():
        (folder / "lib").symlink_to("usr/lib")
    shutil.rmtree(state)


def python_of(folder: Path) -> Path:
    """The unpacked Python."""
    return next(
        p for p in (folder / "usr" / "bin").iterdir() if re.fullmatch(r"python3\.\d+", p.name)
    )


def packages_of(folder: Path) -> Path:
    """Where the folder's Python finds packages."""
    return folder / "env" / "lib" / python_of(folder).name / "site-packages"


def install_packages(folder: Path) -> None:
    """What the package and its tests need, as wheels for AArch64."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed: list[str] = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    needed = [line for line in listed if re.split(r"[^\w-]", line)[0] not in NOT_NEEDED]
    platforms = ["manylinux2014_aarch64", *(f"manylinux_2_{n}_aarch64" for n in range(17, 36))]
    execute(
        sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:",
        "--python-version", python_of(folder).name.removeprefix("python"),
        *(word for name in platforms for word in ("--platform", name)),
        "--target", packages_of(folder), *needed,
    )  # fmt: skip


def write_environment(folder: Path) -> None:
    """A virtual environment whose `python` starts the emulator, in child processes as well."""
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    real = python_of(folder)
    python.write_text(f'#!/bin/sh\nexec qemu-aarch64 -L {folder} -0 "$0" {real} "$@"\n')
    python.chmod(0o755)
    (folder / "env" / "pyvenv.cfg").write_text(f"home = {real.parent}\n")


def copy_package(folder: Path) -> None:
    """The working tree's package in the layout that it has when installed."""
    package = packages_of(folder) / "tedsl"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "tedsl", package)
    for name in ("schedules", "autotune"):
        shutil.copytree(ROOT / name, package / name)


def run_tests(folder: Path, cpu: str, arguments: list[str]) -> int:
    """pytest's exit status."""
    part, variant, features = CPUS[cpu]
    (folder / "proc").mkdir(exist_ok=True)
    text = CPUINFO.format(part=part, variant=variant, features=features)
    (folder / "proc" / "cpuinfo").write_text(text)
    # The working tree stays out of the import path: its folders are not laid out as installed.
    environment = {**os.environ, "QEMU_CPU": cpu, "PYTHONSAFEPATH": "1"}
    deselected = [word for name in NOT_EMULATED for word in ("--deselect", name)]
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=1800", *deselected]
    done = subprocess.run(
        [str(folder / "env" / "bin" / "python"), *command, *arguments],
        cwd=ROOT,
        env=environment,
        check=False,
    )
    return done.returncode


def main() -> int:
    """Fill the folder if need be, then run pytest in it."""
    parser = argparse.ArgumentParser(description="Run the tests on an emulated AArch64 processor.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", choices=sorted(CPUS), default="max")
    options, arguments = parser.parse_known_args()
    folder = Path(options.folder).resolve()
    for tool in ("qemu-aarch64", "apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            parser.error(f"{tool} is not installed (Debian: apt-get install qemu-user)")
    filled = folder / "filled"
    if not filled.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unpack_system(folder)
        install_packages(folder)
        write_environment(folder)
        filled.touch()
    copy_package(folder)
    return run_tests(folder, str(options.cpu), arguments)


if __name__ == "__main__":
    sys.exit(main())
