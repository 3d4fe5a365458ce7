"""An object of the reference as Markdown: heading, signature, and its docstring's sections.

griffe reads the sections; objects are looked at as they are after import, since public names are
loaded late and wrapped.
"""

from __future__ import annotations

import inspect
import logging
import re
from typing import Any

from griffe import Docstring, DocstringSectionKind

logging.getLogger("griffe").setLevel(logging.ERROR)  # parameters are annotated in the signatures


def entry(name: str, value: Any, level: int = 3) -> str:
    """One object under a heading that links can name (`anchor`)."""
    parts = [f"\n{'#' * level} {name} {{ #{anchor(name)} }}\n"]
    if callable(value) and not (inspect.isclass(value) and issubclass(value, Exception)):
        parts.append(f"\n```python\n{signature(name, value)}\n```\n")
    parts.append(text_of(inspect.getdoc(value) or ""))
    if inspect.isclass(value):
        for each, member in methods(value).items():
            parts.append(entry(f"{name}.{each}", member, level + 1))
    return "".join(parts)


def methods(kind: type[Any]) -> dict[str, Any]:
    """The public methods and properties that a class itself documents."""
    return {
        name: member
        for name, member in vars(kind).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property))
        and inspect.getdoc(member)
    }


def anchor(name: str) -> str:
    """What links to an entry end in."""
    return name.replace("[", "").replace("]", "")


def signature(name: str, value: Any) -> str:
    """The call, a parameter a line where it is long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    kept = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    text = str(found.replace(parameters=kept)).replace("'", "")
    if len(name) + len(text) > 88:
        lines = "".join(f"    {p},\n".replace("'", "") for p in _with_star(kept))
        text = f"(\n{lines})" + text[text.rindex(")") + 1 :]
    return f"{name}{text}"


def _with_star(parameters: list[inspect.Parameter]) -> list[str]:
    """The parameters as written, the lone star included."""
    written: list[str] = []
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and "*" not in "".join(w[0] for w in written):
            written.append("*")
        written.append(str(p))
    return written


def text_of(doc: str) -> str:
    """A docstring as Markdown."""
    parts: list[str] = []
    for section in Docstring(doc).parse("google"):
        kind, value = section.kind, section.value
        if kind is DocstringSectionKind.text:
            parts.append(f"\n{value}\n")
        elif kind is DocstringSectionKind.admonition:
            title = section.title or value.kind
            loops = "-->" in value.contents or title.lower() == "rewrites"
            body = f"```text\n{value.contents}\n```" if loops else value.contents
            parts.append(f"\n**{title}:**\n\n{body}\n")
        else:
            parts.append(f"\n**{kind.value.capitalize()}:**\n\n{_items(value)}\n")
    return re.sub(r"(?m)^(\S[^`\n]*)::$", r"\1:", "".join(parts))


def _items(values: Any) -> str:
    """Parameters, results or errors as a list."""
    if isinstance(values, str):
        return values
    lines: list[str] = []
    for each in values:
        if isinstance(each, tuple):  # a piece of an example
            lines.append(str(each[1]))
            continue
        name = getattr(each, "name", "") or getattr(each, "annotation", "") or ""
        said = str(each.description).replace("\n", "\n  ")
        lines.append(f"- `{name}`: {said}" if name else f"- {said}")
    return "\n".join(lines)
