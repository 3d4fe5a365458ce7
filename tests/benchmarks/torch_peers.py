"""The computations of the benchmark in PyTorch, named as in `written.py`; loaded only to measure.

The functions of the first part take tensors by name, for eager mode, `torch.compile` and the exact
result (from wide inputs).  Those of the second part, `prepare_*`, take the same and return a call:
peers that need a backend chosen, a mask made or a forward pass run before the clock starts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from written import EPS
from written_models import ADAM_EPS, BETA1, BETA2, LR, STEP

torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional
Call = Callable[[], Any]


def chain(x: Any, y: Any) -> Any:
    return torch.sigmoid(torch.relu((x + y) * 2.0) - 1.0)


short_chain = chain


def row_vectors(x: Any, w: Any, b: Any) -> Any:
    return torch.relu(x * w + b)


def sincos(x: Any) -> Any:
    return torch.sin(x), torch.cos(x)


def transpose_add(x: Any, y: Any) -> Any:
    return x + y.t()


def gather_add(e: Any, ids: Any, y: Any) -> Any:
    return e[ids] + y


def _floats(x: Any) -> Any:
    """16-bit floats as float32, wider ones as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _wide(x: Any) -> Any:
    """8-bit numbers as float32, which PyTorch multiplies; wider ones as `_floats`."""
    return x.float() if x.dtype.itemsize == 1 else _floats(x)


def mean_squares(x: Any, y: Any) -> Any:
    return (_floats(x) - _floats(y)).square().mean()


def column_sum(x: Any) -> Any:
    return _floats(x).sum(0)


def variance(x: Any) -> Any:
    return torch.var(_floats(x), correction=0)


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def log_softmax(x: Any) -> Any:
    return torch.log_softmax(x, -1)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return functional.layer_norm(x, (x.shape[-1],), w, b, EPS)


def rms_norm_add(x: Any, r: Any, w: Any) -> Any:
    h = _floats(x) + _floats(r)
    scale = torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS)
    return h.to(x.dtype), (h * scale * _floats(w)).to(x.dtype)


