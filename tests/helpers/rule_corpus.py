"""The list of `RuleCase`s that the tests of the rules run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rule_cases as c
from rule_cases import RuleCase

import tedsl as te

ODD = (0, 1, 7, 33, 257)


def _case(name: str, make: Callable[[], Any], **sizes: int) -> RuleCase:
    return RuleCase(name, make, sizes)


def _size(name: str = "m") -> Any:
    return te.size_var(name)


def pointwise() -> list[RuleCase]:
    shapes = [(), *((n,) for n in ODD), (7, 33), (33, 257), (257, 1), (1, 257), (3, 0), (3, 5, 7)]
    shapes += [(2, 3, 1, 33), (1000, 65)]
    made = [_case(f"chain {s}", lambda s=s: c.chain(*s)) for s in shapes]
    kinds = ("float16", "bfloat16", "float64", "int32", "uint8", "int64")
    made += [_case(f"chain {d}", lambda d=d: c.chain(33, 7, dtype=d)) for d in kinds]
    for m, n in ((7, 33), (1, 1), (257, 3), (33, 1)):
        made += [
            _case(f"broadcast {m} {n}", lambda m=m, n=n: c.broadcast(m, n)),
            _case(f"transpose_add {m} {n}", lambda m=m, n=n: c.transpose_add(m, n)),
            _case(f"sincos {m} {n}", lambda m=m, n=n: c.sincos(m, n)),
            _case(f"outer {m} {n}", lambda m=m, n=n: c.outer(m, n)),
        ]
    made += [
        _case("same_row_twice", lambda: c.same_row_twice(7, 33)),
        _case("permuted", lambda: c.permuted(2, 3, 5, 33)),
        _case("casts", lambda: c.casts(7, 33)),
        _case("casts e4m3", lambda: c.stored(7, 33, "float8_e4m3fn")),
        _case("casts e5m2", lambda: c.stored(257, 3, "float8_e5m2")),
        _case("mask", lambda: c.mask(7, 33)),
        _case("constant", lambda: c.constant(7, 33)),
        _case("scalars", c.scalars),
        _case("embedding", lambda: c.embedding(33, 65, 5)),
        _case("embedding of none", lambda: c.embedding(0, 7, 5)),
        _case("stencil", lambda: c.stencil(17, 33)),
        _case("heavy_stencil", lambda: c.heavy_stencil(257)),
        _case("several", lambda: c.several(7, 33)),
    ]
    return made


def folds() -> list[RuleCase]:
    made: list[RuleCase] = []
    for m, n in ((7, 33), (33, 257), (1, 257), (257, 1), (3, 0), (0, 3), (1, 1), (300, 70)):
        for name, axes in (("row", (1,)), ("column", (0,)), ("all", (0, 1))):
            shape = (m, n)
            made.append(_case(f"{name} {m} {n}", lambda s=shape, a=axes: c.fold(s, a)))
    for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        made.append(_case(f"fold {axes}", lambda a=axes: c.fold((5, 33, 7), a)))
        made.append(_case(f"scaled_fold {axes}", lambda a=axes: c.scaled_fold((5, 33, 7), a)))
    made += [
        _case("column with few results", lambda: c.fold((300, 3), (0,))),
        _case("long row", lambda: c.fold((3, 40000), (1,))),
        _case("long column", lambda: c.fold((9000, 3), (0,))),
        _case("long all", lambda: c.fold((100003,), (0,))),
        _case("masked", lambda: c.fold((7, 33), (1,), where=True)),
        _case("masked columns", lambda: c.fold((33, 70), (0,), where=True)),
        _case("product of ints", lambda: c.fold((7, 33), (1,), te.prod, "int32")),
        _case("any", lambda: c.fold((7, 33), (0,), te.any, "bool")),
        _case("max f16", lambda: c.fold((7, 33), (1,), te.max, "float16")),
        _case("sum bf16", lambda: c.fold((7, 33), (1,), te.sum, "bfloat16")),
        _case("sum f64", lambda: c.fold((33, 7), (0,), te.sum, "float64")),
        _case("sum uint8", lambda: c.fold((33, 7), (0,), te.sum, "uint8")),
        _case("argmax", lambda: c.argmax(7, 33)),
        _case("argmax of columns", lambda: c.argmax(33, 70, rows=False)),
        _case("argmax of one", lambda: c.argmax(1, 257)),
        _case("welford", lambda: c.welford(7, 33)),
        _case("nested", lambda: c.nested(7, 33)),
        _case("rows_of_rows", lambda: c.rows_of_rows(3, 7, 33)),
        _case("normalise_by_total", lambda: c.normalise_by_total(257)),
        _case("centred_columns", lambda: c.centred_columns(33, 70)),
        _case("window", lambda: c.window(17, 33, 3)),
        _case("fold 4-d", lambda: c.fold((3, 4, 5, 6), (1, 3))),
    ]
    return made


def rows() -> list[RuleCase]:
    made = [_case(f"softmax 7 {n}", lambda n=n: c.softmax(7, n)) for n in (1, 7, 33, 257)]
    made += [
        _case("softmax of no rows", lambda: c.softmax(0, 33)),
        _case("softmax of empty rows", lambda: c.softmax(7, 0)),
        _case("softmax of one row", lambda: c.softmax(33)),
        _case("softmax 4-d", lambda: c.softmax(2, 3, 1, 33)),
        _case("softmax first", lambda: c.softmax(33, 70, axis=0)),
        _case("softmax middle", lambda: c.softmax(3, 33, 20, axis=1)),
        _case("softmax long", lambda: c.softmax(2, 40000)),
        _case("softmax of few long rows", lambda: c.softmax(2, 300000)),
        _case("softmax of few long columns", lambda: c.softmax(3000, 100, axis=0)),
        _case("softmax bf16", lambda: c.softmax(7, 33, dtype="bfloat16")),
        _case("softmax f16", lambda: c.softmax(7, 33, dtype="float16")),
        _case("softmax f64", lambda: c.softmax(7, 33, dtype="float64")),
        _case("softmax twice", lambda: te.nn.softmax(c.softmax(7, 33))),
        _case("gathered_rows", lambda: c.gathered_rows(7, 33)),
        _case("layer_norm", lambda: c.layer_norm(7, 257)),
        _case("layer_norm 3-d", lambda: c.layer_norm(2, 3, 33)),
        _case("layer_norm long", lambda: c.layer_norm(2, 40000)),
        _case("slopes_of_rows", lambda: c.slopes_of_rows(33, 65)),
        _case("slopes_of_rows of one", lambda: c.slopes_of_rows(1, 7)),
        _case("slopes_of_rows of none", lambda: c.slopes_of_rows(0, 7)),
        _case("loss_and_slope", lambda: c.loss_and_slope(7, 257)),
        _case("loss_and_slope long", lambda: c.loss_and_slope(2, 40000)),
        _case("loss_and_slope of none", lambda: c.loss_and_slope(0, 33)),
        _case("mean_of_all", lambda: c.mean_of_all(300, 71)),
        _case("mean_of_all of none", lambda: c.mean_of_all(0, 7)),
        _case("layer_norm bf16", lambda: c.layer_norm(7, 33, dtype="bfloat16")),
        _case("quantize e4m3", lambda: c.quantize(7, 257, "float8_e4m3fn")),
        _case("quantize e5m2", lambda: c.quantize(33, 65, "float8_e5m2", "bfloat16")),
        _case("rms_norm", lambda: c.rms_norm(7, 33)),
        _case("rms_norm f16", lambda: c.rms_norm(33, 257, dtype="float16")),
    ]
    return made


def contractions() -> list[RuleCase]:
    shapes = [(33, 17, 65), (1, 257, 33), (257, 1, 33), (1, 1, 257), (7, 33, 1), (64, 64, 64)]
    shapes += [(0, 7, 5), (7, 0, 5), (7, 5, 0), (130, 70, 33)]
    made = [_case(f"matmul {s}", lambda s=s: c.matmul(*s)) for s in shapes]
    for dtype in ("float16", "bfloat16", "float64", "int32", "int8"):
        made.append(_case(f"matmul {dtype}", lambda d=dtype: c.matmul(33, 16, 48, d)))
    made += [
        _case("batched", lambda: c.batched(3, 17, 9, 33)),
        _case("batched small", lambda: c.batched(20, 3, 3, 3)),
        _case("batched of one", lambda: c.batched(1, 33, 33, 7)),
        _case("shared_right", lambda: c.shared_right(3, 17, 9, 33)),
        _case("transposed_operands", lambda: c.transposed_operands(17, 33, 9)),
        _case("column_major_result", lambda: c.column_major_result(17, 33, 9)),
        _case("two_folded", lambda: c.two_folded(17, 9, 5, 7)),
        _case("linear", lambda: c.linear(17, 33, 9)),
        _case("linear f16", lambda: c.linear(17, 33, 9, "float16")),
        _case("linear bf16", lambda: c.linear(17, 32, 16, "bfloat16")),
        *(
            _case(f"scaled {d} {s}", lambda d=d, s=s: c.scaled(*s, d))
            for d, s in (
                ("float8_e4m3fn", (33, 48, 80)),
                ("float8_e5m2", (64, 65, 257)),
                ("int8", (33, 48, 80)),
            )
        ),
        _case("mlp", lambda: c.mlp(17, 33, 70)),
        _case("products", lambda: c.products(17, 9, 33, 7)),
        _case("normalised_product", lambda: c.normalised_product(17, 33, 9)),
        _case("product_of_sums", lambda: c.product_of_sums(17, 33, 9)),
        _case("channels", lambda: c.channels(2, 3, 5, 9, 3)),
        _case("images", lambda: c.images(2, 9, 16, 17)),
        _case("images f16", lambda: c.images(3, 7, 16, 16, "float16")),
        _case("images in steps", lambda: c.images(1, 9, 5, 17, stride=2)),
        _case("images of planes", lambda: c.images(2, 7, 16, 16, layout="channels_first")),
        _case("images of groups", lambda: c.images(2, 7, 32, 32, groups=2)),
        _case("images by channel", lambda: c.images(2, 7, 6, 6, groups=6)),
    ]
    made += [
        _case("few very long rows", lambda: c.fold((2, 200000), (1,))),
        _case("few long rows", lambda: c.fold((2, 20000), (1,))),
        _case("few long tiles", lambda: c.matmul(17, 33, 2048)),
        _case("few long tiles f16", lambda: c.linear(16, 32, 2048, "float16")),
    ]
    return made


def symbolic() -> list[RuleCase]:
    made: list[RuleCase] = []
    for m, n in ((7, 33), (0, 5), (1, 1), (257, 70)):
        makers: dict[str, Callable[[], Any]] = {
            "chain": lambda: c.chain(_size(), _size("n")),
            "row": lambda: c.fold((_size(), _size("n")), (1,)),
            "column": lambda: c.fold((_size(), _size("n")), (0,)),
            "all": lambda: c.fold((_size(), _size("n")), (0, 1)),
            "transpose_add": lambda: c.transpose_add(_size(), _size("n")),
            "argmax": lambda: c.argmax(_size(), _size("n")),
            "layer_norm": lambda: c.layer_norm(_size(), _size("n")),
            "matmul": lambda: c.matmul(_size(), _size("n"), 33),
        }
        if n:
            makers["softmax"] = lambda: c.softmax(_size(), _size("n"))
        made += [_case(f"{name} m={m} n={n}", make, m=m, n=n) for name, make in makers.items()]
    for m in (0, 1, 33):
        made += [
            _case(f"softmax m={m}", lambda: c.softmax(_size(), 33), m=m),
            _case(f"matmul k={m}", lambda: c.matmul(17, 9, _size()), m=m),
            _case(f"matmul rows={m}", lambda: c.matmul(_size(), 9, 33), m=m),
            _case(f"images n={m}", lambda: c.images(_size(), 7, 16, 17), m=m),
            _case(f"batched b={m}", lambda: c.batched(_size(), 5, 9, 7), m=m),
            _case(f"mlp m={m}", lambda: c.mlp(_size(), 33, 70), m=m),
            _case(f"embedding m={m}", lambda: c.embedding(_size(), 33, 5), m=m),
            _case(f"normalise_by_total n={m}", lambda: c.normalise_by_total(_size()), m=m),
            _case(f"two_between_rows n={m}", lambda: c.two_between_rows(9, _size()), m=m),
            _case(f"middle m={m}", lambda: c.fold((3, _size(), 20), (1,)), m=m),
        ]
    return made


def corpus() -> list[RuleCase]:
    """Every case, under distinct names."""
    return [*pointwise(), *folds(), *rows(), *contractions(), *symbolic()]
