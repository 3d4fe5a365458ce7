"""Small models of unlike kinds, with an example each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch_sequences import SEQUENCES
from torch_vision import VISION, Made

torch: Any = importlib.import_module("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional


class Block(nn.Module):
    """A transformer block, pre-norm; causal on request."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, t, w = x.shape
        parts = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / (w // self.heads) ** 0.5
        if self.causal:
            mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
        found = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, w)
        x = x + self.out(found)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Embeddings, two causal blocks, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(37, 24), nn.Embedding(16, 24)
        self.blocks = nn.Sequential(Block(24, 3, True), Block(24, 3, True))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 37, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class Llama(nn.Module):
    """Rotary positions, grouped queries, RMS norm, SwiGLU, fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.norm, self.norm2 = nn.RMSNorm(32), nn.RMSNorm(32)
        self.gate, self.up, self.down = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)

    def turned(self, x: Any) -> Any:
        t, d = x.shape[-2:]
        rate = 10000.0 ** (-torch.arange(0, d, 2) / d)
        angle = torch.outer(torch.arange(t).float(), rate)
        angle = torch.cat([angle, angle], -1)
        half = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1)
        return (x * angle.cos() + half * angle.sin()).to(x.dtype)

    def forward(self, x: Any) -> Any:
        b, t, _ = x.shape
        h = self.norm(x)
        q = self.turned(self.q(h).view(b, t, 4, 8).transpose(1, 2))
        k = self.turned(self.k(h).view(b, t, 2, 8).transpose(1, 2)).repeat_interleave(2, 1)
        v = self.v(h).view(b, t, 2, 8).transpose(1, 2).repeat_interleave(2, 1)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + found.transpose(1, 2).reshape(b, t, 32)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class UNet(nn.Module):
    """Down, up, and what is joined from both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 2, stride=2), nn.Conv2d(12, 2, 1)
        self.norm = nn.GroupNorm(2, 6)

    def forward(self, x: Any) -> Any:
        a = F.silu(self.norm(self.first(x)))
        b = F.relu(self.second(F.max_pool2d(a, 2)))
        return self.last(torch.cat([a, self.up(b)], 1))


class Residual(nn.Module):
    """Two convolutions with batch norm around a shortcut, then a mean over the plane."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.a, self.b = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.n0, self.n1, self.n2 = (nn.BatchNorm2d(8) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.n0(self.stem(x))), 3, stride=2, padding=1)
        y = self.n2(self.b(F.relu(self.n1(self.a(x)))))
        return self.head(F.adaptive_avg_pool2d(F.relu(x + y), 1).flatten(1))


class Mobile(nn.Module):
    """Depthwise convolution, squeeze and excite, hard swish."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(4, 12, 1), nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.squeeze, self.excite = nn.Conv2d(12, 3, 1), nn.Conv2d(3, 12, 1)
        self.norm, self.out = nn.BatchNorm2d(12), nn.Conv2d(12, 4, 1)

    def forward(self, x: Any) -> Any:
        y = F.hardswish(self.norm(self.deep(F.hardswish(self.wide(x)))))
        scale = F.hardsigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.out(y * scale)


class Recommender(nn.Module):
    """Embedding tables, their pairwise products, an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 8) for n in (11, 7, 5))
        self.dense = nn.Linear(6, 8)
        self.head = nn.Sequential(nn.Linear(14, 9), nn.ReLU(), nn.Linear(9, 1))

    def forward(self, x: Any, ids: Any) -> Any:
        dense = F.relu(self.dense(x))
        rows = [table(ids[:, n]) for n, table in enumerate(self.tables)]
        every = torch.stack([dense, *rows], 1)
        pairs = (every @ every.transpose(1, 2))[:, *torch.triu_indices(4, 4, 1)]
        return torch.sigmoid(self.head(torch.cat([dense, pairs], 1)))


class GraphConv(nn.Module):
    """Messages along edges, added up at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.own = nn.Linear(5, 7), nn.Linear(5, 7)

    def forward(self, x: Any, edges: Any) -> Any:
        sent = self.message(x)[edges[0]]
        got = torch.zeros(x.shape[0], 7, dtype=x.dtype).index_add(0, edges[1], sent)
        return F.elu(got + self.own(x))


def _sequence(cell: Any) -> Any:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, x: Any) -> Any:
            state: Any = None
            for t in range(x.shape[0]):
                state = self.cell(x[t], state)
            return state[0] if isinstance(state, tuple) else state

    return Steps()


def _mlp() -> Any:
    return nn.Sequential(
        nn.Linear(13, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 17), nn.Tanh(), nn.Softmax(-1)
    )


def _autoencoder() -> Any:
    return nn.Sequential(
        nn.Conv1d(2, 5, 4, stride=2, padding=1),
        nn.LeakyReLU(0.1),
        nn.AvgPool1d(2),
        nn.ConvTranspose1d(5, 2, 4, stride=4),
        nn.Sigmoid(),
    )


def _image() -> Any:
    return torch.randn(2, 3, 16, 16)


MODELS: dict[str, Callable[[], Made]] = {
    "mlp": lambda: (_mlp(), (torch.randn(5, 13),)),
    "residual": lambda: (Residual(), (_image(),)),
    "mobile": lambda: (Mobile(), (torch.randn(2, 4, 7, 9),)),
    "unet": lambda: (UNet(), (_image(),)),
    "block": lambda: (Block(24, 4, False), (torch.randn(2, 7, 24),)),
    "encoder_layer": lambda: (
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        (torch.randn(2, 5, 16),),
    ),
    "gpt": lambda: (GPT(), (torch.randint(0, 37, (2, 9)),)),
    "llama": lambda: (Llama(), (torch.randn(2, 6, 32),)),
    "lstm": lambda: (_sequence(nn.LSTMCell(6, 8)), (torch.randn(3, 4, 6),)),
    "gru": lambda: (_sequence(nn.GRUCell(6, 8)), (torch.randn(3, 4, 6),)),
    "autoencoder": lambda: (_autoencoder(), (torch.randn(3, 2, 24),)),
    "recommender": lambda: (
        Recommender(),
        (torch.randn(4, 6), torch.randint(0, 5, (4, 3))),
    ),
    "graph": lambda: (GraphConv(), (torch.randn(6, 5), torch.randint(0, 6, (2, 11)))),
    **VISION,
    **SEQUENCES,
}
"""Each name with a function that makes the model and its arguments."""


def shares(report: Any) -> tuple[int, int]:
    """Operators in tedsl's kernels, and all of them but views and constants, of all graphs."""
    moved = "a view or a constant by itself"
    nodes = sum(
        graph.nodes - sum(n for (_, reason), n in graph.left.items() if reason == moved)
        for graph in report.graphs
    )
    return sum(graph.taken for graph in report.graphs), nodes
