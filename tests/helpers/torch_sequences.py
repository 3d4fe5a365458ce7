"""Small models of text, sound, graphs and tables, with an example each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch_vision import Made, Wrapped

torch: Any = importlib.import_module("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional


def ids(high: int, *shape: int) -> Any:
    """Numbers of tokens."""
    return torch.randint(0, high, shape)


def _heads(x: Any, heads: int) -> Any:
    b, t, w = x.shape
    return x.view(b, t, heads, w // heads).transpose(1, 2)


def _joined(x: Any) -> Any:
    return x.transpose(1, 2).flatten(2)


def gpt2() -> Made:
    """Learnt positions, the tanh form of GELU, a head that is the table of tokens; its loss."""

    def run(m: Any, tokens: Any) -> Any:
        x = m.tokens(tokens) + m.places.weight[: tokens.shape[1]]
        q, k, v = (_heads(each, 3) for each in m.qkv(m.n1(x)).chunk(3, -1))
        x = x + m.out(_joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        x = x + m.down(F.gelu(m.up(m.n2(x)), approximate="tanh"))
        logits = m.norm(x) @ m.tokens.weight.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    made = Wrapped(
        run,
        tokens=nn.Embedding(31, 12),
        places=nn.Embedding(16, 12),
        qkv=nn.Linear(12, 36),
        out=nn.Linear(12, 12),
        up=nn.Linear(12, 48),
        down=nn.Linear(48, 12),
        n1=nn.LayerNorm(12),
        n2=nn.LayerNorm(12),
        norm=nn.LayerNorm(12),
    )
    return made, (ids(31, 2, 11),)


def bert() -> Made:
    """Segments, padding masked out, norms behind, a pooler."""

    def run(m: Any, tokens: Any, kinds: Any, mask: Any) -> Any:
        places = torch.arange(tokens.shape[1])
        x = m.n0(m.tokens(tokens) + m.places(places) + m.kinds(kinds))
        hidden = (1.0 - mask[:, None, None].to(x.dtype)) * -1e4
        q, k, v = (_heads(part(x), 2) for part in (m.q, m.k, m.v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + hidden
        x = m.n1(x + m.out(_joined(scores.softmax(-1) @ v)))
        x = m.n2(x + m.down(F.gelu(m.up(x))))
        return m.head(torch.tanh(m.pool(x[:, 0])))

    linear = {name: nn.Linear(8, 8) for name in ("q", "k", "v", "out", "pool")}
    norms = {f"n{n}": nn.LayerNorm(8, eps=1e-12) for n in range(3)}
    made = Wrapped(
        run,
        tokens=nn.Embedding(23, 8, padding_idx=0),
        places=nn.Embedding(12, 8),
        kinds=nn.Embedding(2, 8),
        up=nn.Linear(8, 20),
        down=nn.Linear(20, 8),
        head=nn.Linear(8, 2),
        **linear,
        **norms,
    )
    mask = torch.tensor([[1] * 7 + [0] * 2, [1] * 9])
    return made, (ids(23, 2, 9), ids(2, 2, 9), mask)


def llama_cached() -> Made:
    """One step of decoding: rotary positions, grouped queries, keys and values appended."""

    def turned(x: Any, at: Any) -> Any:
        half = x.shape[-1] // 2
        angle = at[:, None] * 10000.0 ** (-torch.arange(half) / half)
        cos, sin = (torch.cat([f(angle)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def run(m: Any, x: Any, keys: Any, values: Any) -> Any:
        past = keys.shape[2]
        h = F.rms_norm(x, (16,), m.weight, 1e-5)
        at = torch.arange(past, past + x.shape[1])
        q, k = turned(_heads(m.q(h), 4), at), turned(_heads(m.k(h), 2), at)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, _heads(m.v(h), 2)], 2)
        wide = [each.repeat_interleave(2, 1) for each in (keys, values)]
        x = x + m.out(_joined(F.scaled_dot_product_attention(q, *wide)))
        x = x + m.down(F.silu(m.gate(x)) * m.up(x))
        return torch.cat([x.flatten(), keys.flatten() * 0.1, values.flatten() * 0.1])

    def linear(a: int, b: int) -> Any:
        return nn.Linear(a, b, bias=False)

    made = Wrapped(
        run,
        weight=nn.Parameter(torch.ones(16)),
        q=linear(16, 16),
        k=linear(16, 8),
        v=linear(16, 8),
        out=linear(16, 16),
        gate=linear(16, 24),
        up=linear(16, 24),
        down=linear(24, 16),
    )
    return made, (torch.randn(2, 1, 16), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4))


def t5() -> Made:
    """Encoder and decoder with biases for buckets of distances."""

    def bucket(apart: Any) -> Any:
        size = apart.abs()
        far = 4 + (torch.log(size.clamp(min=1).float() / 4) / 1.4 * 4).long()
        return torch.where(size < 4, size, far.clamp(max=7)) + 8 * (apart > 0).long()

    def attend(m: Any, name: str, x: Any, y: Any, bias: Any) -> Any:
        given = {"q": x, "k": y, "v": y}
        q, k, v = (_heads(m[f"{name}{part}"](z), 2) for part, z in given.items())
        return m[f"{name}o"](_joined((q @ k.transpose(-1, -2) + bias).softmax(-1) @ v))

    def run(m: Any, source: Any, target: Any) -> Any:
        x, y = m.tokens(source), m.tokens(target)
        n, t = x.shape[1], y.shape[1]
        bias = m.bias(bucket(torch.arange(n)[None] - torch.arange(n)[:, None])).permute(2, 0, 1)
        x = x + attend(m.parts, "e", m.norm(x), m.norm(x), bias)
        late = torch.full((t, t), float("-inf"), dtype=y.dtype).triu(1)
        y = y + attend(m.parts, "d", m.norm(y), m.norm(y), late)
        y = y + attend(m.parts, "c", m.norm(y), x, 0.0)
        return m.norm(y + m.down(F.relu(m.up(m.norm(y))))) * 12**-0.5 @ m.tokens.weight.T

    parts = {f"{a}{b}": nn.Linear(12, 12, bias=False) for a in "edc" for b in "qkvo"}
    made = Wrapped(
        run,
        tokens=nn.Embedding(19, 12),
        bias=nn.Embedding(16, 2),
        parts=nn.ModuleDict(parts),
        norm=nn.RMSNorm(12, eps=1e-6),
        up=nn.Linear(12, 20, bias=False),
        down=nn.Linear(20, 12, bias=False),
    )
    return made, (ids(19, 2, 13), ids(19, 2, 5))


def mixtral() -> Made:
    """Two experts of four for each token, weighted."""

    def run(m: Any, x: Any) -> Any:
        flat = x.flatten(0, 1)
        weights, chosen = m.gate(flat).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        shares = torch.zeros(flat.shape[0], 4, dtype=flat.dtype).scatter_add(1, chosen, weights)
        found = torch.zeros_like(flat)
        for n, expert in enumerate(m.experts):
            found = found + shares[:, n, None] * expert(flat)
        return found.view(x.shape)

    experts = [nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 8)) for _ in range(4)]
    return Wrapped(run, gate=nn.Linear(8, 4, bias=False), experts=nn.ModuleList(experts)), (
        torch.randn(2, 5, 8),
    )


def mamba() -> Made:
    """A causal depthwise convolution and a selective scan."""

    def run(m: Any, x: Any) -> Any:
        t = x.shape[1]
        x, z = m.enter(x).chunk(2, -1)
        x = F.silu(m.conv(x.transpose(1, 2))[..., :t].transpose(1, 2))
        step, b, c = m.select(x).split([1, 4, 4], -1)
        step = F.softplus(step + m.bias)
        decay = torch.exp(step[..., None] * -torch.exp(m.log_a))
        drive = step[..., None] * b[:, :, None] * x[..., None]
        state, found = torch.zeros_like(drive[:, 0]), []
        for n in range(t):
            state = decay[:, n] * state + drive[:, n]
            found.append((state * c[:, n, None]).sum(-1))
        return m.leave((torch.stack(found, 1) + m.d * x) * F.silu(z))

    made = Wrapped(
        run,
        enter=nn.Linear(6, 16),
        conv=nn.Conv1d(8, 8, 4, padding=3, groups=8),
        select=nn.Linear(8, 9),
        bias=nn.Parameter(torch.zeros(8)),
        log_a=nn.Parameter(torch.arange(1.0, 5.0).log().repeat(8, 1)),
        d=nn.Parameter(torch.ones(8)),
        leave=nn.Linear(8, 6),
    )
    return made, (torch.randn(2, 7, 6),)


def whisper() -> Made:
    """Two convolutions over time, sinusoids, a block."""

    def run(m: Any, x: Any) -> Any:
        x = F.gelu(m.second(F.gelu(m.first(x)))).transpose(1, 2)
        angle = torch.arange(x.shape[1])[:, None] * torch.exp(-torch.arange(5) * 1.5)
        x = x + torch.cat([angle.sin(), angle.cos()], 1).to(x.dtype)
        return m.norm(m.block(x))

    block = nn.TransformerEncoderLayer(10, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
    made = Wrapped(
        run,
        first=nn.Conv1d(6, 10, 3, padding=1),
        second=nn.Conv1d(10, 10, 3, stride=2, padding=1),
        block=block,
        norm=nn.LayerNorm(10),
    )
    return made, (torch.randn(2, 6, 15),)


def lstm_layers() -> Made:
    """The library's LSTM of two layers in both directions, and a head."""

    def run(m: Any, x: Any) -> Any:
        found, (h, _) = m.lstm(x)
        return m.head(found.mean(1) + torch.cat([h[-2], h[-1]], -1))

    lstm = nn.LSTM(5, 6, num_layers=2, bidirectional=True, batch_first=True)
    return Wrapped(run, lstm=lstm, head=nn.Linear(12, 3)), (torch.randn(3, 6, 5),)


