"""Problems of layers: convolutions, pools, norms, activations and samples, alone and in chains.

Each is a text of what is given and one of what is computed: see `written_problems`.
"""

from __future__ import annotations

Problems = dict[str, tuple[str, str]]


CONVOLUTIONS: Problems = {
    "conv1d causal": (
        "x = r(2, 3, 11); w = r(4, 3, 3); b = r(4)",
        "F.silu(F.conv1d(F.pad(x, (4, 0)), w, b, dilation=2))",
    ),
    "conv1d depthwise then pointwise": (
        "x = r(3, 5, 9); d = nn.Conv1d(5, 5, 3, padding=1, groups=5); p = nn.Conv1d(5, 7, 1)",
        "F.hardswish(p(d(x))).amax(-1)",
    ),
    "conv1d unbatched": ("x = r(3, 10); m = nn.Conv1d(3, 2, 4, stride=3)", "m(x).tanh()"),
    "conv2d bias activation pool": (
        "x = r(2, 3, 9, 7); m = nn.Conv2d(3, 5, 3); b = r(5, 1, 1)",
        "F.avg_pool2d(F.relu(m(x)) + b, 2)",
    ),
    "conv2d minimum over channels twice tanh": (
        "x = r(2, 3, 7, 8); m = nn.Conv2d(3, 6, 3)",
        "torch.tanh(torch.tanh(torch.min(m(x), dim=1, keepdim=True)[0]))",
    ),
    "conv2d group norm scale max pool clamp": (
        "x = r(3, 3, 10, 9); m = nn.Conv2d(3, 8, 3); g = nn.GroupNorm(4, 8); s = r(8, 1, 1)",
        "torch.clamp(F.max_pool2d(g(m(x)) * s, 3), 0.0, 1.0)",
    ),
    "conv2d subtract hardswish pool mish": (
        "x = r(2, 2, 8, 8); m = nn.Conv2d(2, 3, 3)",
        "F.mish(F.max_pool2d(F.hardswish(m(x) - 0.5), 2))",
    ),
    "conv2d log sum exp of channels": (
        "x = r(2, 3, 6, 5); m = nn.Conv2d(3, 4, 3, padding='same', padding_mode='circular')",
        "torch.logsumexp(m(x), dim=(1, 2), keepdim=True).squeeze()",
    ),
    "conv2d reflected": (
        "x = r(1, 2, 5, 6); m = nn.Conv2d(2, 4, 3, padding=2, padding_mode='reflect')",
        "F.leaky_relu(m(x), 0.2)",
    ),
    "conv2d grouped strided dilated": (
        "x = r(2, 6, 11, 10); w = r(9, 2, 3, 2)",
        "F.relu6(F.conv2d(x, w, None, (2, 1), (1, 2), (2, 3), 3))",
    ),
    "conv2d channels last": (
        "x = r(2, 4, 6, 6).contiguous(memory_format=torch.channels_last); m = nn.Conv2d(4, 3, 3)",
        "y = F.gelu(m(x)); y + y.mean((2, 3), keepdim=True)",
    ),
    "conv2d of one pixel": (
        "x = r(5, 3, 1, 1); m = nn.Conv2d(3, 4, 1)",
        "m(x).flatten(1).softmax(1)",
    ),
    "conv2d of no samples": ("x = r(0, 3, 6, 6); m = nn.Conv2d(3, 4, 3)", "m(x).relu() * 2"),
    "conv2d residual batch norm": (
        "x = r(3, 4, 5, 5); c1 = nn.Conv2d(4, 4, 3, padding=1, bias=False);"
        " n1 = nn.BatchNorm2d(4); c2 = nn.Conv2d(4, 4, 3, padding=1, bias=False);"
        " n2 = nn.BatchNorm2d(4)",
        "F.relu(n2(c2(F.relu(n1(c1(x))))) + x)",
    ),
    "squeeze and excitation": (
        "x = r(2, 8, 5, 3); down = nn.Linear(8, 2); up = nn.Linear(2, 8)",
        "s = up(down(x.mean((-1, -2))).relu()).sigmoid(); x * s[:, :, None, None]",
    ),
    "separable convolutions from one filter": (
        "x = r(2, 1, 9, 9); k = r(5)",
        "F.conv2d(F.conv2d(x, k.view(1, 1, 5, 1)), k.view(1, 1, 1, 5)).square().sum()",
    ),
    "conv3d softmax pool pool": (
        "x = r(2, 2, 6, 7, 6); m = nn.Conv3d(2, 3, 3)",
        "F.max_pool3d(F.max_pool3d(torch.softmax(m(x), dim=1), 2), (1, 2, 2))",
    ),
    "conv3d division pool bias sum": (
        "x = r(2, 2, 5, 6, 6); m = nn.Conv3d(2, 4, (2, 3, 3)); b = r(4, 1, 1, 1)",
        "torch.sum(F.adaptive_avg_pool3d(F.max_pool3d(m(x) / 2.0, (2, 2, 2)), (1, 1, 1)) + b,"
        " dim=1)",
    ),
    "transposed 1d": (
        "x = r(2, 4, 5); m = nn.ConvTranspose1d(4, 3, 4, stride=3, padding=1, output_padding=2)",
        "F.elu(m(x))",
    ),
    "transposed 2d add min sum gelu": (
        "x = r(2, 3, 4, 5); m = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1,"
        " output_padding=1); b = r(1, 1, 1)",
        "y = torch.min(m(x), dim=1, keepdim=True)[0]; F.gelu(y.sum(dim=2, keepdim=True)) + b",
    ),
    "transposed 2d grouped dilated": (
        "x = r(1, 4, 3, 4); w = r(4, 3, 2, 3)",
        "F.conv_transpose2d(x, w, stride=(1, 2), groups=2, dilation=(3, 1)).abs().mean((1, 3))",
    ),
    "transposed 3d norm average": (
        "x = r(2, 3, 3, 2, 3); m = nn.ConvTranspose3d(3, 4, 3, stride=2, padding=1);"
        " n = nn.BatchNorm3d(4)",
        "F.avg_pool3d(n(m(x)), (2, 1, 2))",
    ),
    "two paths joined": (
        "x = r(2, 3, 8, 8); a = nn.Conv2d(3, 2, 1); b = nn.Conv2d(3, 4, 3, padding=1)",
        "torch.cat([a(x), b(x).relu(), F.max_pool2d(x, 3, 1, 1)], 1).mean(1)",
    ),
    "weights scaled before use": (
        "x = r(2, 3, 6, 6); w = r(4, 3, 3, 3); g = r(4)",
        "n = w.flatten(1).norm(dim=1); F.conv2d(x, w * (g / n).view(-1, 1, 1, 1))",
    ),
    "weights standardised": (
        "x = r(2, 4, 7); w = r(6, 4, 3)",
        "v, m = torch.var_mean(w, (1, 2), keepdim=True, correction=0);"
        " F.conv1d(x, (w - m) * torch.rsqrt(v + 1e-5))",
    ),
}

