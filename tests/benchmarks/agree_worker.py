"""Run drawn pairs in a process of its own, asked for by lines of JSON: the child of
`agree_on_device.py`.

    {"kind": "schedules", "seed": 7}            a pair by its seed
    {"kind": "rules", "given": [3, 0, 1]}       by the numbers drawn
    {..., "show": true}                         the text of the pair, and nothing runs

Before each step its name is written, so that whoever reads knows where a process ended or stopped.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import numpy as np
from agreeing import Oracle, interpreted
from drawn_pairs import Pair, pair
from every_kernel import VALUES, _largest_tile
from failing_programs import program
from guarded import Memory, device_zones
from red_zones import red_zones

import tedsl as te
from tedsl.backends.triton.compile import compile_time
from tedsl.backends.triton.compile.offline import ast_source, compile_errors, refusal, requests_of
from tedsl.backends.triton.emit.module import emit
from tedsl.backends.triton.emit.program import TritonProgram
from tedsl.cost.devices import device_for
from tedsl.cost.estimate import estimate
from tedsl.errors import BackendError, InternalError, LowerError, TedslError
from tedsl.expr.numerics import numpy_dtype
from tedsl.ir.nodes import Module
from tedsl.target import Target
from tedsl.tensor.printer import print_graph

MINUTES = 120.0
"""Seconds of compiling, as the model tells them, for which a schedule is too large to be tried."""
ROOM = re.compile(
    r"needs \d+ of shared memory, the device has|too many blocks in cooperative launch"
)
TILE = re.compile(r"^a tile of kernel \S+ has \d+ elements")
DEAD = re.compile(r"CUDA error|illegal memory|device-side|misaligned address|unspecified launch")


class Worker:
    """Draws, builds, runs and compares."""

    def __init__(self, options: argparse.Namespace, answer: Any) -> None:
        self.options = options
        self.target = Target.parse(options.target)
        self.where = target = options.target
        self.answer = answer
        self.seconds: dict[str, float] = {}
        self.at = ("", 0.0)
        self.torch: Any = None
        self.device = target == "cuda"
        if target in ("cpu", "cuda") and importlib.util.find_spec("torch"):
            self.torch = importlib.import_module("torch")
        if self.device:
            launcher: Any = importlib.import_module("tedsl.backends.triton.launch.launcher")
            launcher.__dict__["_compiled"] = self.noting(launcher.__dict__["_compiled"])

    def noting(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Triton compiles when a kernel is first launched: a step of its own."""

        def noted(*args: Any) -> Any:
            self.step("compile")
            try:
                return compiled(*args)
            finally:
                self.step("run")

        return noted

    def step(self, name: str) -> None:
        """What is done from now on."""
        now = time.perf_counter()
        if self.at[0]:
            self.seconds[self.at[0]] = self.seconds.get(self.at[0], 0.0) + now - self.at[1]
        self.at = (name, now)
        if name:
            self.say({"step": name})

    def say(self, what: dict[str, Any]) -> None:
        """One line of the answer."""
        self.answer.write(json.dumps(what) + "\n")
        self.answer.flush()

    def serve(self) -> None:
        """Answer until there are no more requests, or the device takes no more work."""
        for line in sys.stdin:
            request = json.loads(line)
            self.seconds.clear()
            found = self.asked(request)
            self.step("")
            self.at = ("", 0.0)
            self.say({**found, "seconds": dict(self.seconds)})
            if found["status"] == "device":
                return

    def asked(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        self.step("draw")
        kind, extents = request["kind"], self.options.extents
        seed, given = f"{kind}:{request.get('seed')}", request.get("given")
        try:
            drawn = pair(kind, self.where, seed, given, extents, self.options.aligned)
        except Exception as error:  # of the computation, which is then not there
            return self.failed(error)
        if request.get("show"):
            return {"status": "shown", "text": text_of(drawn, self.where), "noted": drawn.noted}
        try:
            if drawn.schedule is None or drawn.error:
                raise drawn.error or AssertionError("there is no schedule")
            if request.get("predict"):
                return self.predicted(drawn, drawn.schedule)
            found = self.checked(drawn, drawn.schedule)
            found["steps"] = sorted({each.primitive for each in drawn.schedule.trace.steps})
        except Exception as error:  # whatever it is, it is what was looked for
            found = self.failed(error)
        found["families"] = drawn.families
        if found["status"] not in ("right", "large"):
            found["noted"] = drawn.noted
        return found

    def checked(self, drawn: Pair, schedule: te.Schedule) -> dict[str, Any]:
        """Build, run and compare."""
        only = self.options.compile_only and self.target.is_triton
        try:
            if only or self.options.check:
                self.step("lower")
                module = te.lower(schedule, self.target, check=self.options.check)
                if self.target.is_triton and _is_large(module):
                    return {"status": "large"}
                if self.options.check:
                    self.interpret(drawn, module)
                if self.options.emit_only and only:
                    self.step("emit")
                    read_by_triton(emit(module, self.target), self.target.arch or "sm_90")
                    return {"status": "right"}
            self.step("build")
            kernel = te.build(schedule, target=self.target, cache=False)
            if self.device and _is_large(kernel.module):  # it is compiled when it is called
                return {"status": "large"}
        except (LowerError, BackendError) as error:
            status = "large" if TILE.search(told(error)) else "refused"
            return {"status": status, "message": told(error)}
        except AssertionError as error:
            return {"status": "wrong", "message": str(error)}
        if self.options.compile_only:
            return {"status": "right"}
        self.step("reference")
        oracle = Oracle(drawn.case)
        try:
            self.run(drawn, kernel, oracle)
        except BackendError as error:  # more shared memory than there is, for one
            text = f"when it ran: {told(error)}"
            if self.device and DEAD.search(text):
                raise
            if ROOM.search(text):
                return {"status": "large", "message": text}
            return {"status": "refused", "message": text}
        except AssertionError as error:
            return {"status": "wrong", "message": str(error)}
        return {"status": "right"}

    def interpret(self, drawn: Pair, module: Module) -> None:
        """Run the loop IR, and compare."""
        self.step("reference")
        oracle = Oracle(drawn.case)
        self.step("interpret")
        oracle.compare(interpreted(module, drawn.case), "interpreted")

    def predicted(self, drawn: Pair, schedule: te.Schedule) -> dict[str, Any]:
        """The seconds of a call by the cost model."""
        self.step("lower")
        module = te.lower(schedule, self.target)
        found = estimate(module, device_for(self.target), drawn.case.sizes)
        return {"status": "right", "predicted": found.seconds}

    def run(self, drawn: Pair, kernel: te.Kernel, oracle: Oracle) -> None:
        """Call it, once or twice, and compare."""
        case = drawn.case
        by_name = {tensor.name: array for tensor, array in case.inputs.items()}
        inputs = [by_name[buffer.name] for buffer in kernel.module.inputs]
        sizes = {var.name: value for var, value in case.sizes.items()}
        scalars = {name: sizes[name] for name in kernel.signature.keywords}
        tensors = [b.dtype for b in (*kernel.module.inputs, *kernel.module.outputs)]
        outputs = [
            (a.shape, numpy_dtype(t.dtype))
            for a, t in zip(oracle.wanted, case.outputs, strict=True)
        ]
        memory = Memory(inputs, outputs, drawn.forms[: len(inputs) + len(outputs)])
        block: Any = None
        for time_of in range(2 if drawn.twice else 1):
            self.step("run")
            if time_of:
                memory.fill(inputs)
            if self.device:
                block = self.on_device(kernel, memory, block, [d.value for d in tensors], scalars)
            else:
                arrays = memory.arrays()
                if drawn.torch and self.torch is not None:
                    same = self.torch.from_numpy(memory.raw)
                    arrays = memory.tensors(self.torch, same, [d.value for d in tensors])
                with red_zones():
                    kernel(*arrays[: len(inputs)], out=tuple(arrays[len(inputs) :]), **scalars)
            self.step("compare")
            how = "the second call" if time_of else self.where
            memory.check()
            oracle.compare(memory.results(), how)

    def on_device(
        self, kernel: te.Kernel, memory: Memory, block: Any, kinds: list[str], scalars: Any
    ) -> Any:
        """Copy there, call, copy back."""
        torch, count = self.torch, len(kernel.module.inputs)
        host = torch.from_numpy(memory.raw)
        if block is None:
            block = torch.empty((len(memory.raw),), dtype=torch.uint8, device="cuda")
        block.copy_(host)
        arrays = memory.tensors(torch, block, kinds)
        with device_zones(torch):
            kernel(*arrays[:count], out=tuple(arrays[count:]), **scalars)
            torch.cuda.synchronize()
        host.copy_(block)
        return block

    def failed(self, error: Exception) -> dict[str, Any]:
        """What an exception says of a pair."""
        text = "".join(traceback.format_exception(error))
        if len(text) > 6000:  # the call that began it, and where it ended
            text = text[:3000] + "\n...\n" + text[-3000:]
        message = told(error) if isinstance(error, TedslError) else f"{error}"[:600]
        status = "raised"
        if isinstance(error, InternalError):
            status = "internal"
        if self.device and DEAD.search(str(error)):
            status = "device"
        if self.device and isinstance(error, self.torch.cuda.OutOfMemoryError):
            status = "large"  # of the arrays of all workers together
        where = f"{type(error).__name__}: {message}"
        return {"status": status, "message": where, "trace": text}


def _is_large(module: Module) -> bool:
    """Whether a tile has more values than its threads have registers, or the compilers take minutes
    over a kernel by the model of that."""
    return compile_time.slowest(module)[1] > MINUTES or any(
        _largest_tile(func) > VALUES * 32 * (func.launch.num_warps or 4) for func in module.funcs
    )


def read_by_triton(program: TritonProgram, arch: str) -> None:
    """Let Triton read the kernels, which tells of what it has no types or shapes for, and no more:
    a fiftieth of the time that compiling them takes."""
    compiler: Any = importlib.import_module("triton.compiler")
    ir: Any = importlib.import_module("triton._C.libtriton").ir
    for request in requests_of(program, arch):
        source, target = ast_source(request)
        backend = compiler.make_backend(target)
        options = backend.parse_options(dict(request["options"]))
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        made = backend.get_codegen_implementation(options), backend.get_module_map()
        try:
            source.make_ir(target, options, *made, context)
        except compile_errors() as error:
            raise refusal(request, error) from error


def told(error: TedslError) -> str:
    """The first lines of a message."""
    return "\n".join(str(error).splitlines()[:3])[:600]


def text_of(drawn: Pair, target: str) -> str:
    """The definitions, as a text and as a program that runs the pair."""
    lines = [print_graph(drawn.case.outputs), f"called twice: {drawn.twice}", ""]
    lines.append(program(drawn.case, drawn.schedule, target, drawn.forms, drawn.decisions))
    return "\n".join(lines)


def main() -> int:
    """Serve a parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--extents", default="small")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--emit-only", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--aligned", action="store_true")
    parser.add_argument("--cpus", default="", help="processors to keep to, with commas")
    options = parser.parse_args()
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is no answer
    if options.cpus:
        os.sched_setaffinity(0, {int(n) for n in options.cpus.split(",")})
    np.seterr(all="ignore")
    Worker(options, answer).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
