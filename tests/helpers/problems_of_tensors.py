"""Problems of tensors: indices, views, changes in place, einsum, dtypes, empty and single elements.

Each is a text of what is given and one of what is computed: see `written_problems`.
"""

from __future__ import annotations

Problems = dict[str, tuple[str, str]]


PRODUCTS: Problems = {
    "einsum spelt oddly": (
        "x = r(3, 4); y = r(4, 5); z = r(5)",
        "torch.einsum(' iJ , Jk,k->i ', x, y, z)",
    ),
    "einsum implicit": ("x = r(3, 4); y = r(2, 4)", "torch.einsum('ba,ca', x, y)"),
    "einsum with dots": (
        "x = r(2, 3, 4, 5); y = r(3, 5, 6)",
        "torch.einsum('...ij,...jk->...ki', x, y)",
    ),
    "einsum of a diagonal": (
        "x = r(4, 4, 3)",
        "torch.einsum('iij->ji', x), torch.einsum('iij->', x)",
    ),
    "einsum outer and sum": (
        "x = r(3); y = r(4); z = r(2, 3)",
        "torch.einsum('i,j->ij', x, y), torch.einsum('bi,j->bj', z, y)",
    ),
    "einsum by numbers": ("x = r(3, 4); y = r(4, 2)", "torch.einsum(x, [0, 7], y, [7, 2], [2, 0])"),
    "bilinear form": ("x = r(3, 4); w = r(5, 4, 6); y = r(3, 6)", "F.bilinear(x, y, w) + 1"),
    "tall and skinny": ("x = r(33, 2); y = r(2, 31)", "(x @ y).relu() @ y.T"),
    "symmetric": ("x = r(6, 6)", "s = (x + x.T) / 2; s @ s"),
    "triangles multiplied": ("x = r(5, 5); y = r(5, 5)", "torch.tril(torch.tril(x) @ y.tril())"),
    "diagonal times matrix": (
        "x = r(5); y = r(5, 4)",
        "torch.diag(x) @ y + x.diag_embed(1)[:-1, 1:] @ y",
    ),
    "vector products": (
        "x = r(4); y = r(4); z = r(3, 4)",
        "torch.dot(x, y) + z.mv(x).sum(), torch.outer(x, y), torch.inner(z, x)",
    ),
    "batches broadcast": (
        "x = r(2, 1, 3, 4); y = r(5, 4, 2)",
        "x @ y, torch.matmul(x[:, 0], y[0])",
    ),
    "baddbmm with factors": (
        "x = r(2, 3, 5); a = r(2, 3, 4); b = r(2, 4, 5)",
        "torch.baddbmm(x, a, b, beta=0.5, alpha=-2).softmax(2)",
    ),
    "addmm of integers": (
        "x = i(5, 3, 4); a = i(5, 3, 2); b = i(5, 2, 4)",
        "torch.addmm(x, a, b) - x",
    ),
    "kron and cross": ("x = r(2, 3); y = r(2, 3)", "torch.kron(x, y), torch.linalg.cross(x, y)"),
    "tensordot over two": (
        "x = r(3, 4, 5); y = r(5, 4, 2)",
        "torch.tensordot(x, y, ([1, 2], [1, 0]))",
    ),
    "powers of a matrix": ("x = c(4, 4)", "torch.linalg.matrix_power(x, 3).trace()"),
    "distances": (
        "x = r(4, 3); y = r(5, 3)",
        "(x[:, None] - y[None]).square().sum(-1).clamp_min(1e-6).sqrt(), torch.cdist(x, y, p=1.0)",
    ),
    "matrix times empty": ("x = r(3, 0); y = r(0, 4)", "x @ y + 1"),
}