POOLS: Problems = {
    "max pool 1d dilated with places": (
        "x = r(2, 3, 12)",
        "v, i = F.max_pool1d(x, 3, 2, 1, 2, return_indices=True); {'values': v * 2, 'places': i}",
    ),
    "max pool 2d ceil": ("x = r(2, 2, 7, 8)", "F.max_pool2d(x, (3, 2), (2, 3), ceil_mode=True)"),
    "max pool 2d unbatched": ("x = r(3, 6, 6)", "F.max_pool2d(x, 2) - F.max_pool2d(-x, 2)"),
    "max pool of integers": ("x = i(9, 2, 2, 6, 6)", "F.max_pool2d(x, 2, 2)"),
    "max pool and unpool": (
        "x = r(1, 2, 6, 6)",
        "v, i = F.max_pool2d(x, 2, return_indices=True); F.max_unpool2d(v.sigmoid(), i, 2)",
    ),
    "average pool 1d without padding counted": (
        "x = r(2, 3, 10)",
        "F.avg_pool1d(x, 4, 3, 2, ceil_mode=True, count_include_pad=False)",
    ),
    "average pool 2d divisor": (
        "x = r(2, 3, 6, 7)",
        "F.avg_pool2d(x, 3, 2, 1, divisor_override=5)",
    ),
    "lp pool": ("x = r(2, 3, 9)", "F.lp_pool1d(x.abs() + 0.1, 3, 3, 2)"),
    "adaptive average 2d uneven": ("x = r(2, 3, 7, 5)", "F.adaptive_avg_pool2d(x, (3, 2)).exp()"),
    "adaptive max 1d uneven": (
        "x = r(2, 3, 11)",
        "v, i = F.adaptive_max_pool1d(x, 4, return_indices=True); v.sum(-1), i",
    ),
    "adaptive max 2d to one": (
        "x = r(2, 3, 5, 4)",
        "F.adaptive_max_pool2d(x, 1).flatten(1).tanh()",
    ),
    "fractional and mixed": ("x = r(2, 3, 8, 6)", "(F.avg_pool2d(x, 2) + F.max_pool2d(x, 2)) / 2"),
    "pool of a transposed image": (
        "x = r(2, 6, 3, 8)",
        "F.max_pool2d(x.transpose(1, 2), 2, padding=1).permute(0, 2, 3, 1)",
    ),
}

