"""Pages computed from the package: reference, cheat sheet, gallery, errors.

The loop nests of the cheat sheet are the `Rewrites:` of the primitives' docstrings.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docstrings
import gallery
import subjects

import tedsl as te

ROOT = Path(__file__).parents[2]


def navigation() -> list[dict[str, str]]:
    """The pages of the reference."""
    return [
        {"The language": "reference/language.md"},
        {"Schedules, kernels, search": "reference/running.md"},
        {"Primitives": "reference/primitives.md"},
        {"te.nn": "reference/nn.md"},
        {"tedsl.torch": "reference/torch.md"},
    ]


def pages() -> dict[str, str | bytes]:
    """The content of every page, by its place in the site."""
    return {
        "reference/language.md": _reference("The language", subjects.LANGUAGE),
        "reference/running.md": _reference("Schedules, kernels, search", subjects.RUNNING),
        "reference/primitives.md": _primitives(),
        "reference/nn.md": _operators(),
        "reference/torch.md": _torch(),
        "cheatsheet.md": _cheatsheet(),
        "errors.md": _errors(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        "limits.md": (ROOT / "tests/benchmarks/results/limits.md").read_text(encoding="utf-8"),
        "fusion.svg": (ROOT / "tutorials" / "fusion.svg").read_bytes(),
        **_gallery(),
    }


def _reference(title: str, groups: Mapping[str, str]) -> str:
    parts = [f"# {title}\n\nAfter `import tedsl as te`.\n"]
    for subject, names in groups.items():
        parts.append(f"\n## {subject}\n")
        for name in names.split():
            value = getattr(te, name)
            if inspect.ismodule(value):
                parts.append(f"\n### te.{name}\n\n{_first_line(value)}\n")
            else:
                parts.append(docstrings.entry(f"te.{name}", value))
    return "".join(parts)


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def families() -> Iterator[tuple[str, str, type[Any], list[str]]]:
    """The primitives as they are grouped in the code: `s[T]` or `s`, what for, class, names."""
    for prefix, handle in (("s[T]", te.Stage), ("s", te.Schedule)):
        for kind in handle.__mro__:
            names = [
                name
                for name, value in vars(kind).items()
                if not name.startswith("_")
                and (inspect.isfunction(value))
                and "Rewrites:" in (inspect.getdoc(value) or "")
            ]
            if names:
                yield prefix, (inspect.getdoc(kind) or "").partition("\n")[0], kind, names


def _primitives() -> str:
    parts = ["# Primitives\n\nMethods of a stage `s[T]` and of a schedule `s`.\n"]
    for prefix, about, kind, names in families():
        parts.append(f"\n## {about.rstrip('.')}\n")
        parts += [docstrings.entry(f"{prefix}.{name}", getattr(kind, name)) for name in names]
    return "".join(parts)


def _operators() -> str:
    """The operators by the file that they are written in."""
    parts = ["# te.nn\n\nWhat models are made of, with PyTorch's names and numbers.\n"]
    by_file: dict[str, list[str]] = {}
    for name, value in vars(te.nn).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            by_file.setdefault(inspect.unwrap(value).__code__.co_filename, []).append(name)
    for path, names in by_file.items():
        doc = ast.get_docstring(ast.parse(Path(path).read_text(encoding="utf-8"))) or path
        parts.append(f"\n## {doc.partition(chr(10))[0].rstrip('.')}\n")
        parts += [docstrings.entry(f"te.nn.{name}", getattr(te.nn, name)) for name in names]
    return "".join(parts)


def _torch() -> str:
    """The front door of PyTorch, where PyTorch is; its first lines elsewhere."""
    text = (ROOT / "tedsl" / "torch" / "__init__.py").read_text(encoding="utf-8")
    parts = [f"# tedsl.torch\n\n{ast.get_docstring(ast.parse(text))}\n"]
    if importlib.util.find_spec("torch") is None:
        return f"{parts[0]}\nThis site was built without PyTorch: no more can be shown.\n"
    front: Any = importlib.import_module("tedsl.torch")
    parts += [
        docstrings.entry(f"tedsl.torch.{name}", getattr(front, name)) for name in front.__all__
    ]
    return "".join(parts)


def rewrite_of(doc: str) -> str:
    """The loop nests before and after, from a docstring."""
    lines = doc.partition("Rewrites:\n")[2].splitlines()
    kept: list[str] = []
    for line in lines:
        if line and not line.startswith(" "):
            break
        kept.append(line.removeprefix("    "))
    return "\n".join(kept).strip("\n")


def _cheatsheet() -> str:
    """Every primitive on one page, with the loops before and after."""
    parts = [
        "# Primitives, before and after\n\n"
        "Above the arrow the loops before the call, below it after. Each name leads to its page.\n"
    ]
    for prefix, about, kind, names in families():
        parts.append(f'\n## {about.rstrip(".")}\n\n<div class="grid" markdown>\n')
        for name in names:
            doc = inspect.getdoc(getattr(kind, name)) or ""
            link = f"reference/primitives.md#{docstrings.anchor(f'{prefix}.{name}')}"
            parts.append(
                f"\n<div markdown>\n[`{prefix}.{name}`]({link}): {doc.partition(chr(10))[0]}\n\n"
                f"```text\n{rewrite_of(doc)}\n```\n</div>\n"
            )
        parts.append("\n</div>\n")
    return "".join(parts)


def _errors() -> str:
    """The pages of the classes of errors."""
    parts = [
        "# Errors\n\nEvery refusal says what was given, what is allowed and what to do. "
        'These are the pages that `te.errors.explain("ScheduleError")` prints.\n'
    ]
    for name in te.errors.PAGES:
        text = te.errors.page(name).partition(": ")[2]
        text = re.sub(r"(?m)^(\w[\w ]*)::$", r"**\1:**", text)
        parts.append(f"\n## {name}\n\n{text}")
    return "".join(parts)


def _gallery() -> dict[str, str | bytes]:
    """Kernels with what the viewer shows of them."""
    found: dict[str, str | bytes] = {}
    parts = [
        "# Gallery\n\nEach page shows the graph with what shares a kernel, the loops after every "
        "step of the schedule, the loop IR after every pass and the generated code.\n"
    ]
    for work in gallery.WORKS:
        source = inspect.getsource(work)
        made: te.Schedule = work()
        page = f"gallery/{work.__name__}.html"
        found[page] = gallery.view_of(made, gallery.TARGET)
        about = (inspect.getdoc(work) or "").partition("\n")[0]
        parts.append(
            f"\n## {about.rstrip('.')}\n\n[Its page]({page})\n\n"
            f"```python\n{source}```\n\n```text\n{made}\n```\n"
        )
    found["gallery.md"] = "".join(parts)
    return found
