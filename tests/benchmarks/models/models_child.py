"""Builds, verifies and times problems and models in a process of its own, asked by lines of JSON:
the child of `run_models.py`.

    {"number": "gpt2", "job": "prepare"}  compile by each contestant, compare with eager
    {"number": "gpt2", "job": "time"}     the same from the caches on disk, then time by turns

Before each step its name is written, so that whoever reads knows where a process ended or stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "helpers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "drawn"))

from problems import PROBLEMS
from published import MODELS

torch: Any = importlib.import_module("torch")
pytree: Any = importlib.import_module("torch.utils._pytree")
tt: Any = importlib.import_module("tedsl.torch")
written: Any = importlib.import_module("written_problems")
tensors: Any = importlib.import_module("tensors")

Answer = dict[str, Any]
Call = Callable[[], Any]
OURS: dict[str, dict[str, bool]] = {
    "tedsl": {},
    "products": {"products": True},
    "channels_first": {"channels_last": False},
    "channels_last": {"channels_last": True},
}
"""Options of the contestants that are tedsl: `products` takes products and convolutions too, the
last two say how images of convolutions lie."""
CONTESTANTS = ("eager", "compile", "tedsl", "products")
BLOCK = 0.02
"""Seconds of calls in a block."""
WORSE = 6.0
"""How much farther than eager's our results may be from double precision."""
FEW = 1e-4
"""The share of integers that may differ: positions, where floats that are equal decide."""


