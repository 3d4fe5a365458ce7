"""Problems of models: losses, attention, recurrence, folds along an axis, small networks.

Each is a text of what is given and one of what is computed: see `written_problems`.
"""

from __future__ import annotations

Problems = dict[str, tuple[str, str]]


LOSSES: Problems = {
    "cross entropy weighted smoothed": (
        "x = r(5, 4); t = i(4, 5); w = c(4).abs()",
        "F.cross_entropy(x, t, weight=w, label_smoothing=0.1)",
    ),
    "cross entropy of images ignoring": (
        "x = r(2, 3, 4, 2); t = i(3, 2, 4, 2)",
        "F.cross_entropy(x, t, ignore_index=1), F.cross_entropy(x, t, reduction='none').sum((1,"
        " 2))",
    ),
    "cross entropy of probabilities": (
        "x = r(3, 4); t = c(3, 4).softmax(1)",
        "F.cross_entropy(x, t, reduction='sum')",
    ),
    "negative log likelihood": ("x = r(4, 3); t = i(3, 4)", "F.nll_loss(x.log_softmax(1), t)"),
    "binary with logits": (
        "x = r(3, 4); t = b(3, 4).float(); w = c(4).abs()",
        "F.binary_cross_entropy_with_logits(x, t, pos_weight=w)",
    ),
    "binary of probabilities": (
        "x = r(5); t = b(5).float()",
        "F.binary_cross_entropy(x.sigmoid(), t)",
    ),
    "smooth l1 and huber": (
        "x = r(3, 4); y = r(3, 4)",
        "F.smooth_l1_loss(x, y, beta=0.5) + F.huber_loss(x, y, delta=0.3)",
    ),
    "divergences": (
        "x = r(3, 4); y = c(3, 4)",
        "F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True, reduction='batchmean'),"
        " F.kl_div(x.log_softmax(1), y.softmax(1), reduction='none').sum(1)",
    ),
    "hinges": (
        "x = r(4, 3); y = r(4, 3); t = torch.tensor([1.0, -1, 1, -1])",
        "F.cosine_embedding_loss(x, y, t, 0.1) + F.hinge_embedding_loss(x[:, 0],"
        " t) + F.margin_ranking_loss(x[:, 0], y[:, 0], t, 0.2)",
    ),
    "triplets": (
        "a = r(3, 4); p = r(3, 4); n = r(3, 4)",
        "F.triplet_margin_loss(a, p, n, margin=0.7, swap=True)",
    ),
    "poisson and gaussian": (
        "x = r(6); t = c(6).abs(); v = r(6)",
        "F.poisson_nll_loss(x, t, full=True) + F.gaussian_nll_loss(x, t, F.softplus(v))",
    ),
    "multi margin": (
        "x = r(4, 5); t = i(5, 4)",
        "F.multi_margin_loss(x, t), F.multilabel_soft_margin_loss(x, F.one_hot(t, 5).float())",
    ),
    "dice": (
        "x = r(2, 1, 5, 4); t = b(2, 1, 5, 4)",
        "p = x.sigmoid(); 1 - 2 * (p * t).sum((1, 2, 3)) / (p.sum((1, 2, 3)) + t.sum((1, 2,"
        " 3)) + 1)",
    ),
    "focal": (
        "x = r(6, 3); t = i(3, 6)",
        "p = x.log_softmax(-1).gather(1, t[:, None]).squeeze(1); (-(1 - p.exp()) ** 2 * p).mean()",
    ),
    "contrastive": (
        "x = r(4, 5); y = r(4, 5)",
        "s = F.normalize(x) @ F.normalize(y).T / 0.1;"
        " F.cross_entropy(s, torch.arange(4)) + F.cross_entropy(s.T, torch.arange(4))",
    ),
    "connectionist": (
        "x = r(6, 2, 4); t = i(3, 2, 3) + 1",
        "F.ctc_loss(x.log_softmax(2), t, torch.tensor([6, 5]), torch.tensor([3, 2]))",
    ),
    "log likelihood of mixtures": (
        "x = r(5, 1); m = r(3); s = r(3)",
        "torch.logsumexp(-0.5 * ((x - m) / s.exp()) ** 2 - s + s.log_softmax(0), 1).mean()",
    ),
    "variational": (
        "m = r(3, 4); v = r(3, 4); e = c(3, 4)",
        "z = m + e * (v / 2).exp(); z, -0.5 * (1 + v - m**2 - v.exp()).sum(1).mean()",
    ),
    "total variation": (
        "x = r(2, 3, 4, 5)",
        "(x[..., 1:] - x[..., :-1]).abs().mean() + (x[:, :, 1:] - x[:, :, :-1]).pow(2).sum()",
    ),
    "mean error of masked": (
        "x = r(3, 5); y = r(3, 5); m = b(3, 5)",
        "((x - y) ** 2 * m).sum() / m.sum().clamp(min=1)",
    ),
}