INDICES: Problems = {
    "take rows": ("x = r(5, 4); k = i(5, 7)", "x[k].cumsum(0)"),
    "take pairs": ("x = r(4, 5); k = i(4, 3); l = i(5, 3)", "x[k, l] * x[k][:, l].diagonal()"),
    "take between slices": ("x = r(3, 5, 4); k = i(5, 2, 2)", "x[:, k, 1:].sum((1, 2))"),
    "take from behind": ("x = r(5, 3)", "x[[-1, 0, -3]] + x[-3:]"),
    "take by mask of fixed size": (
        "x = r(4, 5); m = b(4, 5)",
        "torch.where(m, x, -x.abs()).amax(1)",
    ),
    "masked select": ("x = r(3, 4); m = b(3, 4)", "x[m].exp().sum() + x.masked_select(~m).sum()"),
    "masked fill of a row": (
        "x = r(3, 4); m = b(4)",
        "x.masked_fill(m, float('-inf')).softmax(0).nan_to_num()",
    ),
    "masked scatter": ("x = c(3, 4); m = b(3, 4); y = c(12)", "x.masked_scatter(m, y) * 2"),
    "gather along each dimension": (
        "x = r(4, 5); k = i(4, 3, 5); l = i(5, 4, 2)",
        "x.gather(0, k).sum(), torch.take_along_dim(x, l, 1)",
    ),
    "scatter a value and a source": (
        "x = r(4, 5); k = i(5, 4, 1); s = r(4, 1)",
        "x.scatter(1, k, 0.25) + x.scatter(1, k, s)",
    ),
    "scatter add": ("x = r(3, 5); k = i(3, 4, 5); s = r(4, 5)", "x.scatter_add(0, k, s).tanh()"),
    "scatter reduced": (
        "x = r(4); k = i(4, 9); s = r(9)",
        "[x.scatter_reduce(0, k, s, m, include_self=f) for m in ('sum', 'mean', 'amax',"
        " 'amin') for f in (True, False)]",
    ),
    "index add copy fill": (
        "x = r(5, 3); k = p(5)[:3]; s = r(3, 3)",
        "x.index_add(0, k, s, alpha=2), x.index_copy(0, k, s), x.index_fill(1, k[:1] % 3, 1.5)",
    ),
    "index reduce": ("x = c(5, 3); k = i(5, 4); s = c(4, 3)", "x.index_reduce(0, k, s, 'amax')"),
    "put accumulated": (
        "x = r(4, 5); k = i(4, 6); l = i(5, 6); v = r(6)",
        "x.index_put((k, l), v, accumulate=True)",
    ),
    "histogram by one hot": (
        "k = i(6, 11)",
        "F.one_hot(k, 7).sum(0), torch.bincount(k, minlength=7)",
    ),
    "mean of segments": (
        "x = r(9, 3); k = i(4, 9)",
        "n = torch.zeros(4).index_add(0, k, torch.ones(9)).clamp(min=1);"
        " torch.zeros(4, 3).index_add(0, k, x) / n[:, None]",
    ),
    "embedding with padding": (
        "k = i(7, 3, 4); m = nn.Embedding(7, 5, padding_idx=2)",
        "m(k).sum(1) + F.embedding(k[:, 0], m.weight)",
    ),
    "embedding of few": ("k = i(3, 0); m = nn.Embedding(3, 4)", "m(k).sum(0)"),
    "embedding bags with offsets": (
        "k = i(9, 11); o = torch.tensor([0, 3, 3, 7]); m = nn.EmbeddingBag(9, 4, mode='mean')",
        "m(k, o) * 3",
    ),
    "embedding bags weighted": (
        "k = i(6, 3, 4); s = r(3, 4); m = nn.EmbeddingBag(6, 5, mode='sum', padding_idx=1)",
        "m(k, per_sample_weights=s).relu()",
    ),
    "looked up twice": ("x = r(6, 2); k = i(6, 5)", "y = x[k]; y[(k % 5)] - y"),
    "select and narrow": (
        "x = r(3, 6, 4)",
        "x.select(1, -2) + x.narrow(1, 2, 3).sum(1) * x.index_select(1, torch.tensor([0,"
        " 5])).prod(1)",
    ),
    "sorted and ranked": (
        "x = r(3, 6)",
        "v, k = x.sort(-1, descending=True); v * torch.arange(6), k.argsort(-1)",
    ),
    "searched": (
        "x = c(8); e = torch.linspace(-2, 2, 7)",
        "torch.bucketize(x, e), torch.searchsorted(e, x, right=True)",
    ),
    "triangle indices": (
        "x = r(5, 5)",
        "k = torch.triu_indices(5, 5, 1); x[k[0], k[1]].sum() * x.triu(2).sum()",
    ),
}