def seq2seq() -> Made:
    """A GRU that reads, one that writes, and what it attends to in between."""

    def run(m: Any, source: Any, target: Any) -> Any:
        read, state = m.reader(m.tokens(source))
        state, found = state[0], []
        for n in range(target.shape[1]):
            energy = m.score(torch.tanh(m.a(read) + m.b(state)[:, None]))
            seen = (energy.softmax(1) * read).sum(1)
            state = m.writer(torch.cat([m.tokens(target[:, n]), seen], -1), state)
            found.append(m.head(state))
        return torch.stack(found, 1)

    made = Wrapped(
        run,
        tokens=nn.Embedding(13, 6),
        reader=nn.GRU(6, 8, batch_first=True),
        writer=nn.GRUCell(14, 8),
        a=nn.Linear(8, 8),
        b=nn.Linear(8, 8),
        score=nn.Linear(8, 1),
        head=nn.Linear(8, 13),
    )
    return made, (ids(13, 2, 7), ids(13, 2, 3))


def temporal() -> Made:
    """WaveNet: dilated causal convolutions with gates, skips added up."""

    def run(m: Any, x: Any) -> Any:
        x, skips = m.enter(x), 0
        for n, layer in enumerate(m.layers):
            found = layer(F.pad(x, (2**n, 0)))
            gate, value = found.chunk(2, 1)
            y = torch.tanh(value) * torch.sigmoid(gate)
            x, skips = x + y, skips + y
        return m.leave(F.relu(skips))

    layers = [nn.Conv1d(6, 12, 2, dilation=2**n) for n in range(3)]
    made = Wrapped(
        run, enter=nn.Conv1d(1, 6, 1), layers=nn.ModuleList(layers), leave=nn.Conv1d(6, 5, 1)
    )
    return made, (torch.randn(2, 1, 19),)