def main() -> None:
    """Answer until there are no more requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch._dynamo.config.cache_size_limit = 64
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def say(message: Answer) -> None:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

        for line in sys.stdin:
            request = json.loads(line)
            worker = Worker(options, request["number"], say)
            try:
                found = worker.answer(request["job"])
            except Exception as error:  # whatever it is, it is one more row that did not run
                found = {"status": "failed", "at": worker.step}
                found["message"] = f"{type(error).__name__}: {error}"[:1500]
            say(found)


class Worker:
    """One problem or model."""

    def __init__(self, options: Any, name: str, say: Callable[[Answer], None]) -> None:
        self.options, self.name, self.say = options, name, say
        self.step = ""

    def at(self, step: str) -> None:
        """What is done from now on."""
        self.step = step
        self.say({"step": step})

    def answer(self, job: str) -> Answer:
        """What became of it: of each contestant the seconds to its first result, what is wrong
        with it, and milliseconds of calls."""
        self.at("make")
        module, given = self.made()
        grads = self.options.train and any(p.requires_grad for p in module.parameters())
        self.at("eager")
        wanted = self.called(module, given, grads)
        exact = self.exact(module, given, grads, wanted)
        found: Answer = {"first": {}, "wrong": {}}
        calls: dict[str, Call] = {}
        for name in self.options.contestants.split(","):
            self.at(name)
            begin = time.perf_counter()
            call, report = self.contestant(name, module)
            try:
                results = self.called(call, given, grads)
            except Exception as error:
                if name in OURS:
                    found["wrong"][name] = f"{type(error).__name__}: {error}"[:600]
                continue
            self.wait()
            found["first"][name] = round(time.perf_counter() - begin, 2)
            if report is not None:
                told = wrong(results, wanted, exact, self.coarsest(module))
                found["wrong"] |= {name: told} if told else {}
                found |= {f"{name} {k}": v for k, v in shares(report).items()}
            calls[name] = lambda call=call: self.called(call, given, grads)
        if job == "time":
            self.at("time")
            found["milliseconds"] = self.timed(calls)
        self.at("")
        return {"status": "wrong" if found["wrong"] else "right", **found}

    def made(self) -> tuple[Any, list[Any]]:
        """The module and what it is called with, on the device."""
        torch.manual_seed(0)
        torch._dynamo.reset()
        device, dtype = torch.device(self.options.device), getattr(torch, self.options.dtype)
        with device:
            if self.name in MODELS:
                module, given = MODELS[self.name]()
            else:
                module, given, _ = written.given_of(self.name, PROBLEMS)
        if self.name in MODELS:  # problems are in the mode that they are made in
            module.train(self.options.train)
            never_dropping(module)
        cast = [each.to(dtype) if each.is_floating_point() else each for each in given]
        return module.to(device, dtype), cast

    def contestant(self, name: str, module: Any) -> tuple[Any, Any]:
        """What is called, and the report of our backend."""
        if name == "eager":
            return module, None
        if name == "compile":
            return torch.compile(module, dynamic=False), None
        report = tt.Report()
        chosen = {"report": report, **OURS[name]}
        return torch.compile(module, backend="tedsl", options=chosen, dynamic=False), report

    def called(self, call: Any, given: list[Any], grads: bool) -> list[Any]:
        """The results of a call; with gradients those of all parameters too."""
        with torch.set_grad_enabled(grads):
            results = [each for each in pytree.tree_leaves(call(*given)) if torch.is_tensor(each)]
        if not grads:
            return results
        total = sum(r.float().mean() for r in results if r.requires_grad)
        module = getattr(call, "_orig_mod", call)
        return results + list(
            torch.autograd.grad(total, list(module.parameters()), allow_unused=True)
        )

    def exact(self, module: Any, given: list[Any], grads: bool, wanted: list[Any]) -> list[Any]:
        """The results in double precision, on the processor where the device has no room; those of
        eager where the text allows no other type."""
        state = torch.get_rng_state()
        kept = {n: (each, each.data) for n, each in tensors_of(module)}
        try:
            double = [each.double() if each.is_floating_point() else each for each in given]
            for each, data in kept.values():
                each.data = data.double() if data.is_floating_point() else data
            return self.called(module, double, grads)
        except RuntimeError:
            return wanted
        finally:
            for each, data in kept.values():
                each.data = data
            torch.set_rng_state(state)

    def coarsest(self, module: Any) -> float:
        """Spacing of the numbers to which factors may be rounded, by PyTorch's setting; 0 of those
        of the type itself."""
        kinds = torch.nn.modules.conv._ConvNd
        rounds = self.options.device == "cuda" and torch.backends.cudnn.allow_tf32
        return 2.0**-10 if rounds and any(isinstance(m, kinds) for m in module.modules()) else 0.0

    def wait(self) -> None:
        """Until the device is done."""
        if self.options.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, calls: dict[str, Call]) -> Answer:
        """Milliseconds of a call in each turn: blocks of calls by the clock of the wall, with the
        device empty before and after."""
        found: dict[str, list[float]] = {name: [] for name in calls}
        counts = {name: self.count(call) for name, call in calls.items()}
        order = list(calls)
        for _ in range(self.options.turns):
            for name in order:
                self.wait()
                begin = time.perf_counter()
                for _ in range(counts[name]):
                    calls[name]()
                self.wait()
                took = (time.perf_counter() - begin) / counts[name]
                found[name].append(round(took * 1e3, 4))
            order = [*order[1:], order[0]]
        return {name: round(statistics.median(each), 4) for name, each in found.items()}

    def count(self, call: Call) -> int:
        """How many calls are a block."""
        for _ in range(3):
            call()
        self.wait()
        begin = time.perf_counter()
        call()
        self.wait()
        return max(3, min(200, round(BLOCK / max(1e-6, time.perf_counter() - begin))))


def never_dropping(module: Any) -> None:
    """Set every probability of dropping to 0: in another precision others would be dropped."""
    for each in module.modules():
        for name, value in vars(each).items():
            if isinstance(value, float) and "drop" in name:
                setattr(each, name, 0.0)
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0


def tensors_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Its parameters and buffers."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def shares(report: Any) -> Answer:
    """How much of the graphs is ours, and the kernels."""
    found: Answer = {"graphs": len(report.graphs)}
    found["taken"] = sum(graph.taken for graph in report.graphs)
    found["nodes"] = sum(graph.nodes for graph in report.graphs)
    with contextlib.suppress(AttributeError):
        found["faults"] = [str(each)[:300] for each in report.faults]
    return found


def wrong(ours: list[Any], eager: list[Any], exact: list[Any], rounding: float = 0.0) -> str:
    """What is wrong with our results; nothing where they are right.

    Args:
        ours: our results.
        eager: those of PyTorch.
        exact: those in double precision.
        rounding: to which factors may be rounded.
    """
    if len(ours) != len(eager):
        return f"{len(ours)} results of {len(eager)}"
    for place, (mine, theirs, true) in enumerate(zip(ours, eager, exact, strict=True)):
        if mine is None or theirs is None:
            if mine is not theirs:
                return f"result {place}: a gradient is missing"
            continue
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"result {place} is {mine.dtype} {tuple(mine.shape)}, not {theirs.dtype}"
        if not theirs.is_floating_point():
            count = int((mine != theirs).sum())
            told = f"{count} integers differ" if count > FEW * mine.numel() else ""
        else:
            three = (mine.double(), theirs.double(), true.double())
            told = tensors.apart(*three, theirs.dtype, WORSE, rounding)
        if told:
            return f"result {place}: {told}"
    return ""


if __name__ == "__main__":
    main()
