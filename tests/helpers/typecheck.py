"""Run pyright over the package as it is installed.

`schedules/` and `autotune/` are top-level folders but import as `tedsl.schedules` and
`tedsl.autotune`, which pyright cannot know.  So the files are copied into the layout they have when
installed, and checked there with the settings of `pyproject.toml`.

    python tests/helpers/typecheck.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def typecheck() -> tuple[int, str]:
    """The exit status and the report of pyright, with the repository's paths in it."""
    skip = shutil.ignore_patterns("__pycache__", "golden")
    with tempfile.TemporaryDirectory() as folder:
        layout = Path(folder).resolve()
        shutil.copy(ROOT / "pyproject.toml", layout)
        for name in ("tedsl", "tests", "tutorials"):
            shutil.copytree(ROOT / name, layout / name, ignore=skip)
        for name in ("schedules", "autotune"):
            shutil.copytree(ROOT / name, layout / "tedsl" / name, ignore=skip)
        done = subprocess.run(
            [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
            cwd=layout,
            capture_output=True,
            text=True,
            check=False,
        )
    report = done.stdout + done.stderr
    for name in ("schedules", "autotune"):
        report = report.replace(f"{layout}/tedsl/{name}/", f"{name}/")
    return done.returncode, report.replace(f"{layout}/", "")


if __name__ == "__main__":
    status, report = typecheck()
    sys.stdout.write(report)
    sys.exit(status)