NORMS: Problems = {
    "batch norm 1d of rows": ("x = r(7, 5); m = nn.BatchNorm1d(5, momentum=0.3)", "m(x).relu()"),
    "batch norm 1d of lines cumulative": (
        "x = r(3, 4, 6); m = nn.BatchNorm1d(4, momentum=None)",
        "m(x) + m(x * 2)",
    ),
    "batch norm in evaluation": (
        "x = r(2, 3, 4, 4); m = nn.BatchNorm2d(3).eval()",
        "m(x).sigmoid()",
    ),
    "batch norm of double": (
        "x = r(4, 3, 5, dtype=torch.float64); m = nn.BatchNorm1d(3).double()",
        "F.softplus(m(x))",
    ),
    "instance norm with state": (
        "x = r(2, 3, 5, 4); m = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)",
        "m(x).abs()",
    ),
    "group norm of a line": ("x = r(3, 6, 7); m = nn.GroupNorm(3, 6)", "m(x) * x"),
    "layer norm over two": (
        "x = r(3, 4, 5, 2); m = nn.LayerNorm((5, 2))",
        "m(x).permute(2, 0, 1, 3)",
    ),
    "layer norm of half a row": ("x = r(5, 8); w = r(4)", "F.layer_norm(x[:, ::2], (4,), w, None)"),
    "layer norm in bfloat16": (
        "x = r(4, 9, dtype=torch.bfloat16); m = nn.LayerNorm(9).bfloat16()",
        "m(x) + x",
    ),
    "rms norm by hand": (
        "x = r(2, 5, 7); w = r(7)",
        "w * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)",
    ),
    "rms norm over channels": (
        "x = r(2, 5, 3, 4)",
        "x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)",
    ),
    "l1 norm of rows": ("x = r(4, 7)", "x / torch.sum(torch.abs(x), dim=1, keepdim=True)"),
    "frobenius": ("x = r(3, 4, 5)", "x / torch.norm(x, p='fro')"),
    "norms of all orders": (
        "x = r(4, 5)",
        "[torch.linalg.vector_norm(x, p, dim=1) for p in (0, 1, 2, 3.5, float('inf'),"
        " -float('inf'))]",
    ),
    "norm of matrices": (
        "x = r(2, 3, 4)",
        "torch.linalg.matrix_norm(x, 'fro'), torch.linalg.matrix_norm(x, 1),"
        " torch.linalg.matrix_norm(x, float('inf'))",
    ),
    "normalised and compared": (
        "x = r(4, 6); y = r(5, 6)",
        "F.normalize(x, dim=-1) @ F.normalize(y, p=1.0, dim=-1).mT",
    ),
    "cosine similarity of pairs": (
        "x = r(4, 1, 6); y = r(5, 6)",
        "F.cosine_similarity(x, y, dim=2), F.pairwise_distance(x, y, keepdim=True)",
    ),
    "local response": ("x = r(2, 5, 3, 3)", "F.local_response_norm(x, 3, alpha=0.1, k=2.0)"),
    "weight norm": (
        "x = r(3, 4); m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))",
        "m(x).relu()",
    ),
    "spectral norm": (
        "x = r(3, 4); m = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).eval()",
        "m(x)",
    ),
    "statistics of a batch": (
        "x = r(6, 4)",
        "{'mean': x.mean(0), 'std': x.std(0), 'var': x.var(0, unbiased=False),"
        " 'median': x.median(0).values, 'range': x.aminmax(dim=0)}",
    ),
    "feature alpha dropout of nothing": (
        "x = r(3, 4, 5); m = nn.Sequential(nn.Dropout(0.0), nn.Dropout1d(0.0),"
        " nn.AlphaDropout(0.0))",
        "m(x) + 1",
    ),
}