VIEWS: Problems = {
    "views returned": ("x = r(4, 6)", "x.t(), x[1:3], x.view(2, 12), x.diagonal(), x"),
    "views of a result": (
        "x = r(4, 6)",
        "y = x * 2; y.t(), y[::2], y, y.unsqueeze(0).expand(3, 4, 6)",
    ),
    "the same result twice": ("x = r(3, 2)", "y = x.sin(); y, y, {'again': y}"),
    "chunks in another order": (
        "x = r(2, 9)",
        "a, b, c = x.chunk(3, 1); torch.cat([c, a * b, b, a], -1)",
    ),
    "split unevenly": (
        "x = r(7, 2)",
        "a, b, c = torch.split(x, [1, 4, 2]); (a + b).sum(0), c.mean(), b",
    ),
    "unbound and stacked": (
        "x = r(3, 4, 2)",
        "torch.stack([t.relu() + n for n, t in enumerate(x.unbind(1))], -1)",
    ),
    "flip roll rotate": (
        "x = r(3, 4)",
        "x.flip(0, 1) + torch.roll(x, (1, -2), (0, 1)), torch.rot90(x)",
    ),
    "repeat and tile": (
        "x = r(2, 3)",
        "x.repeat(2, 1, 2).sum(0) + x.tile((2, 2))[:2], x.repeat_interleave(2, 1)",
    ),
    "interleaved by counts": ("x = r(3, 2)", "x.repeat_interleave(torch.tensor([1, 0, 3]), 0)"),
    "meshgrid": (
        "x = r(3); y = r(4)",
        "a, b = torch.meshgrid(x, y, indexing='ij'); a * b + a.sin()",
    ),
    "broadcast over new axes": (
        "x = r(3, 1, 4); y = r(5, 1)",
        "(x - y).movedim(0, -1).contiguous().view(-1, 3).amax(0)",
    ),
    "strided input": ("x = r(6, 8)[::2, 1::3]", "x.mul(2).softmax(0)"),
    "transposed input": (
        "x = r(5, 4).detach().t().requires_grad_()",
        "x.sum(0) * x, x.reshape(-1)",
    ),
    "expanded input": ("x = c(1, 5).expand(4, 5)", "x.cumsum(0) + x"),
    "offset input": ("x = c(20)[3:15].view(3, 4)", "x / x.norm(dim=1, keepdim=True)"),
    "as strided": ("x = r(12)", "x.as_strided((3, 4), (2, 1), 1) + 1"),
    "complex parts by views": (
        "x = r(3, 4, 2)",
        "y = torch.view_as_complex(x); torch.view_as_real(y * y.conj())",
    ),
    "bits as another type": (
        "x = c(3, 4)",
        "(x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32)",
    ),
    "block diagonal": ("x = r(2, 3); y = r(1, 2)", "torch.block_diag(x, y, x * 2)"),
    "space to depth and back": (
        "x = r(2, 3, 4, 6)",
        "y = x.view(2, 3, 2, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).flatten(1, 3);"
        " y.tanh(), y.shape[1]",
    ),
    "vander and powers": ("x = r(4)", "torch.vander(x.detach(), 3), x[:, None] ** torch.arange(3)"),
    "tokens shifted": (
        "x = r(2, 5, 3)",
        "torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1) - x",
    ),
    "unravelled": (
        "x = r(3, 4)",
        "k = x.argmax(); torch.stack(torch.unravel_index(k, x.shape)), x.flatten()[k]",
    ),
}