ATTENTION: Problems = {
    "causal": (
        "q = r(2, 2, 5, 4); k = r(2, 2, 5, 4); v = r(2, 2, 5, 3)",
        "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    ),
    "masked by bools": (
        "q = r(2, 3, 4); k = r(2, 5, 4); v = r(2, 5, 4); m = b(3, 5) | (torch.arange(5) == 0)",
        "F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.3)",
    ),
    "grouped queries": (
        "q = r(1, 4, 3, 4); k = r(1, 2, 3, 4); v = r(1, 2, 3, 4)",
        "F.scaled_dot_product_attention(q, k, v, enable_gqa=True) + 1",
    ),
    "by hand with biases of places": (
        "x = r(2, 6, 8); m = nn.Linear(8, 24, bias=False); t = r(11, 2)",
        """
        q, k, v = (part.view(2, 6, 2, 4).transpose(1, 2) for part in m(x).chunk(3, -1))
        gap = torch.arange(6)[:, None] - torch.arange(6) + 5
        scores = q @ k.mT * 0.5 + t[gap].permute(2, 0, 1)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        """,
    ),
    "slopes": (
        "q = r(2, 2, 4, 3); k = r(2, 2, 4, 3); v = r(2, 2, 4, 3); s = torch.tensor([0.5, 0.25])",
        "g = torch.arange(4); d = (g[None] - g[:, None]).clamp(max=0);"
        " ((q @ k.mT + s[:, None, None] * d).masked_fill(torch.ones(4, 4).triu(1).bool(),"
        " -1e9)).softmax(-1) @ v",
    ),
    "rotary": (
        "x = r(2, 5, 2, 6)",
        """
        f = 10000.0 ** (-torch.arange(0, 6, 2) / 6)
        a = torch.arange(5)[:, None] * f
        c, s = a.cos()[:, None], a.sin()[:, None]
        e, o = x[..., ::2], x[..., 1::2]
        return torch.stack((e * c - o * s, e * s + o * c), -1).flatten(-2)
        """,
    ),
    "linear attention": (
        "q = r(2, 4, 3); k = r(2, 4, 3); v = r(2, 4, 2)",
        "f, g = F.elu(q) + 1, F.elu(k) + 1; n = (f * g.cumsum(1)).sum(-1, keepdim=True);"
        " torch.einsum('btd,btde->bte', f, (g[..., None] * v[:, :, None]).cumsum(1)) / n",
    ),
    "window": (
        "q = r(1, 8, 4); k = r(1, 8, 4); v = r(1, 8, 4)",
        "i = torch.arange(8); m = (i[:, None] - i).abs() > 2;"
        " ((q @ k.mT).masked_fill(m, float('-inf')) / 2).softmax(-1) @ v",
    ),
    "multi head module": (
        "x = r(2, 5, 6); m = nn.MultiheadAttention(6, 3, batch_first=True)",
        "m(x, x, x, need_weights=True)",
    ),
    "encoder layer": (
        "x = r(2, 4, 6); m = nn.TransformerEncoderLayer(6, 2, 9, dropout=0.0, batch_first=True,"
        " norm_first=True)",
        "m(x)",
    ),
    "decoder layer": (
        "x = r(3, 2, 4); y = r(5, 2, 4); m = nn.TransformerDecoderLayer(4, 2, 7, dropout=0.0)",
        "m(x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(3))",
    ),
    "sparse by top": (
        "q = r(3, 4); k = r(6, 4)",
        "s = q @ k.T; t = s.topk(2, -1)[0][:, -1:];"
        " s.masked_fill(s < t, float('-inf')).softmax(-1)",
    ),
}

RECURRENT: Problems = {
    "an rnn cell by hand": (
        "x = r(4, 2, 3); a = nn.Linear(3, 5); b = nn.Linear(5, 5)",
        """
        h = torch.zeros(2, 5)
        for t in x:
            h = torch.tanh(a(t) + b(h))
        return h
        """,
    ),
    "lstm cell in a loop": (
        "x = r(3, 2, 4); m = nn.LSTMCell(4, 5)",
        """
        state, out = None, []
        for t in range(3):
            state = m(x[t], state)
            out.append(state[0])
        return torch.stack(out), state
        """,
    ),
    "gru of two layers": (
        "x = r(4, 2, 3); m = nn.GRU(3, 4, 2, bidirectional=True)",
        "m(x)[0].mean(0)",
    ),
    "lstm projected": (
        "x = r(2, 5, 3); m = nn.LSTM(3, 6, proj_size=2, batch_first=True)",
        "y, (h, c) = m(x); y.sum(1), h, c",
    ),
    "minimal gated unit": (
        "x = r(2, 4, 3); f = nn.Linear(6, 3); g = nn.Linear(6, 3)",
        """
        h = x.new_zeros(2, 3)
        for t in range(x.size(1)):
            z = f(torch.cat([x[:, t], h], 1)).sigmoid()
            h = (1 - z) * h + z * g(torch.cat([x[:, t], z * h], 1)).tanh()
        return h
        """,
    ),
    "selective scan": (
        "x = r(2, 5, 3); d = r(2, 5, 3); a = r(3, 2); b = r(2, 5, 2); c = r(2, 5, 2)",
        """
        h, out = torch.zeros(2, 3, 2), []
        d = F.softplus(d)
        for t in range(5):
            h = (d[:, t, :, None] * -a.exp()).exp() * h + (d * x)[:, t, :, None] * b[:, t, None]
            out.append((h * c[:, t, None]).sum(-1))
        return torch.stack(out, 1)
        """,
    ),
    "exponential averages": (
        "x = r(3, 7); a = r()",
        "w = torch.sigmoid(a) ** torch.arange(7).flip(0); (x * w).cumsum(1) / w.cumsum(0)",
    ),
    "newton steps": (
        "x = r(5).detach().abs().add(1).requires_grad_()",
        """
        y = x
        for _ in range(4):
            y = (y + x / y) / 2
        return y
        """,
    ),
}

FOLDS: Problems = {
    "cumulative sums of all kinds": (
        "x = r(3, 6)",
        "x.cumsum(0), x.flip(1).cumsum(1).flip(1), torch.cat([torch.zeros(3, 1), x[:,"
        " :-1].cumsum(1)], 1)",
    ),
    "cumulative products": ("x = r(4, 5)", "x.cumprod(1), torch.cumprod(x, 0).sum()"),
    "cumulative extremes": ("x = r(3, 7)", "v, k = x.cummax(1); v + x.cummin(0)[0], k"),
    "cumulative logarithms": (
        "x = r(3, 6)",
        "x.logcumsumexp(1), torch.cumulative_trapezoid(x, dim=1)",
    ),
    "masked cumulative": ("x = r(3, 6); m = b(3, 6)", "torch.cumsum(x * m, dim=1)"),
    "differences": (
        "x = r(3, 6)",
        "x.diff(n=2), torch.gradient(x, dim=1)[0], torch.trapezoid(x, dx=0.5)",
    ),
    "extremes with places": (
        "x = r(4, 5)",
        "x.max(1), x.min(0, keepdim=True), x.argmax(), x.amax((0, 1)), torch.max(x, x.flip(0))",
    ),
    "products and counts": (
        "x = r(3, 4)",
        "x.prod(0), x.prod(), (x > 0).sum(1), x.count_nonzero(), x.all(0)",
    ),
    "top one and two": (
        "x = r(3, 6)",
        "x.topk(1)[0].squeeze(-1) + x.kthvalue(2)[0], x.topk(2, largest=False)[1]",
    ),
    "quantiles": (
        "x = c(3, 7)",
        "x.quantile(0.3, dim=1), x.median(), x.nanmedian(dim=1)[0], x.mode(1)[0]",
    ),
    "moments": (
        "x = r(4, 6)",
        "z = (x - x.mean(1, True)) / x.std(1, keepdim=True); (z**3).mean(1), (z**4).mean(1) - 3",
    ),
    "correlation": ("x = r(4, 7)", "torch.corrcoef(x), torch.cov(x, correction=0)"),
    "means of all kinds": (
        "x = r(3, 4).detach().abs().add(0.2).requires_grad_()",
        "x.log().mean(0).exp(), 1 / (1 / x).mean(1), x.nanmean(), x.sum(dtype=torch.float64)",
    ),
    "entropy": (
        "x = r(3, 5)",
        "p = x.softmax(1); -(p * p.log()).sum(1), torch.special.entr(p).sum()",
    ),
    "log softmax by hand": (
        "x = r(3, 5)",
        "m = x.max(1, keepdim=True).values.detach();"
        " (x - m) - (x - m).exp().sum(1, keepdim=True).log()",
    ),
    "special functions": (
        "x = r(5)",
        "torch.special.expit(x) + torch.sinc(x) + torch.special.log1p(x.abs()),"
        " torch.digamma(x.abs() + 1), torch.special.i0(x), torch.special.ndtri(x.sigmoid()),"
        " torch.hypot(x, x + 1), torch.atan2(x, x + 2), torch.logaddexp(x, -x),"
        " torch.xlogy(x.abs(), x.abs() + 1)",
    ),
    "lerp and friends": (
        "x = r(3, 4); y = r(3, 4); w = r(4)",
        "torch.lerp(x, y, w.sigmoid()), torch.addcmul(x, y, w, value=0.5), torch.addcdiv(x, y,"
        " w.exp()), torch.copysign(x, y), torch.heaviside(x.detach(), y.detach()),"
        " x.clamp(min=y - 1, max=y + 1)",
    ),
}

NETWORKS: Problems = {
    "a graph convolution": (
        "x = r(6, 3); e = i(6, 2, 9); m = nn.Linear(3, 4)",
        """
        d = torch.zeros(6).scatter_add(0, e[1], torch.ones(9)) + 1
        n = d.rsqrt()
        h = m(x)
        sent = h[e[0]] * (n[e[0]] * n[e[1]])[:, None]
        return torch.zeros(6, 4).index_add(0, e[1], sent) + h / d[:, None]
        """,
    ),
    "attention over edges": (
        "x = r(5, 4); e = i(5, 2, 8); a = r(8)",
        """
        s = F.leaky_relu((torch.cat([x[e[0]], x[e[1]]], 1) * a).sum(1), 0.2)
        top = torch.full((5,), -1e9).scatter_reduce(0, e[1], s, 'amax')
        w = (s - top[e[1]]).exp()
        w = w / torch.zeros(5).index_add(0, e[1], w)[e[1]]
        return torch.zeros(5, 4).index_add(0, e[1], w[:, None] * x[e[0]])
        """,
    ),
    "experts by all": (
        "x = r(5, 4); g = nn.Linear(4, 3); w = r(3, 4, 4)",
        "p = g(x).softmax(-1); v, k = p.topk(2, -1); m = torch.zeros_like(p).scatter(1, k, v);"
        " torch.einsum('te,eij,ti->tj', m / m.sum(1, keepdim=True), w, x)",
    ),
    "factorisation machine": (
        "k = i(7, 4, 3); m = nn.Embedding(7, 5); l = nn.Embedding(7, 1)",
        "e = m(k); (l(k).sum((1, 2)) + 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(1)).sigmoid()",
    ),
    "cross layers": (
        "x = r(3, 5); w = nn.Linear(5, 5); u = nn.Linear(5, 5)",
        "y = x * w(x) + x; x * u(y) + y",
    ),
    "mixer": (
        "x = r(2, 4, 6); n = nn.LayerNorm(6); t = nn.Linear(4, 4); c = nn.Linear(6, 6)",
        "y = x + t(n(x).transpose(1, 2)).transpose(1, 2).relu(); y + F.gelu(c(n(y)))",
    ),
    "hyper network": (
        "x = r(3, 4); z = r(2); h = nn.Linear(2, 24)",
        "w = h(z); F.linear(x, w[:20].view(5, 4)[:4], w[20:]).tanh()",
    ),
    "neural field": (
        "p = r(6, 2)",
        "f = 2.0 ** torch.arange(3) * torch.pi; a = (p[..., None] * f).flatten(1);"
        " torch.cat([a.sin(), a.cos(), p], -1)",
    ),
    "volume rendering": (
        "s = r(3, 6); c = r(3, 6, 3)",
        "a = 1 - (-F.softplus(s) * 0.2).exp();"
        " t = torch.cumprod(torch.cat([torch.ones(3, 1), 1 - a + 1e-7], 1), 1)[:, :-1];"
        " ((a * t)[..., None] * c.sigmoid()).sum(1)",
    ),
    "capsules squashed": (
        "x = r(2, 5, 3)",
        "n = x.pow(2).sum(-1, keepdim=True); n / (1 + n) * x / (n.sqrt() + 1e-8)",
    ),
    "routing": (
        "u = r(2, 4, 3, 5)",
        """
        b = torch.zeros(2, 4, 3)
        for _ in range(2):
            v = (b.softmax(2)[..., None] * u).sum(1)
            b = b + (u * v[:, None]).sum(-1)
        return v
        """,
    ),
    "quantised straight through": (
        "x = r(5, 4)",
        "s = x.abs().amax(1, keepdim=True) / 7; q = (x / s).round().clamp(-8, 7) * s;"
        " x + (q - x).detach()",
    ),
    "codebook": (
        "x = r(5, 3); c = r(4, 3)",
        "d = (x[:, None] - c).pow(2).sum(-1); k = d.argmin(1); q = c[k];"
        " x + (q - x).detach(), F.mse_loss(q, x.detach()), k",
    ),
    "sinkhorn": (
        "x = r(4, 4)",
        """
        y = x
        for _ in range(3):
            y = y - y.logsumexp(0, keepdim=True)
            y = y - y.logsumexp(1, keepdim=True)
        return y.exp()
        """,
    ),
    "adam step": (
        "p = c(5); g = c(5); m = c(5); v = c(5).abs()",
        "m.lerp_(g, 0.1); v.mul_(0.99).addcmul_(g, g, value=0.01);"
        " p.addcdiv_(m, v.sqrt().add_(1e-8), value=-0.1); p",
    ),
    "penalised gradient": ("x = r(3, 4)", "y = (x.sin() * x).sum(); y + x.square().mean().sqrt()"),
    "by torch func": (
        "x = c(4, 3)",
        "torch.func.vmap(lambda t: t.softmax(0) * t.sum())(x),"
        " torch.func.grad(lambda t: (t**3).sum())(x)",
    ),
    "checkpointed": (
        "x = r(3, 4); m = nn.Linear(4, 4)",
        "torch.utils.checkpoint.checkpoint(lambda t: m(t).tanh() * t, x, use_reentrant=False)",
    ),
    "a sequential of many": (
        "x = r(2, 1, 8, 8); m = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.SiLU(),"
        " nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5), nn.Dropout(0.0), nn.LogSoftmax(1))",
        "m(x)",
    ),
    "shared weights": ("x = r(3, 4); m = nn.Linear(4, 4)", "m(m(m(x).relu()).relu()) @ m.weight"),
    "finite differences": (
        "u = r(5, 6)",
        "u + 0.1 * (torch.roll(u, 1, 0) + torch.roll(u, -1, 0) + torch.roll(u, 1,"
        " 1) + torch.roll(u, -1, 1) - 4 * u)",
    ),
    "a game of life": (
        "x = b(6, 6)",
        "n = sum(torch.roll(x.int(), (a, b), (0, 1)) for a in (-1, 0, 1) for b in (-1, 0,"
        " 1)) - x.int(); (n == 3) | (x & (n == 2))",
    ),
}

MODELS: Problems = {**LOSSES, **ATTENTION, **RECURRENT, **FOLDS, **NETWORKS}