def layer_norm_backward(dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
    mean, rstd = mean.to(rstd.dtype)[:, None], rstd[:, None]
    wide = _floats(dy)
    unit = (_floats(x) - mean) * rstd
    head = wide * _floats(w)
    a, b = head.mean(-1, keepdim=True), (head * unit).mean(-1, keepdim=True)
    dx = (head - a - unit * b) * rstd
    return dx.to(x.dtype), (wide * unit).sum(0).to(x.dtype), wide.sum(0).to(x.dtype)


def rms_norm_backward(dy: Any, x: Any, w: Any, rstd: Any) -> Any:
    wide = _floats(dy)
    unit = _floats(x) * rstd[:, None]
    head = wide * _floats(w)
    b = (head * unit).mean(-1, keepdim=True)
    return ((head - unit * b) * rstd[:, None]).to(x.dtype), (wide * unit).sum(0).to(x.dtype)


def cross_entropy(x: Any, target: Any) -> Any:
    return functional.cross_entropy(_floats(x), target, reduction="none")


def cross_entropy_both(x: Any, target: Any) -> Any:
    """Written out, so that one compiled function holds the forward and the backward pass."""
    logits = _floats(x)
    shares = torch.log_softmax(logits, -1)
    loss = -shares.gather(1, target[:, None])[:, 0]
    columns = torch.arange(x.shape[1], device=x.device)
    hit = columns[None, :] == target[:, None]
    return loss, ((shares.exp() - hit.to(shares.dtype)) / x.shape[0]).to(x.dtype)


def matmul(a: Any, b: Any) -> Any:
    return a @ b


def matmul_gelu(a: Any, b: Any, bias: Any) -> Any:
    return functional.gelu(a @ b + bias, approximate="tanh")


def swiglu(a: Any, g: Any, u: Any) -> Any:
    return functional.silu(a @ g) * (a @ u)


def norm_matmul(x: Any, w: Any, b: Any) -> Any:
    return functional.rms_norm(x, (x.shape[-1],), w, EPS) @ b


def matmul_squares(a: Any, b: Any) -> Any:
    product = a @ b
    return product, _floats(product).square().sum(-1)


def matmul_lse(a: Any, b: Any) -> Any:
    return torch.logsumexp(_floats(a @ b), -1)


def scaled_matmul(a: Any, b: Any, sa: Any, sb: Any) -> Any:
    return (_wide(a) @ _wide(b).t()) * sa[:, None] * sb


def _seen(rows: int, keys: int, device: Any, causal: bool, window: int) -> Any:
    i = torch.arange(rows, device=device)[:, None]
    j = torch.arange(keys, device=device)[None, :]
    seen = j <= i if causal else torch.ones(rows, keys, dtype=torch.bool, device=device)
    return seen & (i - j < window) if window else seen


def attention(
    q: Any, k: Any, v: Any, causal: bool = False, window: int = 0, cap: float = 0.0
) -> Any:
    """Head by head, so that only the scores of one are held."""
    hidden = ~_seen(q.shape[1], k.shape[1], q.device, causal, window)
    results: list[Any] = []
    for a, b, c in zip(q, k, v, strict=True):
        scores = a @ b.t() * q.shape[-1] ** -0.5
        scores = torch.tanh(scores / cap) * cap if cap else scores
        results.append(torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ c)
    return torch.stack(results)


def attention_backward(
    q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any, causal: bool = False
) -> Any:
    """Head by head."""
    hidden = ~_seen(q.shape[1], k.shape[1], q.device, causal, 0)
    scale = q.shape[-1] ** -0.5
    results: list[Any] = []
    for head in range(q.shape[0]):
        scores = (q[head] @ k[head].t() * scale).masked_fill(hidden, float("-inf"))
        p = torch.exp(scores - lse[head, :, None])
        dp = do[head] @ v[head].t()
        ds = p * (dp - (o[head] * do[head]).sum(-1)[:, None]) * scale
        results.append((ds @ k[head], ds.t() @ q[head], p.t() @ do[head]))
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def _convolved(x: Any, w: Any, scale: Any, bias: Any, stride: int, pad: int, groups: int) -> Any:
    out = functional.conv2d(x.permute(0, 3, 1, 2), w, stride=stride, padding=pad, groups=groups)
    out = torch.relu(out * scale[:, None, None] + bias[:, None, None])
    return out.permute(0, 2, 3, 1)


def convolution(x: Any, w: Any, scale: Any, bias: Any, stride: int = 1, pad: int = 0) -> Any:
    return _convolved(x, w.permute(0, 3, 1, 2), scale, bias, stride, pad, 1)


def depthwise(x: Any, w: Any, scale: Any, bias: Any, stride: int = 1, pad: int = 0) -> Any:
    return _convolved(x, w.permute(2, 0, 1)[:, None], scale, bias, stride, pad, x.shape[-1])


def adam(**tensors: Any) -> tuple[Any, ...]:
    """One tensor after the other."""
    outputs: list[Any] = []
    for place in range(len(tensors) // 4):
        p, g, m, v = (tensors[f"{name}{place}"] for name in "pgmv")
        m = m * BETA1 + g * (1.0 - BETA1)
        v = v * BETA2 + g * g * (1.0 - BETA2)
        root = torch.sqrt(v / (1.0 - BETA2**STEP)) + ADAM_EPS
        outputs += [p - m * (LR / (1.0 - BETA1**STEP)) / root, m, v]
    return tuple(outputs)


def scaled_many(**tensors: Any) -> tuple[Any, ...]:
    return tuple(tensors[f"x{place}"] * 2.0 + 1.0 for place in range(len(tensors)))


# Peers that are prepared ------------------------------------------------------------------------


def _backend(name: str) -> Any:
    attention_backends: Any = importlib.import_module("torch.nn.attention")
    return attention_backends.sdpa_kernel(getattr(attention_backends.SDPBackend, name))


def _forward(
    backend: str, q: Any, k: Any, v: Any, causal: bool = False, window: int = 0, cap: float = 0.0
) -> Call:
    if window or cap:
        raise ValueError(f"{backend} has neither a window nor a soft cap")
    attend = functional.scaled_dot_product_attention
    with _backend(backend):  # refuses here what it cannot do
        attend(q[None], k[None], v[None], is_causal=causal)

    def call() -> Any:
        with _backend(backend):
            return attend(q[None], k[None], v[None], is_causal=causal)[0]

    return call


def prepare_cudnn(q: Any, k: Any, v: Any, **settings: Any) -> Call:
    return _forward("CUDNN_ATTENTION", q, k, v, **settings)


def prepare_flash(q: Any, k: Any, v: Any, **settings: Any) -> Call:
    return _forward("FLASH_ATTENTION", q, k, v, **settings)


def _flex(q: Any, k: Any, causal: bool, window: int, cap: float) -> Callable[[Any, Any, Any], Any]:
    """FlexAttention of these sizes, compiled in its tuned mode."""
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j <= i) & (i - j < window) if window else j <= i

    def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.tanh(score / cap) * cap

    rows, keys = q.shape[1], k.shape[1]
    mask = flex.create_block_mask(seen, None, None, rows, keys, device=q.device) if causal else None
    options: dict[str, Any] = {"block_mask": mask, "score_mod": capped if cap else None}
    attend = torch.compile(flex.flex_attention, dynamic=False, mode="max-autotune-no-cudagraphs")
    return lambda a, b, c: attend(a, b, c, **options)


def prepare_flex(
    q: Any, k: Any, v: Any, causal: bool = False, window: int = 0, cap: float = 0.0
) -> Call:
    attend = _flex(q, k, causal, window, cap)
    attend(q[None], k[None], v[None])
    return lambda: attend(q[None], k[None], v[None])[0]


def _gradients(attend: Callable[[Any, Any, Any], Any], q: Any, k: Any, v: Any, do: Any) -> Call:
    """The backward pass alone: the forward pass has run before."""
    leaves = [t.detach()[None].clone().requires_grad_() for t in (q, k, v)]
    with torch.enable_grad():
        out = attend(*leaves)
    head = do[None]

    def call() -> Any:
        return torch.autograd.grad(out, leaves, head, retain_graph=True)

    call()
    return call


def _backward(backend: str, q: Any, k: Any, v: Any, do: Any, causal: bool) -> Call:
    attend = functional.scaled_dot_product_attention
    with _backend(backend):
        return _gradients(lambda a, b, c: attend(a, b, c, is_causal=causal), q, k, v, do)


def prepare_cudnn_backward(
    q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any, causal: bool = False
) -> Call:
    return _backward("CUDNN_ATTENTION", q, k, v, do, causal)


def prepare_flash_backward(
    q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any, causal: bool = False
) -> Call:
    return _backward("FLASH_ATTENTION", q, k, v, do, causal)


def prepare_flex_backward(
    q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any, causal: bool = False
) -> Call:
    return _gradients(_flex(q, k, causal, 0, 0.0), q, k, v, do)


def prepare_cross_entropy_autograd(x: Any, target: Any) -> Call:
    """The library's forward and backward pass, compiled each for itself."""

    def forward(logits: Any, labels: Any) -> Any:
        return functional.cross_entropy(logits.float(), labels)

    compiled = torch.compile(forward, dynamic=False)
    leaf = x.detach().requires_grad_()

    def call() -> Any:
        with torch.enable_grad():
            loss = compiled(leaf, target)
        return loss, torch.autograd.grad(loss, leaf)[0]

    call()
    return call


def prepare_scaled(a: Any, b: Any, sa: Any, sb: Any) -> Call:
    across, down = sb[None, :].contiguous(), sa[:, None].contiguous()
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=down, scale_b=across, out_dtype=torch.bfloat16
    )


