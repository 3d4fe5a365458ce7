"""Each kind of inputs and what the outputs must be for it, made once for all processes of a search.

Every process that wants a reference looks for it in the search's folder.  Where it is not there yet
it says that it makes it; the others wait until it has, or has ended.  Inputs are kept beside their
reference unless they are very large: to draw them takes longer than to read them.  Imports
`checking.expected_outputs` and `checking.rounding_flips`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tedsl.autotune.workers.scratch_dir import is_alive
from tedsl.checking.expected_outputs import Oracle
from tedsl.checking.random_inputs import ADVERSE, Array, make_inputs
from tedsl.checking.rounding_flips import Sides
from tedsl.checking.tolerance import Tolerance
from tedsl.runtime.arrays.views import NUMPY_DTYPES
from tedsl.tensor.tensor import Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import digest

Inputs: TypeAlias = dict[Tensor, Array]
Made: TypeAlias = tuple[list[Array], list[float]]
"""The wanted outputs, and how far roundings of the inputs move each."""
LOOK_SECONDS = 0.01
KEPT_BYTES = 1 << 29
"""Inputs of one kind that take more are drawn anew by each process."""


class References:
    """The references of one problem at one size.

    Args:
        size: the sizes.
        target: for the oracle.
        seed: of the inputs.
        folder: where references are kept for other processes.
    """

    def __init__(self, size: Extents, target: str, seed: int, folder: Path) -> None:
        self.size = size
        self.seed = seed
        self.folder = folder
        self.oracle = Oracle(size, target)
        self.tolerances = [
            Tolerance.of(size, t).times(self.oracle.factor) for t in size.workload.outputs
        ]

    @property
    def label(self) -> str:
        """`n=7, m=33`; nothing where all sizes are known."""
        return ", ".join(f"{var.name}={value}" for var, value in self.size.values.items())

    def inputs(self, kind: str) -> Inputs:
        """The inputs of a kind."""
        if self._noted(kind).exists():
            places = [op.outputs[0] for op in self.size.workload.placeholders]
            paths = [self._path(kind, f"in{number}.npy") for number in range(len(places))]
            if all(path.exists() for path in paths):
                return {t: self._load(path, t) for t, path in zip(places, paths, strict=True)}
        return make_inputs(self.size, self.seed, kind)

    def is_made(self, kind: str) -> bool:
        """Whether some process has made the reference of a kind."""
        return self._noted(kind).exists()

    def excuses(self, kind: str) -> list[Sides]:
        """For each output, what says which elements may be on the other side of a step."""
        return [Sides(self.size, t, lambda: self.inputs(kind)) for t in self.size.workload.outputs]

    def get(self, kind: str) -> Made | None:
        """The reference of a kind, made here unless another process has made it or does so now.

        None where the inputs of that kind ask for what has no one answer.

        Raises:
            TuneError: there is nothing to check candidates against.
        """
        while not self._noted(kind).exists():
            if self._claim(kind):
                try:
                    inputs = self.inputs(kind)
                    made = self._make(kind, inputs)
                    self._keep(kind, inputs, made)
                finally:  # nobody waits for what could not be made
                    self._path(kind, f"by{os.getpid()}").unlink()
                return made
            time.sleep(LOOK_SECONDS)
        noises: list[float] | None = json.loads(self._noted(kind).read_text())
        if noises is None:
            return None
        outputs = enumerate(self.size.workload.outputs)
        return [self._load(self._path(kind, f"{n}.npy"), t) for n, t in outputs], noises

    def _make(self, kind: str, inputs: Inputs) -> Made | None:
        if kind in ADVERSE:
            return self.oracle.adverse(inputs, self.tolerances, self.seed)
        found = self.oracle.outputs(inputs, self.seed)
        return found, self.oracle.noise(inputs, found, self.seed)

    def _claim(self, kind: str) -> bool:
        """Say that this process makes a reference; false where another one that runs has said so.

        Of two that say so at the same moment the one with the lower number goes on.
        """
        own = self._path(kind, f"by{os.getpid()}")
        if self._makers(kind):
            return False
        own.touch()
        if min(self._makers(kind), default=os.getpid()) < os.getpid():
            own.unlink()
            return False
        return True

    def _makers(self, kind: str) -> list[int]:
        """Other processes that make a reference now."""
        names = [path.suffix[3:] for path in self.folder.glob(self._path(kind, "by*").name)]
        found = [int(name) for name in names if name.isdigit()]
        return [pid for pid in found if pid != os.getpid() and is_alive(pid)]

    def _keep(self, kind: str, inputs: Inputs, made: Made | None) -> None:
        """Write a reference to the folder; the noise comes last, since others look for it."""
        for number, array in enumerate(made[0] if made else ()):
            self._write(self._path(kind, f"{number}.npy"), array)
        if made and sum(array.nbytes for array in inputs.values()) <= KEPT_BYTES:
            for number, array in enumerate(inputs.values()):
                self._write(self._path(kind, f"in{number}.npy"), array)
        noted = self._noted(kind)
        partial = noted.with_suffix(f".part{os.getpid()}")
        partial.write_text(json.dumps(None if made is None else made[1]))
        partial.replace(noted)

    def _write(self, path: Path, array: Array) -> None:
        partial = path.with_suffix(f".part{os.getpid()}")
        with partial.open("wb") as file:
            np.save(file, array.reshape(-1).view(np.uint8), allow_pickle=False)
        partial.replace(path)

    def _load(self, path: Path, tensor: Tensor) -> Array:
        raw: Array = np.load(path, allow_pickle=False)
        return raw.view(NUMPY_DTYPES[tensor.dtype]).reshape(self.size.shape(tensor))

    def _noted(self, kind: str) -> Path:
        """What is there once a reference is whole."""
        return self._path(kind, "noise.json")

    def _path(self, kind: str, end: str) -> Path:
        sizes = f"-{digest(self.label)}" if self.label else ""  # the user has named them
        return self.folder / f"{kind}{sizes}.{end}"
