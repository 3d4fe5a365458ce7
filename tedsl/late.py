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
    """Stands for the module of its name; asking for an attribute loads that module, which takes
    this one's place among the names of the file that asks."""

    def __init__(self, name: str, names: dict[str, Any]) -> None:
        super().__init__(name)
        self._names = names

    def __getattr__(self, name: str) -> Any:
        module = sys.modules.get(self.__name__)
        if module is None or not hasattr(module, name):  # as long as another thread is loading it
            module = importlib.import_module(self.__name__)
        if not getattr(module.__spec__, "_initializing", False):
            for own in [own for own, value in list(self._names.items()) if value is self]:
                self._names[own] = module
        return getattr(module, name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self.__name__))

    def __repr__(self) -> str:
        return f"<late module {self.__name__!r}>"


def late(name: str) -> Any:
    """The module `name`, which is loaded when something in it is first asked for."""
    return LateModule(name, sys._getframe(1).f_globals)  # pyright: ignore[reportPrivateUsage]