def graph_attention() -> Made:
    """Attention along the edges of a graph: softmax by scatter."""

    def run(m: Any, x: Any, edges: Any) -> Any:
        source, target = edges[0], edges[1]
        h = m.linear(x)
        score = F.leaky_relu((h[source] * m.a).sum(-1) + (h[target] * m.b).sum(-1), 0.2)
        highest = torch.full((x.shape[0],), -1e4, dtype=x.dtype)
        highest = highest.scatter_reduce(0, target, score.detach(), "amax")
        weight = torch.exp(score - highest[target])
        total = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add(0, target, weight)
        share = weight / (total[target] + 1e-6)
        return F.elu(torch.zeros_like(h).index_add(0, target, h[source] * share[:, None]))

    made = Wrapped(
        run,
        linear=nn.Linear(4, 6),
        a=nn.Parameter(torch.randn(6) * 0.3),
        b=nn.Parameter(torch.randn(6) * 0.3),
    )
    return made, (torch.randn(7, 4), ids(7, 2, 15))


def two_towers() -> Made:
    """Bags of embeddings on both sides, a loss over all pairs of the batch."""

    def run(m: Any, users: Any, items: Any) -> Any:
        u = F.normalize(m.users(users).mean(1), dim=-1)
        v = F.normalize(m.items(items).sum(1), dim=-1)
        return F.cross_entropy(u @ v.T / 0.1, torch.arange(u.shape[0]))

    made = Wrapped(run, users=nn.Embedding(29, 6), items=nn.Embedding(17, 6))
    return made, (ids(29, 5, 4), ids(17, 5, 3))


