"""The fuzzers call every primitive there is."""

from __future__ import annotations

import ast
from pathlib import Path

import tedsl as te
from tedsl.scheduling.primitives.stage_handle import primitives_of

HELPERS = Path(__file__).parents[1] / "helpers"


def drawn() -> set[str]:
    """The methods that the drawing helpers hand to `call`, which checks what a refusal leaves."""
    found: set[str] = set()
    for path in sorted(HELPERS.glob("drawn_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            method = node.args[1]
            if isinstance(node.func, ast.Name) and node.func.id == "call":
                found |= {method.attr} if isinstance(method, ast.Attribute) else set()
    return found


def test_every_primitive_is_drawn() -> None:
    known = primitives_of(te.Schedule) | primitives_of(te.Stage)
    assert not known - drawn(), "draw them in tests/helpers/drawn_schedules.py"