def prepare_integers(a: Any, b: Any, **scales: Any) -> Call:
    """The sums alone, in int32."""
    del scales
    return lambda: torch._int_mm(a, b.t())


def _lists(tensors: dict[str, Any]) -> tuple[list[Any], ...]:
    count = len(tensors) // 4
    return tuple([tensors[f"{name}{place}"] for place in range(count)] for name in "pgmv")


def adam_foreach(p: list[Any], g: list[Any], m: list[Any], v: list[Any]) -> Any:
    """In the library's operations on lists; the moments are overwritten, as an optimiser does."""
    torch._foreach_lerp_(m, g, 1.0 - BETA1)
    torch._foreach_mul_(v, BETA2)
    torch._foreach_addcmul_(v, g, g, 1.0 - BETA2)
    root = torch._foreach_sqrt(v)
    torch._foreach_div_(root, (1.0 - BETA2**STEP) ** 0.5)
    torch._foreach_add_(root, ADAM_EPS)
    torch._foreach_addcdiv_(p, m, root, -LR / (1.0 - BETA1**STEP))
    return p


def prepare_adam_foreach(**tensors: Any) -> Call:
    lists = [[t.clone() for t in each] for each in _lists(tensors)]
    return lambda: adam_foreach(*lists)


def prepare_adam_fused(**tensors: Any) -> Call:
    p, g, m, v = ([t.clone() for t in each] for each in _lists(tensors))
    steps = [torch.full((), float(STEP), device=p[0].device) for _ in p]
    return lambda: torch._fused_adam_(
        p, g, m, v, [], steps, lr=LR, beta1=BETA1, beta2=BETA2, weight_decay=0.0, eps=ADAM_EPS,
        amsgrad=False, maximize=False,
    )  # fmt: skip


def prepare_scaled_foreach(**tensors: Any) -> Call:
    xs = [tensors[f"x{place}"] for place in range(len(tensors))]
    return lambda: torch._foreach_add(torch._foreach_mul(xs, 2.0), 1.0)
