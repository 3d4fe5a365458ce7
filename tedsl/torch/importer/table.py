"""The documentation's table of operators, made from the registry.

`python -m tedsl.torch.importer.table` writes it to standard output.
"""

from __future__ import annotations

import sys
from typing import Any

from tedsl.torch import operators
from tedsl.torch.importer.left import LEFT
from tedsl.torch.importer.registry import REGISTRY, Family

_HEAD = """# PyTorch's operators in tedsl

Made by `python -m tedsl.torch.importer.table > tutorials/docs/torch_operators.md`: a test compares.

Graphs come functionalised and decomposed: an operator that is not here is often one that PyTorch
writes in terms of those that are. {count} overloads have a converter. What none takes, or beyond
the limits given here, runs as PyTorch runs it; `tedsl.torch.explain(model, *inputs)` says what that
was, and why.
Complex numbers, quantised and sparse tensors are not taken.
"""


def markdown() -> str:
    """The page."""
    assert operators.__all__  # which have registered
    rows = [_HEAD.format(count=len(REGISTRY))]
    for family in Family:
        entries = [entry for entry in REGISTRY.values() if entry.family is family]
        rows += [f"\n## {family.value[0].upper()}{family.value[1:]}\n"]
        rows += ["| operator | taken |", "|---|---|"]
        for entry in sorted(entries, key=lambda each: str(each.target)):
            rows.append(f"| `{entry.target}` | {entry.limits or 'exactly'} |")
    rows += ["\n## Left to PyTorch\n", "| operator | why |", "|---|---|"]
    rows += [f"| `aten.{name}` | {why} |" for name, why in sorted(LEFT.items())]
    return "\n".join(rows) + "\n"


def main(write: Any = sys.stdout.write) -> None:
    """Write the page."""
    write(markdown())


if __name__ == "__main__":
    main()