CHANGES: Problems = {
    "added in place and returned": ("x = c(3, 4); y = r(3, 4)", "x.add_(y.detach()); x, y * 2"),
    "a slice set": (
        "x = r(4, 5)",
        "y = x.clone(); y[1:3, ::2] = -1.0; y[:, 0] *= x[:, 1]; y.exp()",
    ),
    "a column of an argument set": ("x = c(4, 5); y = c(4)", "x[:, 2] = y; x.sum(1)"),
    "zeroed by a mask": (
        "x = r(4, 5); m = b(4, 5)",
        "y = x * 2; y[m] = 0; y.masked_fill_(~m, 0.5); y",
    ),
    "put in place by numbers": ("x = c(6); k = p(6)[:3]; v = c(3)", "x[k] = v; x[k] += 1; x"),
    "a buffer filled step by step": (
        "x = r(3, 4)",
        """
        out = torch.empty(4, 3)
        for n in range(4):
            out[n] = x[:, n] * n
        return out.relu_()
        """,
    ),
    "a cache written at a place": (
        "x = c(2, 1, 4); cache = c(2, 6, 4); n = torch.tensor(3)",
        "cache[:, n] = x[:, 0]; cache.index_copy_(1, n[None] + 1, x);"
        " (cache * x).sum(-1).softmax(-1)",
    ),
    "a running mean in a module": ("x = r(3, 4); m = Counter(4)", "m(x) + m(x * 2)"),
    "transposed in place": ("x = c(3, 4)", "y = x.clone().t_(); y.unsqueeze_(0).mul_(2); y"),
    "out given": (
        "x = r(3, 4).detach(); y = c(3, 4)",
        "torch.add(x, 1, out=y); y.copy_(y.sigmoid()); y",
    ),
    "clamped and swapped": (
        "x = r(4)",
        "a, b = x[:2].clone(), x[2:].clone(); a, b = b, a; a.clamp_(0); torch.cat((a, b))",
    ),
    "detached in between": (
        "x = r(3, 4)",
        "y = x.softmax(-1); (y - y.detach().mean()) * x.detach()",
    ),
    "under no gradient": (
        "x = r(3, 4)",
        """
        with torch.no_grad():
            scale = x.abs().max()
        return x / scale, scale
        """,
    ),
}

DTYPES: Problems = {
    "promoted": (
        "a = i(5, 3); x = r(3); h = c(3, dtype=torch.float16)",
        "a + 0.5, a / 2, a * h, x * h, (a > 2) + 1, a // 2, a % 3, -a // 2",
    ),
    "unsigned bytes": (
        "x = torch.arange(250, 262) % 256; y = x.to(torch.uint8)",
        "y + 7, y * y, ~y, y >> 1, y.float().mean()",
    ),
    "small integers": (
        "x = i(9, 4, 3).to(torch.int8) - 4",
        "x.abs(), x.sum(0), x.prod(1), x.cumsum(0), x * x * x, x.sign()",
    ),
    "bools": (
        "x = b(3, 4); y = b(3, 4)",
        "x & y | ~x ^ y, x.any(0), x.all(), x.sum(1), x.cumsum(1), x.to(torch.uint8).argmax(1)",
    ),
    "bits": (
        "x = i(100, 6) - 50; y = i(9, 6)",
        "x ^ y, x << 2, x >> y % 5, x.bitwise_not(), torch.gcd(x, y), x.bitwise_or(y)",
    ),
    "halves folded": (
        "x = r(3, 33, dtype=torch.float16)",
        "x.sum(1), x.mean(), (x * x).cumsum(1)[:, -1], x.softmax(1)",
    ),
    "bfloat16 chain": (
        "x = r(4, 9, dtype=torch.bfloat16); w = r(9, dtype=torch.bfloat16)",
        "F.layer_norm(x.float(), (9,)).to(torch.bfloat16) * w + x",
    ),
    "doubles": (
        "x = r(3, 5, dtype=torch.float64)",
        "torch.erf(x) + torch.lgamma(x.abs() + 1), x.logsumexp(1), x.sinh()",
    ),
    "autocast": (
        "x = r(3, 5); m = nn.Linear(5, 4)",
        """
        with torch.autocast('cpu', torch.bfloat16):
            y = m(x).relu()
        return y.float() + 1, y
        """,
    ),
    "rounded": (
        "x = c(12) * 3",
        "x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), x.round(decimals=1),"
        " x.to(torch.int16)",
    ),
    "not finite": (
        "x = torch.tensor([1.0, float('nan'), float('inf'), -float('inf'), -0.0, 0.0])",
        "x.isnan() | x.isinf(), x.nan_to_num(7.0), x.max(), x.sign(), 1 / x, x.nansum(),"
        " x.clamp(-1, 1), x.argmax(), torch.fmax(x, x.flip(0)), x.signbit(), x.maximum(x.flip(0))",
    ),
    "remainders": (
        "x = r(8); y = c(8).abs() + 0.3",
        "x % y, torch.fmod(x, y), x.div(y, rounding_mode='floor')",
    ),
    "integer quotients": (
        "x = i(40, 8) - 20; y = i(6, 8) + 1",
        "x // y, x % -y, torch.fmod(x, y), x.div(y, rounding_mode='trunc')",
    ),
    "powers": (
        "x = r(6).detach().abs().add(0.1).requires_grad_(); n = i(4, 6)",
        "x**2.5, 2.0**x, n**2, x**n, torch.pow(3, n), x**-1, x**0",
    ),
    "compared": (
        "x = r(5); y = c(5)",
        "x > y, x == x, torch.isclose(x, y, rtol=0.5), torch.maximum(x, y),"
        " (x.sign() != y.sign()).sum()",
    ),
    "complex left alone": (
        "x = r(4); y = r(4)",
        "z = torch.complex(x, y) * 2; z.abs() + z.real, z.angle()",
    ),
    "spectrum": ("x = r(2, 8)", "torch.fft.rfft(x).abs().sum(-1) + x.sum(-1)"),
}

