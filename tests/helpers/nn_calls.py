"""A call of every operator of te.nn that is in order, and arguments that never are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tedsl as te

nn: Any = te.nn


def tensor(*shape: int, dtype: str = "float32", name: str = "x") -> te.Tensor:
    return te.placeholder(shape, dtype, name=name)


def _ints(*shape: int) -> te.Tensor:
    return tensor(*shape, dtype="int32", name="i")


def calls() -> dict[str, dict[str, Any]]:
    """For each operator arguments that it takes."""
    x, vector, weights = tensor(4, 8), tensor(8, name="w"), tensor(4, 8, name="w")
    rows = {"x": tensor(2, 6, 8)}
    found: dict[str, dict[str, Any]] = {}
    for name in (
        *("relu", "relu6", "sigmoid", "tanh", "leaky_relu", "elu", "selu", "softplus", "mish"),
        *("silu", "hardsigmoid", "hardswish", "gelu", "glu"),
        *("softmax", "log_softmax", "logsumexp"),
    ):
        found[name] = {"x": x}
    for name in ["mean", "var", "std", "argmax", "argmin", "cumsum"]:
        found[name] = {"x": x, "axis": 1}
    found["swiglu"] = {"gate": x, "up": tensor(4, 8, name="y")}
    found["layer_norm"] = {"x": x, "weight": vector, "bias": vector}
    found["rms_norm"] = {"x": x, "weight": vector}
    found["add_rms_norm"] = {"x": x, "residual": tensor(4, 8, name="r"), "weight": vector}
    channels = {"weight": tensor(6, name="w"), "bias": tensor(6, name="b")}
    found["group_norm"] = {**rows, "num_groups": 2, **channels}
    found["instance_norm"] = {**rows, **channels}
    found["batch_norm_training"] = {**rows, **channels}
    running = {"running_mean": tensor(6, name="m"), "running_var": tensor(6, name="v")}
    found["batch_norm"] = {**rows, **running, **channels}
    found["matmul"] = {"a": tensor(2, 3, 4), "b": tensor(2, 4, 5)}
    found["linear"] = {"x": x, "weight": tensor(3, 8, name="w"), "bias": tensor(3, name="b")}
    found["quantize"] = {"x": x}
    found["scaled_matmul"] = {
        "a": tensor(4, 8, dtype="int8", name="a"), "b": tensor(3, 8, dtype="int8", name="b"),
        "scale_a": tensor(4, name="r"), "scale_b": tensor(3, name="c"), "bias": tensor(3, name="o"),
    }  # fmt: skip
    for name in ["bce_loss", "bce_with_logits"]:
        found[name] = {"input": x, "target": tensor(4, 8, name="t"), "weight": weights}
    found["bce_with_logits"]["pos_weight"] = vector
    for name in ["huber_loss", "smooth_l1_loss", "kl_div", "l1_loss", "mse_loss"]:
        found[name] = {"input": x, "target": tensor(4, 8, name="t")}
    for name in ["cross_entropy", "nll_loss"]:
        found[name] = {"input": x, "target": _ints(4), "weight": vector}
    found["embedding"] = {"input": _ints(3), "weight": x}
    found["one_hot"] = {"input": _ints(3), "num_classes": 5}
    found["dropout"] = {"x": x, "p": 0.5, "seed": 1}
    found["philox"] = {"counter": [1, 2, 3, 4], "key": [1, 2]}
    found["random_bits"] = {"shape": (4,), "seed": 1}
    found["random_uniform"] = {"shape": (4,), "seed": 1}
    half = tensor(6, 4, name="c")
    found["rope"] = {"x": tensor(2, 6, 8), "cos": half, "sin": half}
    found["rope_tables"] = {"positions": 6, "dim": 8}
    heads = {name: tensor(2, 4, 6, 8, name=name) for name in "qkv"}
    found["attention"] = {
        **heads, "slopes": tensor(4, name="s"), "bias": tensor(6, 6, name="b"), "lengths": _ints(2),
        "cap": 5.0, "scale": 0.5, "window": (3, None),
    }  # fmt: skip
    pages = {name: tensor(5, 4, 2, 8, name=name) for name in ("k_pages", "v_pages")}
    found["paged_attention"] = {
        "q": heads["q"], **pages, "table": _ints(2, 3), "lengths": _ints(2)
    }  # fmt: skip
    found.update(_windows())
    found.update(_steps())
    return found


def _windows() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for rank in (1, 2, 3):
        x = tensor(2, *[7, 6, 5][:rank], 4)
        taps = [3, 2, 3][:rank]
        weight = tensor(*taps, 4, 6, name="w")
        bias = tensor(6, name="b")
        found[f"conv{rank}d"] = {"x": x, "weight": weight, "bias": bias}
        found[f"conv_transpose{rank}d"] = {"x": x, "weight": weight, "bias": bias}
        for kind in ("avg", "max"):
            found[f"{kind}_pool{rank}d"] = {"x": x, "kernel_size": 2}
            found[f"adaptive_{kind}_pool{rank}d"] = {"x": x, "output_size": 2}
    return found


def _steps() -> dict[str, dict[str, Any]]:
    one, two, three, four = (tensor(5, name=name) for name in "pgmv")
    moments = {"exp_avg": three, "exp_avg_sq": four}
    found: dict[str, dict[str, Any]] = {}
    for name in ("adam", "adamw"):
        found[name] = {"param": one, "grad": two, **moments, "step": 3}
        lists = {f"{key}s": [value] for key, value in moments.items()}
        found[f"foreach_{name}"] = {"params": [one], "grads": [two], **lists, "step": 3}
    found["sgd"] = {"param": one, "grad": two, "momentum_buffer": three, "momentum": 0.9}
    found["foreach_sgd"] = {"params": [one], "grads": [two], "momentum_buffers": [three]}
    found["foreach_sgd"]["momentum"] = 0.9
    return found


def parameters(name: str) -> list[str]:
    """What an operator takes, without what it prints as."""
    return [each for each in inspect.signature(getattr(nn, name)).parameters if each != "name"]


NOT_OF_THE_KIND: dict[str, Any] = {
    "an object": object(),
    "a word": "no such word",
    "an empty word": "",
    "a number": 1,
    "a negative number": -1,
    "zero": 0,
    "a large number": 99,
    "a fraction": 0.5,
    "an infinite number": float("inf"),
    "nan": float("nan"),
    "a boolean": True,
    "nothing": None,
    "an empty list": [],
    "a list of numbers": [1, 1, 1, 1, 1, 1, 1],
    "a pair of negative numbers": (-3, -3),
    "a list of words": ["a"],
    "a list of nothing": [None],
    "a dictionary": {"a": 1},
    "a function": len,
    "a type": int,
    "a number of numpy": np.int64(1),
    "a negative number of numpy": np.int32(-1),
    "a float of numpy": np.float32(0.5),
    "an array": np.zeros((4, 8), np.float32),
    "a variable": te.var("n"),
    "a tensor of one number": tensor(name="one"),
    "a pair of tensors": [tensor(3, name="t"), tensor(3, name="t")],
}


def wrong_tensors(given: te.Tensor) -> Iterator[tuple[str, te.Tensor]]:
    """Tensors that differ from one in one respect."""
    shape = tuple(int(str(extent)) for extent in given.shape)
    dtype = str(given.dtype)
    for other in ("float32", "float16", "float64", "int32", "uint8", "bool"):
        if other != dtype:
            yield f"of {other}", tensor(*shape, dtype=other, name="other")
    yield "of no dimensions", tensor(dtype=dtype, name="other")
    yield "of a dimension more", tensor(3, *shape, dtype=dtype, name="other")
    yield "of two dimensions more", tensor(1, 3, *shape, dtype=dtype, name="other")
    yield "of one dimension", tensor(3, dtype=dtype, name="other")
    for place in range(len(shape)):
        for extent in (0, 1, shape[place] + 3):
            changed = [*shape[:place], extent, *shape[place + 1 :]]
            yield f"of {changed}", tensor(*changed, dtype=dtype, name="other")
    if shape:
        yield "of a dimension less", tensor(*shape[1:], dtype=dtype, name="other")


def changed(name: str, arguments: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls of an operator that differ in one argument from one that is in order."""
    for parameter in parameters(name):
        for text, value in NOT_OF_THE_KIND.items():
            yield f"{parameter} is {text}", {**arguments, parameter: value}
        own: Any = arguments.get(parameter)
        several = isinstance(own, list) and own != [] and isinstance(own[0], te.Tensor)
        first: Any = own[0] if several else own
        if isinstance(first, te.Tensor):
            for text, other in wrong_tensors(first):
                value = [other] if several else other
                yield f"{parameter} is {text}", {**arguments, parameter: value}
        if several:
            yield f"{parameter} is longer", {**arguments, parameter: [*own, *own]}


def call(name: str, arguments: dict[str, Any]) -> Any:
    operator: Callable[..., Any] = getattr(nn, name)
    return operator(**arguments)
