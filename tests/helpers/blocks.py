"""The Python of a page: its fenced blocks, which a reader would run from top to bottom."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

NEEDS_TORCH = "# needs torch\n"


def python_of(page: Path) -> str:
    """One script of all blocks, each under the line of the page on which it stands.

    Blocks that begin with `# needs torch` are left out where PyTorch is not installed.
    """
    text = page.read_text(encoding="utf-8")
    has_torch = importlib.util.find_spec("torch") is not None
    parts: list[str] = []
    for found in re.finditer(r"(?ms)^```python\n(.*?)^```$", text):
        code = found.group(1)
        if has_torch or not code.startswith(NEEDS_TORCH):
            line = text.count("\n", 0, found.start()) + 2
            parts.append(f"# {page.name}, line {line}\n{code}")
    return "\n".join(parts)


def run_page(page: Path, folder: Path) -> str:
    """What the blocks of a page print, run in `folder` as a reader's home.

    Raises:
        AssertionError: they failed; the end of what was printed is the message.
    """
    # A folder `tedsl` of records beside the script would hide the package from what it starts.
    home, script = folder / "home", folder / f"{page.stem}.py"
    home.mkdir()
    script.write_text(python_of(page), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "XDG_DATA_HOME": str(home), "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
