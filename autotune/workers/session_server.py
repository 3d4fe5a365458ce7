"""Several problems in one worker: every request names its problem, whose set-up is in a file.

So one measuring process per device serves all sizes and all tasks of a search.  A problem is opened
before the first candidate of it is measured, and only the last few stay open; sizes of one
computation share its kernels.  Run as `python -m tedsl.autotune.workers.session_server`.  Imports
`session`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tedsl.autotune.workers.session import TuneSession, preload
from tedsl.autotune.workers.worker_main import serve
from tedsl.backends.processes.serving import Message
from tedsl.errors import TuneError
from tedsl.workload.workload import digest

COMMAND = (sys.executable, "-P", "-m", "tedsl.autotune.workers.session_server")
FEWEST, MOST = 3, 16
"""How many problems a process keeps open; fewer than most where their arrays crowd its memory."""
FOLDER = "problems"


def write_problem(scratch: str, setup: Message) -> str:
    """Put the set-up of a problem where workers find it; returns its name."""
    text = json.dumps(setup, sort_keys=True)
    name = digest(text)
    folder = Path(scratch) / FOLDER / name
    if not folder.exists():
        folder.mkdir(parents=True)
        partial = folder / "setup.part"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / "setup.json")
    return name


class Sessions:
    """The problems of one worker.

    Args:
        setup: `target`, `scratch` (a folder), `role`, `device` (the name of the GPU), `features`.
    """

    def __init__(self, setup: Message) -> None:
        self.setup = setup
        self.opened: dict[str, TuneSession] = {}
        self.current = ""

    @property
    def facts(self) -> Message:
        """How many problems are open to begin with."""
        return {"open": len(self.opened)}

    def open(self, request: Message) -> Message:
        """Make the inputs and the reference of a problem."""
        return self._guarded(request, lambda session, _: session.make_ready())

    def compile(self, request: Message) -> Message:
        """Build a candidate; equal code for another problem is another measurement."""
        reply = self._guarded(request, TuneSession.compile)
        if reply["status"] == "ok":
            reply["code"] = f"{reply['code']}@{request['problem']}"
        return reply

    def measure(self, request: Message) -> Message:
        """Check and time a candidate; the bound is that of its problem, as who asks or this device
        knows it."""
        known = [each for each in (request.get("best"), request.get("bound")) if each is not None]
        return self._guarded({**request, "bound": min(known, default=None)}, TuneSession.measure)

    def compile_more(self, request: Message) -> Message:
        """Compile what the closest checks of a candidate launch."""
        return self._guarded(request, TuneSession.compile_more)

    def check(self, request: Message) -> Message:
        """The checks that measuring a candidate has left open."""
        return self._guarded(request, TuneSession.check)

    def compare(self, request: Message) -> Message:
        """Time several candidates of one problem in turn."""
        candidates = [_plain(item) for item in request["candidates"]]
        first = {**request["candidates"][0], **request, "key": "", "candidates": candidates}
        return self._guarded(first, TuneSession.compare)

    def verify(self, request: Message) -> Message:
        """Call a candidate again and again."""
        return self._guarded(request, TuneSession.verify)

    def estimate(self, request: Message) -> Message:
        """What the static model says of some candidates of one problem."""
        candidates = [_plain(item) for item in request["candidates"]]
        first = {**request["candidates"][0], **request, "key": "", "candidates": candidates}
        return self._guarded(first, TuneSession.estimate)

    def refer(self, request: Message) -> Message:
        """Make what the outputs of a problem must be for one kind of inputs."""
        return self._guarded({**request, "key": ""}, TuneSession.refer)

    def watch(self, request: Message) -> Message:
        """Look whether the device has changed, by the problem measured last; time all candidates
        anew if so."""
        session = self.opened.get(self.current)
        none: Message = {"status": "ok", "drift": 0.0, "again": {}}
        if session is None:
            return none
        found = session.watch({**request, "candidates": []})
        if not found["drift"]:
            return none
        again: dict[str, list[float]] = {}
        for item in request["candidates"]:
            own = self.session(item["problem"])
            again[item["key"]] = own.time_again(_plain(item))
        return {"status": "ok", "drift": found["drift"], "again": again}

    def prepare(self, request: Message) -> None:
        """Build what is asked for next while the device checks something else of its problem, or of
        one that has the same kernels."""
        session, current = self.opened.get(request["problem"]), self.opened.get(self.current)
        if session is not None and current is not None and session.kernels is current.kernels:
            current.prepare(_plain(request))

    def fault(self) -> str | None:
        """What is wrong with the device, if it takes no more work."""
        session = self.opened.get(self.current)
        return None if session is None else session.fault()

    def session(self, problem: str) -> TuneSession:
        """The session of a problem, opened if need be; the one used longest ago is closed."""
        session = self.opened.pop(problem, None)
        if session is None:
            session = self._open(problem)
        self.opened[problem] = session
        self.current = problem
        return session

    def _open(self, problem: str) -> TuneSession:
        folder = Path(self.setup["scratch"]) / FOLDER / problem
        told: Message = json.loads((folder / "setup.json").read_text(encoding="utf-8"))
        setup = {**self.setup, **told, "scratch": str(folder)}
        while not self.has_room():
            self.opened.pop(next(iter(self.opened))).close()
        others = [s for s in self.opened.values() if s.is_like(setup)]
        return TuneSession(setup, others[-1] if others else None)

    def has_room(self) -> bool:
        """Whether one more problem may be open."""
        count = len(self.opened)
        if not FEWEST <= count < MOST:
            return count < FEWEST
        benches = [session.bench for session in self.opened.values()]
        return not any(bench is not None and bench.arena.is_crowded() for bench in benches)

    def _guarded(
        self, request: Message, work: Callable[[TuneSession, Message], Message]
    ) -> Message:
        """Do it in the problem's session; one that cannot be opened is the problem's fault."""
        try:
            return work(self.session(request["problem"]), _plain(request))
        except TuneError as error:
            return {"status": "illegal", "reason": error.reason, "text": str(error)}


def _plain(request: Message) -> Message:
    """A request by the key that the candidate has in every problem."""
    return {**request, "key": str(request["key"]).partition(":")[2]}


def main() -> None:
    """Serve."""
    serve(Sessions, preload)


if __name__ == "__main__":
    main()