SIZES: Problems = {
    "no dimensions": (
        "x = r(); y = r()",
        "x * y + 1, x.sum(), torch.stack([x, y]).softmax(0), x.view(1, 1)",
    ),
    "no dimensions indexed": (
        "x = r(5); k = torch.tensor(3)",
        "x[k] * 2, x[2], x.index_select(0, k)",
    ),
    "no elements": (
        "x = r(0, 4)",
        "x.sum(0), x.sum(), (x * 2).relu(), torch.cat([x, torch.ones(2, 4)]), x.mean(1)",
    ),
    "no columns": (
        "x = r(3, 0)",
        "x.sum(1), x.exp(), x.prod(1), x.any(1), torch.cat([x, x], 1), x.cumsum(1)",
    ),
    "one element": (
        "x = r(1, 1, 1)",
        "x.softmax(0), x.var(correction=0), x.squeeze(), x.max(-1), x.cumsum(1), F.normalize(x)",
    ),
    "long and thin": ("x = r(1, 257)", "x.cumsum(1).amax(1), x.std(), x.T.sum(0), x.logsumexp(1)"),
    "many dimensions": (
        "x = r(2, 1, 3, 1, 2, 1, 2)",
        "x.sum((1, 3, 5)).permute(3, 0, 2, 1) + x.squeeze().mean()",
    ),
    "none and numbers": (
        "x = r(3, 4); bias = None; scale = 2; flag = True",
        "y = x * scale if flag else x; y if bias is None else y + bias",
    ),
    "keywords": ("x = r(3, 4); kw_dim = 1; kw_weight = r(4)", "(x * kw_weight).sum(dim=kw_dim)"),
    "named results": (
        "x = r(3, 4)",
        "Pair(left=x.max(1), right={'a': [x.sum()], 'b': (None, 3, x.argmin(0))})",
    ),
    "an argument passed through": ("x = r(3); y = c(3)", "x + 1, y, x"),
    "an argument not used": ("x = r(3); y = r(4)", "x.exp()"),
    "the same argument twice": ("x = r(3, 3); y = x", "x @ y + x"),
    "constants alone": (
        "x = r(3)",
        "torch.arange(5) * 2.0, torch.eye(3), torch.full((2,), 7), torch.linspace(0, 1, 5), x",
    ),
    "made like": (
        "x = r(3, 4)",
        "torch.zeros_like(x, dtype=torch.int64), x.new_ones(2), torch.full_like(x, 2.5) * x,"
        " x.new_tensor([1, 2])",
    ),
    "a list of tensors": (
        "xs = [r(2, 3), r(4, 3), r(1, 3)]",
        "torch.cat([t.softmax(1) for t in xs]), [t.shape[0] for t in xs]",
    ),
    "a dictionary of tensors": (
        "d = {'a': r(2, 3), 'b': [r(3), c(2)]}",
        "{k: v * 2 for k, v in d.items() if k == 'a'}, d['b'][0] * d['b'][1].sum()",
    ),
    "python in between": (
        "x = r(3, 4)",
        "y = x.sum(); n = x.shape[0] * 2; print(end=''); y * n + len(x)",
    ),
    "a branch by data": ("x = c(3, 4)", "y = x * 2; y.relu() if y.sum() > 0 else y.abs().neg()"),
    "a number taken out": ("x = c(4)", "n = x.argmax().item(); x * n, x[n]"),
}

TENSORS: Problems = {**PRODUCTS, **INDICES, **VIEWS, **CHANGES, **DTYPES, **SIZES}
