"""Problems of PyTorch at sizes that models have: operators alone, and short sequences around a
product, a convolution or a norm.  Two texts each, as in `written_problems`: what is given (`c`
floats, `i` integers below a number, modules), and what is computed, the last line of which is
returned.
"""

from __future__ import annotations

Problems = dict[str, tuple[str, str]]

PRODUCTS: Problems = {
    "product square": ("a = c(2048, 2048); b = c(2048, 2048)", "a @ b"),
    "product transposed right": ("a = c(1024, 4096); b = c(2048, 4096)", "a @ b.T"),
    "product transposed left": ("a = c(4096, 1024); b = c(4096, 2048)", "a.T @ b"),
    "product transposed both": ("a = c(4096, 1024); b = c(2048, 4096)", "a.T @ b.T"),
    "product batched": ("a = c(64, 256, 512); b = c(64, 512, 384)", "torch.bmm(a, b)"),
    "product of vector": ("a = c(512, 131072); b = c(131072, 1)", "a @ b"),
    "product of a deep fold": ("a = c(256, 131072); b = c(131072, 256)", "a @ b"),
    "product of a short fold": ("a = c(8192, 32); b = c(32, 8192)", "a @ b"),
    "product tall": ("a = c(16384, 32); b = c(32, 16384)", "a @ b"),
    "product odd": ("a = c(4103, 1409); b = c(1409, 2963)", "a @ b"),
    "product of four dimensions": (
        "a = c(8, 128, 256, 256); b = c(256, 512)",
        "torch.einsum('bijl,lk->bijk', a, b)",
    ),
    "product of triangles": (
        "a = c(2048, 2048); b = c(2048, 2048)",
        "torch.tril(a.tril() @ b.tril())",
    ),
    "product of a diagonal": ("a = c(4096); b = c(4096, 4096)", "torch.diag(a) @ b"),
    "product symmetric": (
        "a = c(2048, 2048); b = c(2048, 2048)",
        "(a + a.T) @ (b + b.T)",
    ),
}
ELEMENTS: Problems = {
    name: ("x = c(4096, 16384)", text)
    for name, text in {
        "relu": "torch.relu(x)",
        "leaky relu": "F.leaky_relu(x, 0.01)",
        "sigmoid": "torch.sigmoid(x)",
        "tanh": "torch.tanh(x)",
        "softmax": "torch.softmax(x, dim=1)",
        "log softmax": "torch.log_softmax(x, dim=1)",
        "swish": "x * torch.sigmoid(x)",
        "gelu": "F.gelu(x)",
        "gelu written": (
            "0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))"
        ),
        "selu": "torch.selu(x)",
        "hardsigmoid": "F.hardsigmoid(x)",
        "softplus": "F.softplus(x)",
        "softsign": "x / (1 + torch.abs(x))",
        "elu": "F.elu(x, alpha=1.0)",
        "hardtanh": "F.hardtanh(x, -1.0, 1.0)",
        "scaled": "x * 3.14",
        "sum of absolutes": "x / torch.mean(torch.abs(x), dim=1, keepdim=True)",
        "length": "x / torch.norm(x, p=2, dim=1, keepdim=True)",
    }.items()
}
NORMS: Problems = {
    "batch norm in training": ("x = c(32, 64, 128, 128); m = nn.BatchNorm2d(64)", "m(x)"),
    "instance norm": ("x = c(32, 64, 128, 128); m = nn.InstanceNorm2d(64)", "m(x)"),
    "group norm": ("x = c(32, 64, 128, 128); m = nn.GroupNorm(8, 64)", "m(x)"),
    "layer norm of volumes": ("x = c(16, 64, 128, 128); m = nn.LayerNorm((64, 128, 128))", "m(x)"),
    "rms norm of channels": (
        "x = c(32, 64, 256, 128)",
        "x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)",
    ),
    "frobenius": ("x = c(32, 64, 128, 128)", "x / torch.norm(x, p='fro')"),
}
FOLDS: Problems = {
    "sum over a middle axis": ("x = c(64, 2048, 1023)", "torch.sum(x, dim=1, keepdim=True)"),
    "mean over a middle axis": ("x = c(64, 2048, 1023)", "torch.mean(x, dim=1)"),
    "mean over the last axis": ("x = c(128, 1024, 1023)", "torch.mean(x, dim=2)"),
    "largest over a middle axis": ("x = c(64, 2048, 1023)", "torch.max(x, dim=1)[0]"),
    "smallest over the first axis": ("x = c(64, 2048, 1023)", "torch.min(x, dim=0)[0]"),
    "argmax over a middle axis": ("x = c(64, 2048, 1023)", "torch.argmax(x, dim=1)"),
    "argmin over the last axis": ("x = c(128, 1024, 1023)", "torch.argmin(x, dim=-1)"),
    "product over a middle axis": ("x = c(64, 512, 1023)", "torch.prod(x, dim=1)"),
    "cumulative sum": ("x = c(8192, 8192)", "torch.cumsum(x, dim=1)"),
    "cumulative product": ("x = c(8192, 8192)", "torch.cumprod(x, dim=1)"),
    "cumulative sum backwards": ("x = c(8192, 8192)", "torch.cumsum(x.flip(1), dim=1).flip(1)"),
    "cumulative sum before each": (
        "x = c(8192, 8191)",
        "torch.cumsum(F.pad(x, (1, 0))[:, :-1], dim=1)",
    ),
    "cumulative sum of a mask": (
        "x = c(8192, 8192); y = b(8192, 8192)",
        "torch.cumsum(x * y, dim=1)",
    ),
}
POOLS: Problems = {
    "max pool 1d": (
        "x = c(32, 64, 16384); m = nn.MaxPool1d(8, stride=1, padding=4, dilation=3)",
        "m(x)",
    ),
    "max pool 2d": ("x = c(16, 32, 256, 256); m = nn.MaxPool2d(4, stride=1, padding=1)", "m(x)"),
    "max pool 3d": (
        "x = c(8, 16, 64, 64, 64); m = nn.MaxPool3d(3, stride=2, padding=1, dilation=3)",
        "m(x)",
    ),
    "average pool 1d": ("x = c(32, 64, 16384); m = nn.AvgPool1d(8, stride=1, padding=4)", "m(x)"),
    "average pool 2d": ("x = c(16, 64, 512, 512); m = nn.AvgPool2d(11)", "m(x)"),
    "average pool 3d": (
        "x = c(8, 16, 64, 64, 64); m = nn.AvgPool3d(3, stride=2, padding=1)",
        "m(x)",
    ),
}
CONVOLUTIONS: Problems = {
    "conv1d": ("x = c(16, 64, 16384); m = nn.Conv1d(64, 128, 3)", "m(x)"),
    "conv1d dilated strided": (
        "x = c(16, 64, 16384); m = nn.Conv1d(64, 128, 3, stride=3, dilation=4)",
        "m(x)",
    ),
    "conv2d": ("x = c(16, 64, 112, 112); m = nn.Conv2d(64, 128, 3, padding=1)", "m(x)"),
    "conv2d of few channels": ("x = c(16, 3, 256, 256); m = nn.Conv2d(3, 64, 3)", "m(x)"),
    "conv2d oblong": ("x = c(16, 32, 256, 128); m = nn.Conv2d(32, 64, (3, 5))", "m(x)"),
    "conv2d strided first": (
        "x = c(64, 3, 224, 224); m = nn.Conv2d(3, 96, 11, stride=4, padding=2)",
        "m(x)",
    ),
    "conv2d dilated": (
        "x = c(8, 32, 256, 256); m = nn.Conv2d(32, 64, 3, padding=2, dilation=2)",
        "m(x)",
    ),
    "conv2d depthwise": ("x = c(32, 64, 256, 256); m = nn.Conv2d(64, 64, 3, groups=64)", "m(x)"),
    "conv2d depthwise oblong": (
        "x = c(32, 64, 256, 256); m = nn.Conv2d(64, 64, (3, 7), groups=64)",
        "m(x)",
    ),
    "conv2d pointwise": ("x = c(16, 64, 256, 256); m = nn.Conv2d(64, 128, 1)", "m(x)"),
    "conv2d separable": (
        "x = c(16, 64, 256, 256); d = nn.Conv2d(64, 64, 3, padding=1, groups=64);"
        " p = nn.Conv2d(64, 128, 1)",
        "p(d(x))",
    ),
    "conv3d": ("x = c(16, 3, 32, 64, 64); m = nn.Conv3d(3, 64, 3)", "m(x)"),
    "conv transposed 1d": (
        "x = c(16, 64, 4096); m = nn.ConvTranspose1d(64, 32, 3, stride=2, padding=1)",
        "m(x)",
    ),
    "conv transposed 2d": ("x = c(16, 64, 128, 128); m = nn.ConvTranspose2d(64, 32, 3)", "m(x)"),
    "conv transposed 2d strided": (
        "x = c(16, 32, 64, 128);"
        " m = nn.ConvTranspose2d(32, 64, (3, 5), stride=(2, 3), padding=(1, 2))",
        "m(x)",
    ),
    "conv transposed 3d": (
        "x = c(8, 32, 16, 32, 32); m = nn.ConvTranspose3d(32, 16, 3, stride=2)",
        "m(x)",
    ),
}
LOSSES: Problems = {
    "mean squared": ("a = c(8192, 4096); b = c(8192, 4096)", "F.mse_loss(a, b)"),
    "huber": ("a = c(8192, 4096); b = c(8192, 4096)", "F.smooth_l1_loss(a, b)"),
    "cross entropy": ("a = c(8192, 4096); t = i(4096, 8192)", "F.cross_entropy(a, t)"),
    "hinge": (
        "a = c(8192, 4096); t = b(4096).float() * 2 - 1",
        "torch.mean(torch.clamp(1 - a * t, min=0))",
    ),
    "cosine": (
        "a = c(8192, 4096); b = c(8192, 4096)",
        "torch.mean(1 - F.cosine_similarity(a, b, dim=1))",
    ),
    "divergence": (
        "a = c(8192, 4096).softmax(-1); b = c(8192, 4096).softmax(-1)",
        "F.kl_div(torch.log(a), b, reduction='batchmean')",
    ),
    "triplet": (
        "a = c(4096, 4096); p_ = c(4096, 4096); n = c(4096, 4096)",
        "F.triplet_margin_loss(a, p_, n, margin=1.0)",
    ),
}
SEQUENCES: Problems = {
    "conv relu bias": (
        "x = c(32, 64, 64, 64); m = nn.Conv2d(64, 128, 3); b_ = nn.Parameter(c(128, 1, 1)).data",
        "torch.relu(m(x)) + b_",
    ),
    "conv mish twice": (
        "x = c(32, 16, 128, 128); m = nn.Conv2d(16, 64, 3)",
        "F.mish(F.mish(m(x)))",
    ),
    "conv group norm tanh hardswish": (
        "x = c(32, 8, 128, 128); m = nn.Conv2d(8, 64, 3); g = nn.GroupNorm(16, 64)",
        "y = m(x); z = F.hardswish(torch.tanh(g(y))); torch.logsumexp(y + z, dim=1, keepdim=True)",
    ),
    "conv batch norm scale": (
        "x = c(32, 8, 128, 128); m = nn.Conv2d(8, 64, 3); n = nn.BatchNorm2d(64)",
        "n(m(x)) * 2.0",
    ),
    "conv smallest softmax": (
        "x = c(32, 3, 24, 32, 32); m = nn.Conv3d(3, 24, 3)",
        "torch.softmax(torch.min(m(x), dim=2)[0], dim=1)",
    ),
    "conv average pool sigmoid sum": (
        "x = c(32, 8, 256, 256); m = nn.Conv2d(8, 64, 3)",
        "torch.sum(torch.sigmoid(F.avg_pool2d(m(x), 4)), dim=(1, 2, 3))",
    ),
    "conv instance norm divide": (
        "x = c(32, 64, 128, 128); m = nn.Conv2d(64, 128, 3); n = nn.InstanceNorm2d(128)",
        "n(m(x)) / 2.0",
    ),
    "conv3d group norm mean": (
        "x = c(32, 3, 24, 32, 32); m = nn.Conv3d(3, 24, 3); g = nn.GroupNorm(8, 24)",
        "g(m(x)).mean(dim=(1, 2, 3, 4))",
    ),
    "conv3d log sum exp relu": (
        "x = c(4, 32, 32, 64, 64); m = nn.Conv3d(32, 64, 3, padding=1)",
        "torch.relu(torch.logsumexp(F.max_pool3d(m(x), 2), dim=1, keepdim=True))",
    ),
    "transposed least sum gelu add": (
        "x = c(16, 64, 64, 64); m = nn.ConvTranspose2d(64, 128, 3, stride=2, padding=1,"
        " output_padding=1); b_ = c(1, 1, 1)",
        "F.gelu(torch.sum(torch.min(m(x), dim=1, keepdim=True)[0], dim=2, keepdim=True)) + b_",
    ),
    "transposed3d sum norm pool gelu": (
        "x = c(16, 32, 16, 32, 32); m = nn.ConvTranspose3d(32, 64, 3, stride=2, padding=1,"
        " output_padding=1); w = c(1); n = nn.LayerNorm((64,))",
        "F.gelu(F.avg_pool3d(n(m(x) + w), 2))",
    ),
    "transposed batch norm tanh pool": (
        "x = c(64, 32, 32, 32); m = nn.ConvTranspose2d(32, 64, 4, padding=1);"
        " n = nn.BatchNorm2d(64);"
        " g = nn.GroupNorm(4, 64)",
        "g(F.max_pool2d(torch.tanh(n(m(x))), 2))",
    ),
    "transposed softmax bias scale sigmoid": (
        "x = c(32, 64, 32, 32); m = nn.ConvTranspose2d(64, 128, 4, stride=2, padding=1,"
        " output_padding=1); b_ = c(128, 1, 1)",
        "torch.sigmoid((torch.softmax(m(x), dim=1) + b_) * 2.0)",
    ),
    "linear multiply leaky relu": (
        "x = c(1024, 8192); m = nn.Linear(8192, 8192)",
        "F.leaky_relu(m(x) * 2.0, 0.1)",
    ),
    "linear divide gelu": ("x = c(1024, 4096); m = nn.Linear(4096, 8192)", "F.gelu(m(x) / 10.0)"),
    "linear residual norm": (
        "x = c(4096, 1024); m = nn.Linear(1024, 1024); n = nn.LayerNorm(1024)",
        "n(x + m(x))",
    ),
    "linear swish scale": (
        "x = c(128, 32768); m = nn.Linear(32768, 1024)",
        "y = m(x); y * torch.sigmoid(y) * 2.0",
    ),
    "linear group norm hardtanh": (
        "x = c(1024, 8192); m = nn.Linear(8192, 8192); g = nn.GroupNorm(16, 8192)",
        "F.hardtanh(g(m(x)), -2.0, 2.0)",
    ),
    "linear pool gelu largest": (
        "x = c(1024, 8192); m = nn.Linear(8192, 8192)",
        "torch.max(F.gelu(F.avg_pool1d(m(x).unsqueeze(1), 16).squeeze(1)) * 2.0, dim=1)[0]",
    ),
    "linear sum log sum exp": (
        "x = c(1024, 8192); m = nn.Linear(8192, 8192)",
        "y = m(x).sum(1, keepdim=True); torch.logsumexp(torch.logsumexp(y, 1, True), 1, True)",
    ),
    "linear batch norm scale softmax": (
        "x = c(1024, 8192); m = nn.Linear(8192, 8192); n = nn.BatchNorm1d(8192); s = c(1)",
        "torch.softmax(s * n(m(x)), dim=1)",
    ),
    "linear two sigmoid": (
        "x = c(128, 32768); a = nn.Linear(32768, 2048); b_ = nn.Linear(2048, 1024)",
        "torch.logsumexp(b_(torch.sigmoid(a(x))), dim=1)",
    ),
    "product sigmoid sum": (
        "x = c(4096, 4096); m = nn.Linear(4096, 4096)",
        "torch.sum(torch.sigmoid(m(x)), dim=1, keepdim=True)",
    ),
    "gated": (
        "x = c(4096, 1024); g = nn.Linear(1024, 4096); u = nn.Linear(1024, 4096);"
        " d = nn.Linear(4096, 1024)",
        "d(F.silu(g(x)) * u(x))",
    ),
    "attention": (
        "q = c(8, 16, 1024, 64); k = c(8, 16, 1024, 64); v = c(8, 16, 1024, 64)",
        "F.scaled_dot_product_attention(q, k, v)",
    ),
    "attention written": (
        "q = c(8, 16, 1024, 64); k = c(8, 16, 1024, 64); v = c(8, 16, 1024, 64)",
        "s = (q @ k.transpose(-1, -2)) * 0.125; m_ = torch.ones(1024, 1024, dtype=torch.bool,"
        " device=q.device).tril(); s.masked_fill(~m_, float('-inf')).softmax(-1) @ v",
    ),
    "squeeze and excite": (
        "x = c(64, 96, 56, 56); a = nn.Linear(96, 24); b_ = nn.Linear(24, 96)",
        "x * torch.sigmoid(b_(F.relu(a(x.mean((2, 3))))))[:, :, None, None]",
    ),
    "rotary": (
        "x = c(8, 32, 1024, 128); co = c(1024, 128); si = c(1024, 128)",
        "x * co + torch.cat([-x[..., 64:], x[..., :64]], -1) * si",
    ),
    "upsampled": ("x = c(16, 64, 64, 64)", "F.interpolate(x, scale_factor=2, mode='bilinear')"),
    "embedded": (
        "t = i(50257, 16, 1024); e = nn.Embedding(50257, 768); n = nn.LayerNorm(768)",
        "n(e(t))",
    ),
    "largest of rows": ("x = c(4096, 32768)", "torch.max(x, dim=1)"),
    "means by group": (
        "x = c(65536, 256); t = i(1024, 65536)",
        "torch.zeros(1024, 256, device=x.device).index_add(0, t, x)",
    ),
}
PROBLEMS: Problems = {
    **PRODUCTS,
    **ELEMENTS,
    **NORMS,
    **FOLDS,
    **POOLS,
    **CONVOLUTIONS,
    **LOSSES,
    **SEQUENCES,
}
