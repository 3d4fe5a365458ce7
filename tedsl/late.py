"""Modules that are loaded at their first use, so that `import tedsl` reads only what every script
needs.

The file that uses such a module names it twice: under TYPE_CHECKING for type checkers, otherwise by
`late`.  Imports nothing of the package.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class LateModule(ModuleType):
    """Stands for the module of its name; asking for an attribute loads that module."""

    def __getattr__(self, name: str) -> Any:
        module = sys.modules.get(self.__name__)
        if module is None or not hasattr(module, name):  # as long as another thread is loading it
            module = importlib.import_module(self.__name__)
        return getattr(module, name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self.__name__))

    def __repr__(self) -> str:
        return f"<late module {self.__name__!r}>"


def late(name: str) -> Any:
    """The module `name`, which is loaded when something in it is first asked for."""
    return LateModule(name)