def factorisation() -> Made:
    """DeepFM: first and second order of sparse fields, and a network over them."""

    def run(m: Any, x: Any) -> Any:
        rows = m.table(x)
        pairs = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(-1, keepdim=True)
        return torch.sigmoid(m.first(x).sum(1) + pairs + m.deep(rows.flatten(1)))

    deep = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 1))
    made = Wrapped(run, table=nn.Embedding(23, 5), first=nn.Embedding(23, 1), deep=deep)
    return made, (ids(23, 6, 4),)


def variational() -> Made:
    """An autoencoder that draws its code, with its loss."""

    def run(m: Any, x: Any) -> Any:
        middle, spread = m.encode(x).chunk(2, -1)
        code = middle + torch.randn_like(middle) * torch.exp(0.5 * spread)
        kept = F.binary_cross_entropy_with_logits(m.decode(code), x.sigmoid())
        return kept - 0.5 * (1 + spread - middle.square() - spread.exp()).mean()

    encode = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 6))
    decode = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 10))
    return Wrapped(run, encode=encode, decode=decode), (torch.randn(5, 10),)


def capsules() -> Made:
    """Routing by agreement, three rounds."""

    def run(m: Any, x: Any) -> Any:
        votes = torch.einsum("bni,nmij->bnmj", x, m.weight)
        logits = torch.zeros_like(votes[..., 0])
        found = votes
        for _ in range(3):
            found = (logits.softmax(2)[..., None] * votes).sum(1)
            size = found.square().sum(-1, keepdim=True)
            found = found * size / ((1 + size) * (size + 1e-6).sqrt())
            logits = logits + (votes * found[:, None]).sum(-1)
        return found.norm(dim=-1)

    return Wrapped(run, weight=nn.Parameter(torch.randn(6, 3, 4, 5) * 0.3)), (torch.randn(2, 6, 4),)


def siamese() -> Made:
    """One network twice, and the distance of what it says."""

    def run(m: Any, a: Any, b: Any, c: Any) -> Any:
        return F.triplet_margin_loss(*(m.net(each) for each in (a, b, c)), margin=0.5)

    net = nn.Sequential(nn.Linear(7, 9), nn.BatchNorm1d(9), nn.PReLU(9), nn.Linear(9, 4))
    return Wrapped(run, net=net), tuple(torch.randn(3, 5, 7))


def linear_attention() -> Made:
    """Attention without a softmax: running sums of keys by values."""

    def run(m: Any, x: Any) -> Any:
        q, k, v = m.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = torch.cumsum(k[..., None] * v[..., None, :], 1)
        scale = (q * torch.cumsum(k, 1)).sum(-1, keepdim=True)
        return m.out((q[..., None] * sums).sum(-2) / scale)

    return Wrapped(run, qkv=nn.Linear(6, 18), out=nn.Linear(6, 6)), (torch.randn(2, 9, 6),)


def cross_attention() -> Made:
    """The library's decoder layer: causal, and what it reads from elsewhere."""

    def run(m: Any, x: Any, memory: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return m.layer(x, memory, tgt_mask=mask)

    layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    return Wrapped(run, layer=layer), (torch.randn(2, 5, 8), torch.randn(2, 7, 8))


SEQUENCES: dict[str, Callable[[], Made]] = {
    each.__name__: each
    for each in (
        gpt2,
        bert,
        llama_cached,
        t5,
        mixtral,
        mamba,
        whisper,
        lstm_layers,
        seq2seq,
        temporal,
        graph_attention,
        two_towers,
        factorisation,
        variational,
        capsules,
        siamese,
        linear_attention,
        cross_attention,
    )
}
"""Each name with a function that makes the model and its arguments."""
