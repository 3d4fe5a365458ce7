"""The process that makes for another what takes Python long:
`python -m tedsl.backends.processes.beside_main`.

Imports what it is told to: no PyTorch, and nothing that touches a device.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

from tedsl.backends.processes.serving import Message, Service, serve


def preload(setup: Message) -> None:
    """Import what is going to be called, in the environment of the parent."""
    os.environ.update(setup["environment"])
    importlib.import_module(setup["module"])


def call(request: Message) -> Message:
    """What a function of the package makes of what is given."""
    module, _, name = request["function"].partition(":")
    function: Callable[[Message], Message] = getattr(importlib.import_module(module), name)
    return {"status": "ok", "made": function(request["given"])}


def main() -> None:
    """Serve until the parent is gone."""
    serve(lambda setup: Service({"call": call}), preload)


if __name__ == "__main__":
    main()
