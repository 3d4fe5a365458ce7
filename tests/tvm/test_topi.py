"""TOPI's operators with TOPI's arguments, against NumPy and what `topi.testing` has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tedsl import tvm as module

tvm: Any = module
te: Any = tvm.te
topi: Any = tvm.topi
ref: Any = topi.testing
rng = np.random.default_rng(0)


def drawn(*shape: int, kind: str = "float32", below: int = 3) -> Any:
    return rng.integers(0, below, shape).astype(kind) if kind[0] != "f" else rng.random(shape, "f4")


def check(make: Callable[..., Any], want: Any, *arrays: Any) -> None:
    """What `make` defines of inputs like `arrays` has the shape and the values of `want`."""
    inputs = [te.placeholder(a.shape, str(a.dtype), name=f"x{n}") for n, a in enumerate(arrays)]
    made, wanted = make(*inputs), want if isinstance(want, list) else [want]
    outs = list(made) if isinstance(made, (list, tuple)) else [made]
    found = te.evaluate(outs, dict(zip(inputs, arrays, strict=True)))
    for out, got, each in zip(outs, found, wanted, strict=True):
        assert tuple(int(n) for n in out.shape) == np.shape(each) and str(out.dtype) == each.dtype
        np.testing.assert_allclose(got, each, 1e-4, 1e-5)


A, B, V = drawn(2, 3, 4), drawn(2, 3, 4), drawn(3)
C = drawn(1, 4, 9, 9)
N = drawn(2, 2, kind="int32")
ONES = np.ones((2, 3), "f4")
BN = [drawn(4) + 0.1 for _ in range(4)]
MEAN, VAR = C.mean((0, 2, 3)), C.var((0, 2, 3))
TRAINED = [
    ref.batch_norm(C, *BN[:2], MEAN, VAR, 1, 1e-5, True, True)[0],
    0.8 * BN[2] + 0.2 * MEAN,
    0.8 * BN[3] + 0.2 * VAR,
]
NORMED = A[:, :, :] / np.sqrt((A * A).mean((1, 2), keepdims=True) + 0.5) * A[0]


@pytest.mark.parametrize(
    ("make", "want", "arrays"),
    [
        (lambda x: topi.reshape(x, (4, -1)), A.reshape(4, 6), [A]),
        (topi.nn.flatten, A.reshape(2, 12), [A]),
        (topi.transpose, A.T, [A]),
        (lambda x: topi.transpose(x, (1, 0, -1)), A.transpose(1, 0, 2), [A]),
        (lambda x: topi.expand_dims(x, 1, 2), A[:, None, None], [A]),
        (lambda x: topi.squeeze(topi.expand_dims(x, -1)), A, [A]),
        (lambda x: topi.broadcast_to(x, (2, 5, 3)), np.broadcast_to(V, (2, 5, 3)), [V]),
        (lambda x, y: topi.concatenate((x, y), -1), np.concatenate((A, B), -1), [A, B]),
        (lambda x, y: topi.stack([x, y], 1), np.stack([A, B], 1), [A, B]),
        (lambda x: topi.split(x, 2, -1), np.split(A, 2, -1), [A]),
        (lambda x: topi.split(x, [1, 3], 2), np.split(A, [1, 3], 2), [A]),
        (lambda x: topi.flip(x, 1), np.flip(A, 1), [A]),
        (lambda x: topi.repeat(x, 2, 0), A.repeat(2, 0), [A]),
        (lambda x: topi.tile(x, (2, 1, 1, 3)), np.tile(A, (2, 1, 1, 3)), [A]),
        (lambda x, i: topi.take(x, i, 1), np.take(A, N, 1), [A, N]),
        (lambda x, i: topi.take(x, i - 9), np.take(A, N - 9, mode="clip"), [A, N]),
        (lambda x, i: topi.take(x, i - 9, 0, mode="wrap"), A[(N - 9) % 2], [A, N]),
        (lambda x, i: topi.gather(x, 0, i), ref.gather_python(N, 0, N % 2), [N, N % 2]),
        (topi.gather_nd, ref.gather_nd_python(A, N % 2), [A, N % 2]),
        (lambda c, x, y: topi.where(c, x, y), np.where(A > 0.5, A, B), [(A > 0.5) + 0, A, B]),
        (
            lambda i: topi.one_hot(i, 2, -1, 3, 0, "int32"),
            ref.one_hot(N, 2, -1, 3, 0, "int32"),
            [N],
        ),
        (lambda: topi.arange(1, 9, 2), np.arange(1, 9, 2, dtype="f4"), []),
        (lambda: topi.arange(4, dtype="int32"), np.arange(4, dtype="int32"), []),
        (lambda x, y: topi.meshgrid([x, y], "xy"), list(np.meshgrid(V, V)), [V, V]),
        (lambda x: topi.full_like(x, 7), np.full(A.shape, 7, "f4"), [A]),
        (topi.shape, np.array([2, 3, 4], "int32"), [A]),
        (topi.ndarray_size, np.array(24, "int32"), [A]),
        (
            lambda x, n: topi.sequence_mask(x, n, 9, 1),
            ref.sequence_mask(A, N[0], 9, 1),
            [A, N[0]],
        ),
        (lambda i: topi.unravel_index(i, (2, 3)), np.array(np.unravel_index(N, (2, 3)), "i4"), [N]),
        (
            topi.matrix_set_diag,
            A * (1 - np.eye(3, 4, dtype="f4")) + np.eye(3, 4, dtype="f4"),
            [A, ONES],
        ),
        (lambda x, i, j: topi.adv_index(x, [i, j]), A[N % 2, N[:1]], [A, N % 2, N[:1]]),
        (lambda x: topi.cast(x, "int32"), (9 * A).astype("int32"), [9 * A]),
        (lambda x: topi.reinterpret(x, "int32"), A.view("int32"), [A]),
        (topi.identity, A, [A]),
        (lambda x: topi.cumsum(x, 1), A.cumsum(1), [A]),
        (lambda x: topi.cumsum(x), A.cumsum(), [A]),
        (
            lambda x: topi.layout_transform(x, "NCHW", "NHWC2c"),
            C.reshape(1, 2, 2, 9, 9).transpose(0, 3, 4, 1, 2),
            [C],
        ),
        (lambda x: topi.layout_transform(x, "AB4b", "BA"), A.reshape(2, 12).T, [A]),
        (lambda x, y: topi.einsum("bij,bkj->bik", x, y), A @ B.swapaxes(1, 2), [A, B]),
        (lambda x: topi.einsum("bij", x), A, [A]),
        (
            lambda x, y: topi.tensordot(x, y, ((2, 1), (2, 1))),
            np.tensordot(A, B, ((2, 1), (2, 1))),
            [A, B],
        ),
        (lambda x, y: topi.tensordot(x, y, 1), A @ B[0, 0], [A, B[0, 0]]),
        (lambda x, y: topi.matmul(x, y, False, True), A[0] @ B[0].T, [A[0], B[0]]),
        (lambda x: topi.argmax(x, 1), A.argmax(1).astype("int32"), [A]),
        (lambda x, y: topi.elemwise_sum([x, y, x]), 2 * A + B, [A, B]),
        (lambda x, y: topi.logical_xor(x, y), (A > 0.5) ^ (B > 0.5), [A > 0.5, B > 0.5]),
    ],
)
def test_transforms(make: Any, want: Any, arrays: list[Any]) -> None:
    check(make, want, *arrays)


W, W1 = drawn(6, 4, 3, 3), drawn(6, 2, 3, 3)
D, T = drawn(4, 2, 3, 3), drawn(4, 3, 3, 3)


@pytest.mark.parametrize(
    ("make", "want", "arrays"),
    [
        (
            lambda x, w: topi.nn.conv2d(x, w, (2, 1), (0, 1, 2, 1), 1),
            ref.conv2d_nchw_python(C, W, (2, 1), (0, 1, 2, 1)),
            [C, W],
        ),
        (
            lambda x, w: topi.cuda.conv2d_nchw_winograd(x, w, 1, "SAME", 2),
            ref.conv2d_nchw_python(C, ref.dilate_python(W, (1, 1, 2, 2)), 1, "SAME"),
            [C, W],
        ),
        (
            lambda x, w: topi.nn.group_conv2d_nchw(x, w, 1, 1, 1, 2),
            ref.conv2d_nchw_python(C, W1, 1, 1, 2),
            [C, W1],
        ),
        (
            lambda x, w: topi.nn.conv2d(x, w, 1, "VALID", 1, "NHWC"),
            ref.conv2d_nhwc_python(C.transpose(0, 2, 3, 1), W.transpose(2, 3, 1, 0), 1, "VALID"),
            [C.transpose(0, 2, 3, 1).copy(), W.transpose(2, 3, 1, 0).copy()],
        ),
        (
            lambda x, w: topi.nn.conv2d_hwcn(x, w, 1, 0, 1),
            ref.conv2d_hwcn_python(C.transpose(2, 3, 1, 0), W.transpose(2, 3, 1, 0), 1, 0),
            [C.transpose(2, 3, 1, 0).copy(), W.transpose(2, 3, 1, 0).copy()],
        ),
        (
            lambda x, w: topi.nn.depthwise_conv2d_nchw(x, w, 2, "SAME", 1),
            ref.depthwise_conv2d_python_nchw(C, D, 2, "SAME"),
            [C, D],
        ),
        (
            lambda x, w: topi.nn.depthwise_conv2d_nhwc(x, w, 1, 0, 1),
            ref.depthwise_conv2d_python_nhwc(
                C.transpose(0, 2, 3, 1), D.transpose(2, 3, 0, 1), 1, 0
            ),
            [C.transpose(0, 2, 3, 1).copy(), D.transpose(2, 3, 0, 1).copy()],
        ),
        (
            lambda x, w: topi.nn.conv1d_ncw(x, w, 2, 1, 2),
            ref.conv1d_ncw_python(C[:, :, 0], W[:, :, 0], 2, 1, 2),
            [C[:, :, 0], W[:, :, 0]],
        ),
        (
            lambda x, w: topi.nn.conv3d_ncdhw(x, w, 1, 1, 1),
            ref.conv3d_ncdhw_python(C[:, None], W[:2, :1, None], 1, 1),
            [C[:, None], W[:2, :1, None]],
        ),
        (
            lambda x, w: topi.nn.conv3d_ndhwc(x, w, 1, 0, 1),
            ref.conv3d_ndhwc_python(C[..., None], W[:1, :1].transpose(0, 2, 3, 1)[..., None], 1, 0),
            [C[..., None], W[:1, :1].transpose(0, 2, 3, 1)[..., None].copy()],
        ),
        (
            lambda x, w: topi.nn.conv2d_transpose_nchw(x, w, (2, 2), (1, 1), "float32", (1, 0)),
            ref.conv2d_transpose_nchw_python(C, T, 2, 1, (1, 0)),
            [C, T],
        ),
        (
            lambda x, w: topi.nn.group_conv2d_transpose_nchw(x, w, 1, 0, None, 0, 2),
            np.concatenate(
                [
                    ref.conv2d_transpose_nchw_python(C[:, :2], T[:2], 1, 0),
                    ref.conv2d_transpose_nchw_python(C[:, 2:], T[2:], 1, 0),
                ],
                1,
            ),
            [C, T],
        ),
        (lambda x: topi.nn.dilate(x, (1, 2, 3), 5), ref.dilate_python(A, (1, 2, 3), 5), [A]),
        (
            lambda x: topi.nn.mirror_pad(x, (0, 1, 2), mode="REFLECT"),
            np.pad(A, ((0, 0), (1, 1), (2, 2)), "reflect"),
            [A],
        ),
        *(
            (
                lambda x, p=p, k=k: topi.nn.pool2d(
                    x, [3, 2], [2, 1], [1, 2], [1, 0, 0, 1], p, k, "NCHW", not k
                ),
                ref.poolnd_python(C, [3, 2], [2, 1], [1, 2], [1, 0], [0, 1], p, not k, k),
                [C],
            )
            for p in ("max", "avg")
            for k in (False, True)
        ),
        (
            lambda x: topi.nn.pool1d(x, 3, 2, 1, 1, "avg", False, "NWC"),
            ref.poolnd_python(C[0], 3, 2, 1, [1], [1], "avg", layout="NWC"),
            [C[0]],
        ),
        (
            lambda x: topi.nn.pool3d(x, 2, 2, 1, 0, "max"),
            ref.poolnd_python(C[None], 2, 2, 1, [0] * 3, [0] * 3, "max"),
            [C[None]],
        ),
        (
            lambda x: topi.nn.adaptive_pool(x, (4, 2), "avg"),
            ref.adaptive_pool(C, (4, 2), "avg"),
            [C],
        ),
        (
            lambda x: topi.nn.global_pool(x, "max", "NHWC"),
            ref.adaptive_pool(C, (1, 1), "max", "NHWC"),
            [C],
        ),
        (
            lambda *t: topi.nn.batch_norm(*t, 1, 1e-5, True, True, True, 0.2),
            TRAINED,
            [C, *BN],
        ),
        (lambda x, w: topi.nn.rms_norm(x, w, [1, -1], 0.5), NORMED, [A, A[0]]),
        (
            lambda *t: topi.nn.batch_norm(*t, 1, 0.1, True, False)[0],
            ref.batch_norm(C, *BN, 1, 0.1, True, False)[0],
            [C, *BN],
        ),
        (
            lambda *t: topi.nn.layer_norm(*t, -1),
            ref.layer_norm_python(A, BN[0], BN[1], -1),
            [A, BN[0], BN[1]],
        ),
        (
            lambda *t: topi.nn.instance_norm(*t, 1, [2, 3]),
            ref.layer_norm_python(C, BN[0].reshape(4, 1, 1), BN[1].reshape(4, 1, 1), (2, 3)),
            [C, BN[0], BN[1]],
        ),
        (
            lambda *t: topi.nn.group_norm(*t, 4),
            ref.layer_norm_python(C, BN[0].reshape(4, 1, 1), BN[1].reshape(4, 1, 1), (2, 3)),
            [C, BN[0], BN[1]],
        ),
        (
            lambda x: topi.nn.lrn(x, 3, 1, 0.5, 0.75, 1.0),
            ref.lrn_python(C, 3, 1, 1.0, 0.5, 0.75),
            [C],
        ),
        (lambda x: topi.nn.upsampling(x, 2, 3), ref.upsampling_python(C, (2, 3)), [C]),
        *(
            (
                lambda x, m=m: topi.nn.depth_to_space(x, 2, mode=m),
                ref.depth_to_space_python(C, 2, m),
                [C],
            )
            for m in ("DCR", "CDR")
        ),
        (
            lambda x: topi.nn.space_to_depth(x, 3),
            ref.space_to_depth_python(C, 3),
            [C],
        ),
        (topi.nn.bias_add, A + V[:, None], [A, V]),
        (topi.nn.prelu, A, [A, V]),
        (lambda x: topi.nn.leaky_relu(x, 0.5), np.where(A > 0.5, A - 0.5, A / 2 - 0.25), [A - 0.5]),
        (topi.nn.scale_shift_nchw, A * V[:, None] + V[:, None], [A, V, V]),
        (lambda x, y: topi.nn.batch_matmul(x, y), ref.batch_matmul(A, B), [A, B]),
        (lambda x, y: topi.nn.batch_matmul(x, y), A[:1] @ B.swapaxes(1, 2), [A[:1], B]),
        (
            lambda x, y, b: topi.gpu.dense_large_batch(x, y, b, "float64"),
            ref.dense(A[0], B[0], V, True, out_dtype="float64").astype("float64"),
            [A[0], B[0], V.astype("float64")],
        ),
        (lambda x: topi.nn.softmax(x, 1), ref.softmax_python(A), [A]),
        (lambda x: topi.nn.log_softmax(x, 1), ref.log_softmax_python(A), [A]),
    ],
)
def test_networks(make: Any, want: Any, arrays: list[Any]) -> None:
    check(make, want, *arrays)


SEQUENCES = np.array([1, 3, 2], "int32"), drawn(3, 4, 2)
BACKWARDS = np.stack(
    [np.concatenate((r[:n][::-1], r[n:])) for n, r in zip(*SEQUENCES, strict=True)]
)
BOUNDS = [np.array(each, "int32") for each in ([1, -3], [4, 4], [2, 1])]
SET = drawn(4, 4), drawn(2, 3)
BANDS = drawn(2, 3, 4), drawn(2, 3, 3)
PLACES = np.array([[0, 1], [2, 0], [0, 1]], "int32"), np.array([3.0, 1.0, 2.0], "f4")
DENSE = np.full((3, 2), 0.5, "f4")
DENSE[0, 1], DENSE[2, 0] = 2.0, 1.0


@pytest.mark.parametrize(
    ("make", "want", "arrays"),
    [
        (lambda n, x: topi.reverse_sequence(x, n, 1, 0), BACKWARDS, SEQUENCES),
        (lambda x, y: topi.expand_like(x, y, [0]), np.stack([V] * 2), [V, ONES]),
        (lambda x, y: topi.expand_like(x, y, [0, 1]), np.full((2, 3), V[0]), [V[:1], ONES]),
        (lambda x, k: topi.trilu(x, k, True), np.triu(A, 1), [A, np.array(1, "int32")]),
        (lambda x: topi.trilu(x, -1, upper=False), np.tril(A, -1), [A]),
        (
            lambda x, v, b, e, s: topi.strided_set(x, v, b, e, s),
            ref.strided_set_python(*SET, [1, -3], [4, 4], [2, 1]),
            [*SET, *BOUNDS],
        ),
        (
            lambda x, v, b, e: topi.strided_set(x, v, b, e),
            ref.strided_set_python(SET[0], SET[1][:, 1:], [1, 2], [3, 4]),
            [SET[0], SET[1][:, 1:], np.array([1, 2], "int32"), np.array([3, 4], "int32")],
        ),
        (
            lambda x, v, b, e, s: topi.strided_set(x, v, b, e, s),
            ref.strided_set_python(SET[0], SET[0][:1], [3], [2], [-1]),
            [SET[0], SET[0][:1], *(np.array([n], "int32") for n in (3, 2, -1))],
        ),
        *(
            (
                lambda x, d, k=k, align=align: topi.matrix_set_diag(x, d, k, align),
                ref.matrix_set_diag(*BANDS, k, align),
                BANDS,
            )
            for k, align in (
                ((-1, 1), "RIGHT_LEFT"),
                ((-1, 1), "LEFT_RIGHT"),
                ((0, 2), "LEFT_LEFT"),
            )
        ),
        (
            lambda i, v: topi.sparse_to_dense(i, (3, 2), v, 0.5),
            DENSE,
            PLACES,
        ),
        (
            lambda i, v, d: topi.sparse_to_dense(i, (4,), v, d),
            np.array([0.5, 7.0, 0.5, 7.0], "f4"),
            [np.array([3, 1], "int32"), np.float32(7.0), np.float32(0.5)],
        ),
        (
            lambda i, v: topi.sparse_to_dense(i, (4,), v),
            np.array([0, 0, 7.0, 0], "f4"),
            [np.array(2, "int32"), np.float32(7.0)],
        ),
        (
            lambda x, w, b: topi.nn.matmul(x, w, b, None, True, True),
            ONES.T @ BANDS[0][0, :, :2].T + 1.0,
            [ONES, BANDS[0][0, :, :2], np.ones(3, "f4")],
        ),
    ],
)
def test_places(make: Any, want: Any, arrays: Any) -> None:
    check(make, want, *(np.asarray(a) for a in arrays))


@pytest.mark.parametrize("dtype", ["float16", "int8", "float32"])
def test_folds_are_one_stage_of_the_dtype_of_the_data(dtype: str) -> None:
    x = te.placeholder((32, 4), dtype, name="x")
    for fold in (topi.sum, topi.max, topi.prod):
        made = fold(x)
        assert len(made.op.reduce_axis) == 2 and str(made.dtype) == dtype


def test_what_topi_asks_of_shapes() -> None:
    utils = topi.utils
    assert utils.ravel_index((1, 2), (3, 4)) == 6 and utils.unravel_index(6, (3, 4)) == [1, 2]
    assert utils.get_max_power2_factor(48) == 16 and utils.get_max_power2_factor(48, 8) == 8
    assert utils.is_empty_shape((3, 0)) and not utils.is_empty_shape((3,))
    assert utils.get_pad_tuple1d(1, (3,)) == (1, 1)
    for made, want in ((utils.const_matrix(A[0]), A[0]), (utils.const_vector(V), V)):
        np.testing.assert_array_equal(te.evaluate(made, {})[0], want)


@pytest.mark.parametrize(
    ("name", "words"), [("sort", "te.extern"), ("scatter_nd", "s.T..scatter"), ("cpp", "Python")]
)
def test_what_is_left_out_says_what_to_write(name: str, words: str) -> None:
    for where in (topi, topi.nn):
        with pytest.raises(te.ExprError, match=rf"has no attribute '{name}'(.|\n)*{words}"):
            getattr(where, name)


def test_slices() -> None:
    for begin, end, strides, mode in (
        ([0, 2, 3], [2, -4, 0], [1, -1, -2], "end"),
        ([1], [5], None, "end"),
        ([0, 1, 0], [2, 2, -1], None, "size"),
    ):
        want = ref.strided_slice_python(A, begin, end, strides or [1] * 3, mode)
        check(lambda x, c=(begin, end, strides, None, mode): topi.strided_slice(x, *c), want, A)
    want = ref.strided_slice_python(A, [1], [3], [1], axes=[2])
    check(lambda x: topi.strided_slice(x, [1], [3], [1], [2]), want, A)


def test_schedules_and_tables_by_target() -> None:
    x = te.placeholder((4, 8), name="x")
    y = topi.nn.relu(x)
    table = {"generic": 1, "cpu": [2], "cuda": 3}
    assert ref.dispatch("llvm", table) == [2] and ref.dispatch("cuda", {"generic": 1}) == 1
    compute, schedule = ref.get_conv2d_nchw_implement("llvm")
    assert compute is topi.nn.conv2d_nchw and "for" in str(schedule([y]))
    assert str(ref.get_reduce_schedule("llvm")([y])) == str(topi.x86.schedule_injective([y]))


def test_refusals() -> None:
    x, w = te.placeholder((1, 4, 8, 8), name="x"), te.placeholder((4, 4, 3, 3), name="w")
    for call, text in (
        (lambda: topi.nn.conv2d(x, w, data_layout="NCHW8c"), r"layout is 'NCHW8c'(.|\n)*NHWC"),
        (lambda: topi.nn.conv2d(x, w, padding="FULL"), r"'FULL' is no padding(.|\n)*SAME"),
        (lambda: topi.nn.upsampling(x, 2, 2, method="bilinear"), r"method is 'bilinear'"),
        (lambda: topi.nn.depth_to_space(x, 2, "HWC"), r"layout is 'HWC'"),
        (lambda: topi.flip(x, 4), r"x has no dimension 4(.|\n)*-4 .. 3"),
        (lambda: ref.get_thing(), r"topi.testing has no attribute 'get_thing'"),
    ):
        with pytest.raises(te.ExprError, match=text):
            call()