ACTIVATIONS: Problems = {
    "all activations in a row": (
        "x = r(3, 7)",
        "F.softsign(F.tanhshrink(F.logsigmoid(F.selu(F.celu(x, 0.7))))) + F.hardtanh(x, -0.3, 0.4)",
    ),
    "shrinks and thresholds": (
        "x = r(4, 6)",
        "F.softshrink(x, 0.3) + F.hardshrink(x, 0.2) * F.threshold(x, 0.1, -1.5)",
    ),
    "gated": (
        "x = r(3, 8); m = nn.Linear(8, 12)",
        "F.glu(m(x), -1), F.silu(m(x)[:, :6]) * m(x)[:, 6:]",
    ),
    "gelu both ways": ("x = r(5, 5)", "F.gelu(x) - F.gelu(x, approximate='tanh')"),
    "prelu per channel": ("x = r(2, 3, 4); m = nn.PReLU(3)", "m(x) + F.hardsigmoid(x)"),
    "softmax family": (
        "x = r(3, 4, 5)",
        "F.softmin(x, 0), F.log_softmax(x, 1), torch.softmax(x, -1, dtype=torch.float64)",
    ),
    "gumbel by given noise": (
        "x = r(4, 5); u = c(4, 5).sigmoid()",
        "y = (x - (-u.log()).log()).softmax(-1); h = (y == y.amax(-1, True)).float();"
        " h - y.detach() + y",
    ),
    "swiglu chained": (
        "x = r(2, 3, 6); a = nn.Linear(6, 9, bias=False); b = nn.Linear(6, 9, bias=False);"
        " o = nn.Linear(9, 6)",
        "x + o(F.silu(a(x)) * b(x))",
    ),
    "maxout": ("x = r(3, 4); m = nn.Linear(4, 15)", "m(x).view(3, 5, 3).max(dim=-1)[0]"),
    "linear divide sum scale": (
        "x = r(4, 6); w = r(5, 6)",
        "(torch.sum(torch.matmul(x, w.T) / 2, dim=1, keepdim=True)) * 1.5",
    ),
    "linear swish divide clamp tanh clamp": (
        "x = r(3, 5); m = nn.Linear(5, 7)",
        "y = m(x); y = y * torch.sigmoid(y) / 2.0;"
        " torch.clamp(torch.tanh(torch.clamp(y, -1, 1)), -0.9, 0.9)",
    ),
    "linear dropout softmax": (
        "x = r(3, 5); m = nn.Linear(5, 6); d = nn.Dropout(0.0)",
        "d(m(x)).softmax(1)",
    ),
}

