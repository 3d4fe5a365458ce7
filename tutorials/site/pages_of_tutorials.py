"""The tutorials as pages: text and code of each cell, then what the script printed.

What it printed is kept in `tutorials/site/recorded` (`python tutorials/site/record.py` writes it),
with the machine and the commit, since a site must not depend on how busy its builder is.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TUTORIALS = Path(__file__).parent.parent
RECORDED = Path(__file__).parent / "recorded"


def scripts() -> list[Path]:
    """The numbered scripts, in order."""
    return sorted(TUTORIALS.glob("[0-9][0-9]_*.py"))


def navigation() -> list[dict[str, str]]:
    """A line of the navigation for each, after the page about all of them."""
    lines = [{_title(path): f"tutorials/{path.stem}.md"} for path in scripts()]
    return [{"All of them": "tutorials/index.md"}, *lines]


def pages() -> dict[str, str | bytes]:
    """The content of every page and picture, by its place in the site."""
    found: dict[str, str | bytes] = {"tutorials/index.md": _overview()}
    for path in scripts():
        found[f"tutorials/{path.stem}.md"] = _page(path)
    for picture in sorted(RECORDED.glob("*.png")):
        found[f"tutorials/{picture.name}"] = picture.read_bytes()
    return found


def _title(path: Path) -> str:
    head = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.stem
    number, _, rest = head.splitlines()[0].partition(":")
    return f"{number.rpartition(' ')[2]}. {rest.strip().rstrip('.')}"


def _overview() -> str:
    """The README of the tutorials; its links lead to the pages."""
    text = (TUTORIALS / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\((\d\d_\w+)\.py\)", r"(\1.md)", text)
    return text.replace("(docs/", "(../")


def _page(path: Path) -> str:
    """A script in the order of its cells, then its output."""
    source = path.read_text(encoding="utf-8")
    head, _, body = source.partition("# %%")
    text = ast.get_docstring(ast.parse(head)) or ""
    first, _, rest = text.partition("\n")
    parts = [f"# {first}\n{rest}\n"]
    solution = TUTORIALS / "solutions" / path.name
    parts += [_cell(cell) for cell in body.split("# %%")]
    if solution.exists():
        parts.append(f"Solutions of the exercises: `tutorials/solutions/{path.name}`.\n")
    return "\n".join((*parts, _output(path.stem)))


def _cell(cell: str) -> str:
    """Heading and comments at its head as text, the rest as code."""
    lines = cell.splitlines()
    heading = lines[0].strip()
    count = next(
        (n for n, line in enumerate(lines[1:]) if not line.startswith("#")), len(lines) - 1
    )
    prose = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[1 : 1 + count])
    code = "\n".join(lines[1 + count :]).strip("\n")
    short, _, more = heading.partition(".  ") if not heading[:1].isdigit() else (heading, "", "")
    text = f"\n## {short.rstrip('.')}\n\n" if short else "\n"
    text += f"{more}\n{prose}\n" if more or prose else ""
    return text + (f"\n```python\n{code}\n```\n" if code else "")


def _output(name: str) -> str:
    """What was recorded, with its pictures."""
    recorded = RECORDED / f"{name}.txt"
    if not recorded.exists():
        return ""
    about, _, printed = recorded.read_text(encoding="utf-8").partition("\n\n")
    pictures = "".join(f"![]({p.name})\n\n" for p in sorted(RECORDED.glob(f"{name[:2]}_*.png")))
    return f"\n## What it prints\n\n{about}\n\n{pictures}```text\n{printed.rstrip()}\n```\n"
