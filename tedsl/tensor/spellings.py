"""TVM's names for arguments that have another name here: scripts give them as keywords.

Imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_AXIS = {"var": "axis"}
KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "bind": {"ivar": "axis", "thread_ivar": "thread"},
    "compute_at": {"parent": "stage", "scope": "axis"},
    "vectorize": _AXIS,
    "unroll": _AXIS,
    "parallel": _AXIS,
    "pragma": _AXIS,
    "prefetch": _AXIS,
    "set_store_predicate": {"predicate": "condition"},
    "tensorize": {"var": "axis", "tensor_intrin": "intrin"},
    "thread_axis": {"tag": "thread_tag"},
    "transform_layout": {"mapping_function": "fn", "mapping": "fn"},
}
"""By function: TVM's name of an argument, and ours."""


def respelt(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments under the names that they have here."""
    known = KEYWORDS.get(function, {})
    return {known.get(name, name): value for name, value in given.items()}