SAMPLES: Problems = {
    "nearest up and down": (
        "x = r(2, 3, 5)",
        "F.interpolate(x, scale_factor=2.0), F.interpolate(x, size=3, mode='nearest-exact')",
    ),
    "nearest 2d of odd factors": ("x = r(1, 2, 5, 4)", "F.interpolate(x, scale_factor=(1.7, 2.5))"),
    "nearest 3d": ("x = r(1, 2, 2, 3, 2)", "F.interpolate(x, size=(3, 5, 4)).mean((2, 3))"),
    "linear 1d": ("x = r(2, 3, 5)", "F.interpolate(x, size=8, mode='linear')"),
    "bilinear aligned": (
        "x = r(2, 3, 4, 5)",
        "F.interpolate(x, size=(7, 3), mode='bilinear', align_corners=True).relu()",
    ),
    "bilinear smaller antialiased": (
        "x = r(1, 2, 8, 9)",
        "F.interpolate(x, size=(3, 4), mode='bilinear', antialias=True)",
    ),
    "bicubic": ("x = r(1, 2, 5, 6)", "F.interpolate(x, scale_factor=1.5, mode='bicubic')"),
    "trilinear": ("x = r(1, 2, 3, 4, 3)", "F.interpolate(x, scale_factor=2, mode='trilinear')"),
    "area": ("x = r(2, 2, 7, 9)", "F.interpolate(x, size=(3, 4), mode='area')"),
    "upsampled and joined": (
        "x = r(2, 3, 3, 4); y = r(2, 2, 6, 8); m = nn.Conv2d(5, 4, 3, padding=1)",
        "m(torch.cat((nn.UpsamplingBilinear2d(scale_factor=2)(x), y), dim=1)).relu()",
    ),
    "grid bilinear border": (
        "x = r(2, 3, 5, 4); g = c(2, 3, 6, 2)",
        "F.grid_sample(x, g, padding_mode='border', align_corners=False)",
    ),
    "grid nearest zeros": (
        "x = r(1, 2, 4, 5); g = c(1, 3, 3, 2).clamp(-1.2, 1.2)",
        "F.grid_sample(x, g, mode='nearest', align_corners=True)",
    ),
    "affine grid": (
        "x = r(2, 2, 5, 5); t = r(2, 2, 3)",
        "F.grid_sample(x, F.affine_grid(t, (2, 2, 4, 3), align_corners=False),"
        " align_corners=False)",
    ),
    "shuffled pixels": ("x = r(2, 12, 3, 2)", "F.pixel_shuffle(x, 2), F.channel_shuffle(x, 3)"),
    "unshuffled pixels": ("x = r(2, 2, 6, 9)", "F.pixel_unshuffle(x, 3).softmax(1)"),
    "unfold product fold": (
        "x = r(2, 3, 6, 5); w = r(3 * 2 * 3, 4)",
        "y = w.T @ F.unfold(x, (2, 3), padding=(1, 0), stride=(2, 1)); y.tanh()",
    ),
    "fold of patches": (
        "x = r(2, 8, 12)",
        "F.fold(x, (5, 4), (2, 2), padding=0) if x.shape[-1] == 12 else x",
    ),
    "patches by views": (
        "x = r(2, 3, 8, 6)",
        "x.unfold(2, 4, 4).unfold(3, 3, 3).permute(0, 2, 3, 1, 4, 5).reshape(2, 4, -1)",
    ),
    "sliding windows": ("x = r(2, 11)", "x.unfold(1, 4, 2).mul(torch.hann_window(4)).sum(-1)"),
    "padding of every mode": (
        "x = r(2, 3, 5)",
        "[F.pad(x, (2, 1), mode=m) for m in ('reflect', 'replicate', 'circular')] + [F.pad(x,"
        " (-1, 2, 1, 0), value=0.5)]",
    ),
}

LAYERS: Problems = {**CONVOLUTIONS, **POOLS, **NORMS, **ACTIVATIONS, **SAMPLES}
