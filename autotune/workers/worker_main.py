"""The child process in which candidates are compiled and run:
`python -m tedsl.autotune.workers.worker_main`.

How it is served is told in `tedsl.backends.processes.serving`; here is what a session can be asked.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from tedsl.backends.processes import serving
from tedsl.backends.processes.serving import Handler, Message, Service

COMMAND = (sys.executable, "-P", "-m", "tedsl.autotune.workers.worker_main")
_SESSION = "tedsl.autotune.workers.session"


class Session(Protocol):
    """What a worker does once it knows the problem.  Each method takes a request, gives a reply."""

    @property
    def facts(self) -> Message:
        """What the parent wants to know of the set-up: device, reference, bytes moved."""
        ...

    def compile(self, request: Message) -> Message:
        """Build a candidate, so that its code is in the on-disk cache."""
        ...

    def measure(self, request: Message) -> Message:
        """Build, check and time a candidate."""
        ...

    def compare(self, request: Message) -> Message:
        """Time several checked candidates in turn."""
        ...

    def watch(self, request: Message) -> Message:
        """See whether the device has become faster or slower; time candidates anew if so."""
        ...


@runtime_checkable
class Estimating(Protocol):
    """A session that can say what to expect of candidates without compiling them."""

    def estimate(self, request: Message) -> Message:
        """Features of each of `candidates`, as `found`."""
        ...


@runtime_checkable
class Realising(Protocol):
    """A session that can say what decisions lead to."""

    def realise(self, request: Message) -> Message:
        """The candidate, or the refusal, of each of `wanted`, as `found`."""
        ...


@runtime_checkable
class Referring(Protocol):
    """A session that can make ahead what candidates are checked against."""

    def refer(self, request: Message) -> Message:
        """Make the reference of the inputs of `kind`, for whoever asks for it."""
        ...


@runtime_checkable
class CompilesMore(Protocol):
    """A session that can compile what only the closest checks of a candidate launch."""

    def compile_more(self, request: Message) -> Message:
        """Compile that, to be found by the measuring worker."""
        ...


@runtime_checkable
class Checks(Protocol):
    """A session that may leave the closest checks of a candidate for a request of their own."""

    def check(self, request: Message) -> Message:
        """What `measure` has left open, saying so."""
        ...


@runtime_checkable
class Verifies(Protocol):
    """A session that can call a candidate so often that a rare fault shows."""

    def verify(self, request: Message) -> Message:
        """What was found, and after how many `calls`."""
        ...


@runtime_checkable
class Device(Protocol):
    """A session on a device that can stop to work for this process."""

    def fault(self) -> str | None:
        """What is wrong with the device, if it takes no more work; None when it does."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """A session that can begin with a later request while another one waits for its device."""

    def prepare(self, request: Message) -> None:
        """Note what will be asked for next."""
        ...


@runtime_checkable
class Opens(Protocol):
    """A session of several problems, which are told one by one."""

    def open(self, request: Message) -> Message:
        """Make all that measuring a problem needs, which may take longer than to measure."""
        ...


def serve(
    open_session: Callable[[Message], Session], preload: Callable[[Message], None] | None = None
) -> None:
    """Answer requests until standard input closes: `serving.serve` of a session."""
    serving.serve(lambda setup: _service(open_session(setup)), preload)


def _service(session: Session) -> Service:
    """What a session can be asked."""
    handlers: dict[str, Handler] = {
        "compile": session.compile,
        "measure": session.measure,
        "compare": session.compare,
        "watch": session.watch,
    }
    if isinstance(session, Estimating):
        handlers["estimate"] = session.estimate
    if isinstance(session, Realising):
        handlers["realise"] = session.realise
    if isinstance(session, Referring):
        handlers["refer"] = session.refer
    if isinstance(session, CompilesMore):
        handlers["compile_more"] = session.compile_more
    if isinstance(session, Checks):
        handlers["check"] = session.check
    if isinstance(session, Verifies):
        handlers["verify"] = session.verify
    if isinstance(session, Opens):
        handlers["open"] = session.open
    return Service(
        handlers,
        session.facts,
        session.prepare if isinstance(session, Prepared) else None,
        session.fault if isinstance(session, Device) else None,
    )


def main() -> None:
    """Serve the real session, loaded only here."""
    module: Any = importlib.import_module(_SESSION)
    serve(module.open_session, module.preload)


if __name__ == "__main__":
    main()
