"""Trying candidates for real: compile in parallel, measure one at a time, survive what goes wrong.

The engine runs in a thread of its own and takes batches as they are proposed, so that on a GPU the
candidates of one batch are compiled while those of the batch before are measured and the search
thinks about the next.  Compiling workers fill the on-disk cache and report a hash of the lowered
code; candidates with equal code share one measurement.  One measuring worker per device checks and
times the rest under the device's lock; on a GPU others stand by, set up, to take its place when it
dies.  There a candidate that may win leaves checks open: those with difficult inputs until
compiling workers have made what its outputs must be for them, those at other sizes until they have
compiled it for these.  The device measures others meanwhile, and it is not done before it has
passed.  On the CPU measuring waits until compiling is done, since both want the same cores.
Imports `time_limits`, `processes.pool`, `utilization`, `outcome` and `space`.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.search_space.space import Candidate
from tedsl.autotune.workers.device_lock import DeviceLock
from tedsl.autotune.workers.protocol import (
    PASSING,
    STRIKES,
    Built,
    Done,
    Job,
    Limits,
    Order,
    Ready,
    outcome_of,
    strikes_of,
)
from tedsl.autotune.workers.time_limits import Pace
from tedsl.autotune.workers.utilization import Timeline
from tedsl.autotune.workers.worker_main import COMMAND
from tedsl.autotune.workers.worker_questions import ASIDE, Asking, Encode
from tedsl.backends.processes.pool import Message, Pool, Reply, Worker
from tedsl.errors import TuneError

MOST_MEASURERS = 6
LATELY = 48
"""Measurements whose deaths say how many workers should stand by."""
WATCH_EVERY = 32
"""Measurements between two looks at whether the device has become faster or slower."""
TICK = 1.0
"""Seconds without news after which a wait says so."""


class Engine(Asking):
    """Compiles and measures candidates in worker processes.  Use as a context.

    Args:
        setup: the request that prepares a worker; `role` is added.
        encode: a candidate as the request that describes it (`key` and how to schedule it).
        limits: time limits.
        lock: held while something is measured.
        command: what a worker is.
        measures: False starts no measuring worker until something is to be measured.

    Attributes:
        on_done: called in the engine's thread with an outcome, before another candidate is tried:
            what it keeps outlives a kill of this process.
        on_built: called by `wait`, in its thread, when a candidate is compiled.
        on_ready: called by `wait`, in its thread, when a worker has begun to work.
        on_tick: called by a wait, in its thread, when nothing has happened for a second.
        interrupted: asked by a wait; when it says so, KeyboardInterrupt is raised there.
    """

    def __init__(
        self,
        setup: Message,
        encode: Encode,
        limits: Limits,
        lock: DeviceLock,
        command: Sequence[str] = COMMAND,
        *,
        measures: bool = True,
    ) -> None:
        self.encode = encode
        self.measures = measures
        self.limits = limits
        self.lock = lock
        self.compilers = [
            Worker(command, {**setup, "role": "compile"}, limits.setup)
            for _ in range(limits.workers)
        ]
        self.measurers = [
            Worker(command, {**setup, "role": "measure"}, limits.setup)
            for _ in range(MOST_MEASURERS if limits.overlap else 1)
        ]
        self.measurer = self.measurers[0]
        self._timeline = Timeline(time.monotonic())
        self.by_code: dict[str, Outcome] = {}
        self._bests: dict[str, float] = {}
        self._fastest: dict[str, float] = {}
        self.on_done: Callable[[Done], object] | None = None
        self.on_built: Callable[[Built], object] | None = None
        self.on_ready: Callable[[Ready], object] | None = None
        self.on_tick: Callable[[], object] | None = None
        self.interrupted: Callable[[], bool] | None = None
        self._pool = Pool([*self.compilers, *self.measurers])
        self._new: queue.SimpleQueue[Job | Order] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Done | Built | Ready | None] = queue.SimpleQueue()
        self._waiting: deque[Job] = deque()
        self._compiled: deque[Job] = deque()
        self._orders: deque[Order] = deque()
        self._questions: deque[Order] = deque()
        self._asides: deque[Order] = deque()
        self._owners: dict[Worker, Job | Order] = {}
        self._prepared: Job | None = None
        self._ready: set[Worker] = set()
        self._begun = 0.0
        self._watched: list[tuple[Job, Outcome]] = []
        self._pace = Pace(limits)
        self._same: dict[str, tuple[str, dict[str, float]]] = {}
        self._died: deque[int] = deque([0], LATELY)
        self._stop = threading.Event()
        self._roused = threading.Event()
        self._threads = ThreadPoolExecutor(1, "tedsl-engine")
        self._thread: Future[None] | None = None

    def __enter__(self) -> Engine:
        self._thread = self._threads.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.wake()
        self._threads.shutdown()
        self._pool.close()
        self.lock.close()

    @property
    def timeline(self) -> Timeline:
        """When the device had something to do."""
        return self._timeline

    def begin(
        self,
        number: int,
        candidates: Sequence[Candidate],
        *,
        known: Sequence[Outcome | None] = (),
        deadline: float | None = None,
        at_least: int = 0,
        positions: Sequence[int] | None = None,
    ) -> None:
        """Take a batch, or some of it; its outcomes come out of `wait`.

        Args:
            number: of the batch.
            candidates: what is in it.
            known: earlier outcomes by position.  One that another try may change is tried again,
                until its strikes are used up.
            deadline: `time.monotonic()` after which nothing new is begun.
            at_least: how many of the first of the batch are tried even then.
            positions: of the candidates in the batch; by default they are the whole batch.
        """
        places = range(len(candidates)) if positions is None else positions
        for place, (position, candidate) in enumerate(zip(places, candidates, strict=True)):
            done = known[place] if place < len(known) else None
            strikes = 0 if done is None else strikes_of(done)
            if done is not None and not 0 < strikes < STRIKES:
                self._done.put(Done(number, position, done))
                continue
            limit = None if position < at_least else deadline
            self._new.put(Job(number, position, self.encode(candidate), limit, strikes))
        self._pool.wake()

    def wait(self) -> Done:
        """The next candidate that is done.

        Raises:
            TuneError: the workers cannot work.
            InternalError: a worker met one.
            KeyboardInterrupt: `interrupted` says so.
        """
        while True:
            done = self._next()
            if done is not None:
                return done

    def wait_until(self, until: float | None) -> Done | None:
        """The next candidate that is done; None when none is by then.

        Raises:
            As `wait` does.
        """
        if until is None:
            return self.wait()
        while True:
            left = until - time.monotonic()
            done = self._next(min(TICK, max(0.0, left)))
            if done is not None or left <= 0:
                return done

    def poll(self, seconds: float) -> Done | None:
        """The next candidate that is done, if that does not take longer.

        Raises:
            As `wait` does.
        """
        return self._next(seconds)

    def drain(self) -> list[Done]:
        """What is done already, without a wait."""
        found: list[Done] = []
        while not self._done.empty():
            done = self._done.get()
            if isinstance(done, Done):
                found.append(done)
        return found

    def nudge(self) -> None:
        """Have a wait look whether it is to end; may be called by a signal's handler."""
        self._done.put(None)

    def _next(self, seconds: float = TICK) -> Done | None:
        """What comes next, if it is a candidate's outcome."""
        try:
            done = self._done.get(timeout=seconds)
        except queue.Empty:
            if self.on_tick is not None:
                self.on_tick()
            return None
        if isinstance(done, (Built, Ready)):
            self._tell(done)
            return None
        if done is None:
            self._raise()
        return done

    def _tell(self, news: Built | Ready) -> None:
        """Pass on what is no candidate's outcome."""
        if isinstance(news, Ready) and self.on_ready is not None:
            self.on_ready(news)
        if isinstance(news, Built) and self.on_built is not None:
            self.on_built(news)

    def _raise(self) -> None:
        """Raise what ended the thread, or the wait."""
        if self.interrupted is not None and self.interrupted():
            raise KeyboardInterrupt
        if self._thread is not None and self._thread.done():
            self._thread.result()
            raise TuneError("the engine was asked for more after it had ended")

    def _run(self) -> None:
        """The thread."""
        try:
            if self.measures:
                self._pool.start(self.measurer)
            while not self._stop.is_set():
                self._take()
                blocked = self._begin()
                for worker, request, reply in self._pool.wait(0.02 if blocked else 1.0, idle=True):
                    self._answered(worker, request, reply)
                self._tell_ready()
        finally:
            self._pool.kill_all()
            self._done.put(None)

    def _tell_ready(self) -> None:
        """Tell which workers have begun to work; behind the first that measures another stands."""
        for worker in (*self.compilers, *self.measurers):
            if worker.has_served and worker not in self._ready:
                self._ready.add(worker)
                if worker is self.measurers[0]:
                    self._stand_by()
                seconds = worker.facts.get("seconds", {})
                self._done.put(Ready(time.monotonic(), str(worker.setup["role"]), seconds))

    def _take(self) -> None:
        """What was asked for since."""
        if self._roused.is_set():
            self._roused.clear()
            for worker in self.compilers:
                self._pool.start(worker)
        while not self._new.empty():
            new = self._new.get()
            if isinstance(new, Job):
                self._arrived(new)
            elif new.aside:
                self._asides.append(new)
            elif new.compiles:
                self._questions.append(new)
            else:
                self._orders.append(new)

    def _arrived(self, job: Job) -> None:
        """A candidate that is compiled to what another was need not be compiled."""
        found = self._same.get(job.same) if job.same else None
        if found is None:
            self._waiting.append(job)
            return
        self._is_compiled(job, f"{found[0]}@{job.problem}", {**found[1], "compile_seconds": 0.0})

    def _begin(self) -> bool:
        """Hand out work to idle workers; True when only the device's lock stands in the way."""
        self._drop_late()
        for worker in sorted(self.compilers, key=lambda w: w.process is None or w.setting_up):
            most = max(1, len(self.compilers) // ASIDE)
            if self._asides and not worker.busy and len(self._referring()) < most:
                order = self._asides.popleft()
                self._submit(worker, order.request, order.limit, order)
            if self._questions and not worker.busy:
                order = self._questions.popleft()
                limit = min(order.limit, order.until - time.monotonic())
                self._submit(worker, order.request, limit, order)
            if self._waiting and not worker.busy:
                job = self._waiting.popleft()
                limit = self._pace.compile_limit(settled=worker.settled)
                self._submit(worker, {"op": job.op, **job.described}, limit, job)
        self._change_measurer()
        return self._begin_measuring()

    def _begin_measuring(self) -> bool:
        """Hand out what is for the device; True when only its lock stands in the way."""
        while not self.measurer.busy and self._quiet():
            if self._orders:
                if not self.lock.try_acquire():
                    return True
                order = self._orders.popleft()
                self._measure(order.request, order.limit, order)
                continue
            job = self._following()
            if job is None:
                break
            same = None if job.described.get("closely") else self.by_code.get(job.code)
            if same is not None:
                self._compiled.remove(job)
                reason = same.reason or "same code as another candidate"
                self._finish(job, replace(same, reason=reason))
            elif self.lock.try_acquire():
                self._compiled.remove(job)
                limit = self._pace.measure_limit(job, settled=self.measurer.settled)
                self._measure(self._asked_of(job), limit, job)
            else:
                return True
        self._prepare()
        self._hurry()
        return False

    def _asked_of(self, job: Job) -> Message:
        """What the measuring worker is asked of a candidate."""
        request = {"op": job.op, **job.described, "bound": self._bests.get(job.problem)}
        if job.measured is not None:
            return {**request, "left": job.left}
        return {
            **request,
            "fastest": self._fastest.get(job.problem),
            "apart": self.limits.overlap,
            "referring": self._refers(job.problem),
        }

    def _following(self) -> Job | None:
        """What is measured next; a check waits until references are made."""
        able = (j for j in self._compiled if "inputs" not in j.left or not self._refers(j.problem))
        return min(able, key=lambda job: job.batch, default=None)

    def _referring(self) -> list[Order]:
        """The references that are made now."""
        return [each for each in self._owners.values() if isinstance(each, Order) and each.aside]

    def _refers(self, problem: str) -> bool:
        """Whether references of a problem are going to be made aside."""
        orders = (*self._asides, *self._referring())
        return any(order.request.get("problem", "") == problem for order in orders)

    def _change_measurer(self) -> None:
        """Let the one that stands by measure when the other is being set up again."""
        if self.measurer.busy:
            return
        ready = [w for w in self.measurers if w.process is not None and not w.setting_up]
        if ready and self.measurer not in ready:
            self.measurer = ready[0]

    def _stand_by(self) -> None:
        """Start workers that stand by: one, and one more for each that died lately, since it takes
        longer to set one up than to measure."""
        died = sum(max(0, worker.starts - 1) for worker in self.measurers)
        self._died.append(died)
        wanted = 2 + died - self._died[0]
        for worker in self.measurers[:wanted]:
            if worker.process is None and not worker.failures:
                self._pool.start(worker)

    def _hurry(self) -> None:
        """Wait less long for compilations when there is nothing else to do."""
        if self._waiting or self._following() or self._orders or self.measurer.busy:
            return
        limit = self._pace.stalled_limit()
        for worker in self.compilers:
            compiles = isinstance(self._owners.get(worker), Job)
            if compiles and worker.settled and limit < worker.limit:
                worker.limit, worker.deadline = limit, worker.sent + limit

    def _prepare(self) -> None:
        """Tell the measuring worker what comes next, so that it has it built by then."""
        if not self.limits.overlap or not self.measurer.busy:
            return
        following = self._following()
        if following is None or following is self._prepared:
            return
        if following.code not in self.by_code:
            self._prepared = following
            self.measurer.prepare(following.described)

    def _drop_late(self) -> None:
        for jobs in (self._waiting, self._compiled):
            for job in [job for job in jobs if job.late]:
                jobs.remove(job)
                self._finish(job, None)
        now = time.monotonic()
        self._questions = deque(order for order in self._questions if order.until > now)

    def _submit(self, worker: Worker, request: Message, limit: float, owner: Job | Order) -> None:
        self._owners[worker] = owner
        self._pool.submit(worker, request, limit)

    def _measure(self, request: Message, limit: float, owner: Job | Order) -> None:
        self._begun = time.monotonic()
        self._submit(self.measurer, request, limit, owner)

    def _quiet(self) -> bool:
        """True when nothing disturbs a measurement: neither what the compiling workers do now, nor
        a killed kernel that the device has not let go of."""
        if any(worker.lingers for worker in self.measurers):
            return False
        return self.limits.overlap or not any(worker.busy for worker in self.compilers)

    def _answered(self, worker: Worker, request: Message, reply: Reply) -> None:
        owner = self._owners.pop(worker)
        now = time.monotonic()
        measured = worker in self.measurers
        if measured:
            self.lock.release()
            self._stand_by()
            self._timeline.add(request["op"], self._begun, now, reply.message.get("parts", {}))
        if isinstance(owner, Order):
            owner.take(reply)
        elif measured:
            self._measured(owner, reply, now - worker.sent)
        else:
            self._was_compiled(owner, reply)

    def _was_compiled(self, job: Job, reply: Reply) -> None:
        if reply.message.get("status") != "ok":
            self._known(job, outcome_of(reply, job.code))
        elif job.measured is not None:
            job.op = "check"
            self._compiled.append(job)
        else:
            code, resources = str(reply.message["code"]), dict(reply.message.get("resources", {}))
            taken = resources.get("compile_seconds", 0.0)
            self._pace.compiled(taken)
            self._timeline.compile_seconds += taken
            if job.same:
                self._same[job.same] = code.partition("@")[0], resources
            self._is_compiled(job, code, resources)

    def _is_compiled(self, job: Job, code: str, resources: dict[str, float]) -> None:
        job.code, job.resources, job.op = code, resources, "measure"
        self._compiled.append(job)
        self._done.put(Built(job.batch, job.position, code, resources))

    def _measured(self, job: Job, reply: Reply, seconds: float) -> None:
        if job.measured is not None and reply.message.get("status") == "ok":
            self._known(job, job.measured)
            return
        outcome = outcome_of(reply, job.code)
        outcome = replace(outcome, resources={**job.resources, **outcome.resources})
        if outcome.status is Status.OK:
            self._pace.measured(job, seconds)
            self._note_fastest(job, outcome)
            left = reply.message.get("open")
            if left:
                self._leave_open(job, outcome, tuple(left))
                return
        self._known(job, outcome)

    def _note_fastest(self, job: Job, outcome: Outcome) -> None:
        """What others need not be much slower than to be given up, whatever may be left open."""
        if outcome.seconds is not None:
            fastest = self._fastest.get(job.problem, outcome.seconds)
            self._fastest[job.problem] = min(fastest, outcome.seconds)

    def _leave_open(self, job: Job, outcome: Outcome, left: tuple[str, ...]) -> None:
        """A candidate comes to `outcome` if it passes what is left."""
        job.measured, job.left, job.op = outcome, left, "check"
        if "sizes" in left:
            job.op = "compile_more"
            self._waiting.appendleft(job)
        else:
            self._compiled.append(job)

    def _known(self, job: Job, outcome: Outcome) -> None:
        """Of a candidate everything has been found out."""
        if job.code and outcome.status is not Status.TIMEOUT:
            self.by_code[job.code] = outcome  # a slow machine must not condemn equal code
        if outcome.status is Status.OK and outcome.seconds is not None:
            best = self._bests.get(job.problem, outcome.seconds)
            self._bests[job.problem] = min(best, outcome.seconds)
            self._watched.append((job, outcome))
            if len(self._watched) >= WATCH_EVERY:
                self._watch()
        self._finish(job, outcome)

    def _watch(self) -> None:
        """See whether the device has changed since the last look; candidates measured since are
        timed again if so."""
        watched = {str(job.described["key"]): (job, out) for job, out in self._watched}
        self._watched.clear()
        asked: list[Message] = [job.described for job, _ in watched.values()]

        def take(reply: Reply) -> None:
            again: dict[str, list[float]] = reply.message.get("again", {})
            for key, samples in again.items():
                job, outcome = watched[key]
                median = statistics.median(samples)
                fresh = replace(outcome, seconds=median, samples=tuple(samples))
                self.by_code[fresh.code] = fresh
                self._done.put(Done(job.batch, job.position, fresh, again=True))

        limit = self.limits.measure + 2.0 * len(asked)
        self._orders.append(Order({"op": "watch", "candidates": asked}, limit, take))

    def _finish(self, job: Job, outcome: Outcome | None) -> None:
        if outcome is not None and outcome.status in PASSING:
            strikes = {"strikes": float(job.strikes + 1)}
            outcome = replace(outcome, resources={**outcome.resources, **strikes})
        done = Done(job.batch, job.position, outcome)
        if self.on_done is not None:
            self.on_done(done)
        self._done.put(done)
