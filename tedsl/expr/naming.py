"""What tensors, axes and sizes may be called: any text that can be printed on one line.

The one rule for names.  Whatever is made of a name afterwards (symbols, variables of generated
text, files) is made legal there; what no text could show is refused where the name is given.
Imports `errors` only.
"""

from __future__ import annotations

from tedsl.errors import ExprError


def check_name(name: object, what: str) -> None:
    """Refuse what is no name.

    Args:
        name: what was given.
        what: what it is to be the name of, e.g. `placeholder`.

    Raises:
        ExprError: no text, an empty one, or one with line ends or other characters that cannot be
            printed.
    """
    if not isinstance(name, str):
        raise ExprError(
            f"the name of a {what} is {name!r} ({type(name).__name__})",
            facts=[("allowed", "text")],
            hint='give a str, e.g. name="A"',
        )
    if not name:
        raise ExprError(f"the name of a {what} is empty", hint='give a name, e.g. name="A"')
    if not name.isprintable():
        strange = next(c for c in name if not c.isprintable())
        raise ExprError(
            f"the name {name!a} of a {what} has the character U+{ord(strange):04X}, "
            "which cannot be printed",
            facts=[("allowed", "letters, digits, punctuation and spaces, of any script")],
            hint="give a name on one line, without control characters",
        )
