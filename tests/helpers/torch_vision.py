"""Small models of images, volumes, points and fields, with an example each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

torch: Any = importlib.import_module("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
Made = tuple[Any, tuple[Any, ...]]


class Wrapped(nn.Module):
    """Named parts and a function of them and of the arguments."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *given: Any) -> Any:
        return self.function(self, *given)


def normed(inputs: int, outputs: int, size: int, **more: Any) -> Any:
    """Convolution, batch norm, relu."""
    convolution = nn.Conv2d(inputs, outputs, size, bias=False, **more)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def image(*shape: int) -> tuple[Any, ...]:
    """A batch of two."""
    return (torch.randn(2, *(shape or (3, 16, 16))),)


def _attended(q: Any, k: Any, v: Any, heads: int, bias: Any = None) -> Any:
    b, t, w = q.shape
    q, k, v = (x.view(b, -1, heads, w // heads).transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (w // heads) ** -0.5
    scores = scores if bias is None else scores + bias
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, w)


def bottleneck() -> Made:
    """ResNet's block of three convolutions with a projected shortcut."""

    def run(m: Any, x: Any) -> Any:
        x = F.max_pool2d(m.stem(x), 3, 2, 1)
        x = F.relu(m.body(x) + m.short(x))
        return m.head(x.mean((2, 3)))

    body = nn.Sequential(normed(8, 4, 1), normed(4, 4, 3, stride=2, padding=1))
    body.extend([nn.Conv2d(4, 16, 1, bias=False), nn.BatchNorm2d(16)])
    short = nn.Sequential(nn.Conv2d(8, 16, 1, stride=2, bias=False), nn.BatchNorm2d(16))
    stem = normed(3, 8, 7, stride=2, padding=3)
    return Wrapped(run, stem=stem, body=body, short=short, head=nn.Linear(16, 5)), image(3, 31, 29)


def efficient() -> Made:
    """EfficientNet's inverted bottleneck: SiLU, squeeze and excite, whole paths dropped."""

    def run(m: Any, x: Any) -> Any:
        y = F.silu(m.n1(m.wide(x)))
        y = F.silu(m.n2(m.deep(y)))
        y = y * m.se(F.adaptive_avg_pool2d(y, 1))
        y = m.n3(m.narrow(y))
        if m.training:
            y = y * torch.empty(x.shape[0], 1, 1, 1).bernoulli_(0.8) / 0.8
        return x + y

    se = nn.Sequential(nn.Conv2d(16, 2, 1), nn.SiLU(), nn.Conv2d(2, 16, 1), nn.Sigmoid())
    deep = nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False)
    made = Wrapped(
        run,
        wide=nn.Conv2d(4, 16, 1, bias=False),
        deep=deep,
        narrow=nn.Conv2d(16, 4, 1, bias=False),
        n1=nn.BatchNorm2d(16, momentum=0.01, eps=1e-3),
        n2=nn.BatchNorm2d(16),
        n3=nn.BatchNorm2d(4),
        se=se,
    )
    return made, image(4, 9, 11)


def convnext() -> Made:
    """Depthwise 7 x 7, layer norm over channels that lie last, a scale for each channel."""

    def run(m: Any, x: Any) -> Any:
        y = m.deep(x).permute(0, 2, 3, 1)
        y = m.down(F.gelu(m.up(m.norm(y)))) * m.scale
        return x + y.permute(0, 3, 1, 2)

    made = Wrapped(
        run,
        deep=nn.Conv2d(6, 6, 7, padding=3, groups=6),
        norm=nn.LayerNorm(6, eps=1e-6),
        up=nn.Linear(6, 24),
        down=nn.Linear(24, 6),
        scale=nn.Parameter(torch.full((6,), 0.1)),
    )
    return made, image(6, 10, 9)


def vit() -> Made:
    """Patches, a class token, positions, a block of the library's."""

    def run(m: Any, x: Any) -> Any:
        x = m.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([m.token.expand(x.shape[0], -1, -1), x], 1) + m.places
        return m.head(m.norm(m.block(x))[:, 0])

    block = nn.TransformerEncoderLayer(
        12, 3, 20, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    made = Wrapped(
        run,
        patch=nn.Conv2d(3, 12, 4, stride=4),
        token=nn.Parameter(torch.zeros(1, 1, 12)),
        places=nn.Parameter(torch.randn(1, 17, 12) * 0.02),
        block=block,
        norm=nn.LayerNorm(12),
        head=nn.Linear(12, 5),
    )
    return made, image()


def swin() -> Made:
    """Shifted windows with a relative bias and a mask."""
    size, shift = 4, 2
    place = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij"))
    apart = place.flatten(1)[:, :, None] - place.flatten(1)[:, None] + size - 1
    number = apart[0] * (2 * size - 1) + apart[1]

    def windows(x: Any) -> Any:
        b, h, w, c = x.shape
        x = x.view(b, h // size, size, w // size, size, c).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, size * size, c)

    def run(m: Any, x: Any) -> Any:
        b, h, w, c = x.shape
        y = torch.roll(m.norm(x), (-shift, -shift), (1, 2))
        region = torch.zeros(1, h, w, 1)
        region[:, -size:-shift] += 1
        region[:, -shift:] += 2
        region[:, :, -size:-shift] += 3
        region[:, :, -shift:] += 6
        region = windows(region).squeeze(-1)
        mask = (region[:, None] != region[:, :, None]).to(x.dtype) * -100
        q, k, v = m.qkv(windows(y)).chunk(3, -1)
        bias = m.table[m.number].permute(2, 0, 1) + mask.repeat(b, 1, 1)[:, None]
        y = m.out(_attended(q, k, v, 2, bias))
        y = y.view(b, h // size, w // size, size, size, c).permute(0, 1, 3, 2, 4, 5)
        return x + torch.roll(y.reshape(b, h, w, c), (shift, shift), (1, 2))

    made = Wrapped(
        run,
        norm=nn.LayerNorm(8),
        qkv=nn.Linear(8, 24),
        out=nn.Linear(8, 8),
        table=nn.Parameter(torch.randn((2 * size - 1) ** 2, 2) * 0.1),
    )
    made.register_buffer("number", number)
    return made, (torch.randn(2, 8, 12, 8),)


def unet_attention() -> Made:
    """A step of diffusion: time embedding, group norm, attention in the middle."""

    def run(m: Any, x: Any, t: Any) -> Any:
        rate = torch.exp(-torch.arange(4) * (9.2 / 4))
        angle = t[:, None] * rate
        when = m.time(torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype))
        a = F.silu(m.n1(m.first(x))) + when[:, :, None, None]
        b = F.silu(m.second(F.avg_pool2d(a, 2)))
        flat = b.flatten(2).transpose(1, 2)
        flat = flat + F.scaled_dot_product_attention(*m.qkv(flat).chunk(3, -1))
        b = flat.transpose(1, 2).reshape(b.shape)
        up = F.interpolate(b, scale_factor=2.0, mode="nearest")
        return m.last(torch.cat([a, up], 1))

    made = Wrapped(
        run,
        first=nn.Conv2d(2, 8, 3, padding=1),
        n1=nn.GroupNorm(4, 8),
        time=nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8)),
        second=nn.Conv2d(8, 8, 3, padding=1),
        qkv=nn.Linear(8, 24),
        last=nn.Conv2d(16, 2, 3, padding=1),
    )
    return made, (torch.randn(2, 2, 8, 8), torch.tensor([3.0, 70.0]))


def dense() -> Made:
    """DenseNet: each layer reads all before it."""

    def run(m: Any, x: Any) -> Any:
        for layer in m.layers:
            x = torch.cat([x, layer(x)], 1)
        return F.avg_pool2d(m.last(F.relu(m.norm(x))), 2)

    layers = [
        nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, 3, 3, padding=1, bias=False))
        for n in (4, 7, 10)
    ]
    made = Wrapped(
        run, layers=nn.ModuleList(layers), norm=nn.BatchNorm2d(13), last=nn.Conv2d(13, 6, 1)
    )
    return made, image(4, 9, 7)


def inception() -> Made:
    """Branches of unlike windows side by side."""

    def run(m: Any, x: Any) -> Any:
        pooled = m.d(F.max_pool2d(x, 3, 1, 1))
        return m.head(torch.cat([m.a(x), m.b(x), m.c(x), pooled], 1).amax((2, 3)))

    made = Wrapped(
        run,
        a=normed(5, 3, 1),
        b=nn.Sequential(normed(5, 2, 1), normed(2, 4, 3, padding=1)),
        c=nn.Sequential(normed(5, 2, 1), normed(2, 3, 5, padding=2)),
        d=normed(5, 2, 1),
        head=nn.Linear(12, 4),
    )
    return made, image(5, 8, 9)


def shuffle() -> Made:
    """ShuffleNet: half of the channels pass, then all are mixed."""

    def run(m: Any, x: Any) -> Any:
        kept, changed = x.chunk(2, 1)
        x = torch.cat([kept, m.body(changed)], 1)
        b, c, h, w = x.shape
        return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)

    body = nn.Sequential(normed(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4), normed(4, 4, 1))
    return Wrapped(run, body=body), image(8, 7, 7)


def mixer() -> Made:
    """MLP-Mixer: products over places, then over channels."""

    def run(m: Any, x: Any) -> Any:
        x = m.patch(x).flatten(2).transpose(1, 2)
        x = x + m.places(m.n1(x).transpose(1, 2)).transpose(1, 2)
        return (x + m.channels(m.n2(x))).mean(1)

    def mlp(n: int) -> Any:
        return nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))

    made = Wrapped(
        run,
        patch=nn.Conv2d(3, 10, 4, 4),
        n1=nn.LayerNorm(10),
        n2=nn.LayerNorm(10),
        places=mlp(16),
        channels=mlp(10),
    )
    return made, image()


def generator() -> Made:
    """DCGAN's generator: transposed convolutions up to an image."""
    layers = [
        nn.ConvTranspose2d(7, 8, 4, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 4, 2, 1, bias=False),
        nn.InstanceNorm2d(4, affine=True),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1),
        nn.Tanh(),
    ]
    return nn.Sequential(*layers), (torch.randn(3, 7, 1, 1),)


def upscaler() -> Made:
    """Super resolution by moving channels into the plane, over a resized image."""

    def run(m: Any, x: Any) -> Any:
        y = F.pixel_shuffle(m.last(torch.tanh(m.first(x))), 2)
        return y + F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)

    made = Wrapped(run, first=nn.Conv2d(1, 6, 5, padding=2), last=nn.Conv2d(6, 4, 3, padding=1))
    return made, image(1, 7, 5)


def volume() -> Made:
    """Convolutions and pools of volumes."""
    layers = [
        nn.Conv3d(2, 4, 3, padding=1),
        nn.BatchNorm3d(4),
        nn.ELU(),
        nn.MaxPool3d(2),
        nn.Conv3d(4, 4, (1, 3, 3)),
        nn.GroupNorm(2, 4),
        nn.Hardswish(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ]
    return nn.Sequential(*layers), (torch.randn(2, 2, 6, 8, 10),)


def points() -> Made:
    """PointNet: a function of each point, the largest over all, and a learnt transform."""

    def run(m: Any, x: Any) -> Any:
        turn = m.turn(m.look(x).amax(2)).view(-1, 3, 3) + torch.eye(3, dtype=x.dtype)
        x = torch.bmm(x.transpose(1, 2), turn).transpose(1, 2)
        return F.log_softmax(m.head(m.body(x).max(2)[0]), -1)

    def seen(width: int) -> Any:
        return nn.Sequential(nn.Conv1d(3, width, 1), nn.BatchNorm1d(width), nn.ReLU())

    made = Wrapped(run, look=seen(6), turn=nn.Linear(6, 9), body=seen(10), head=nn.Linear(10, 4))
    return made, (torch.randn(3, 3, 17),)


def pyramid() -> Made:
    """Feature pyramid with a head for boxes, as detectors have it."""

    def run(m: Any, x: Any) -> Any:
        fine = m.one(x)
        coarse = m.two(fine)
        merged = m.side(fine) + F.interpolate(coarse, size=fine.shape[-2:], mode="nearest")
        found = [m.head(each).flatten(2).transpose(1, 2) for each in (merged, coarse)]
        boxes = torch.cat(found, 1)
        middle, size, score = boxes.split([2, 2, 3], -1)
        return torch.cat([middle.sigmoid() * 2 - 0.5, size.clamp(max=3).exp(), score.sigmoid()], -1)

    made = Wrapped(
        run,
        one=normed(3, 6, 3, stride=2, padding=1),
        two=normed(6, 6, 3, stride=2, padding=1),
        side=nn.Conv2d(6, 6, 1),
        head=nn.Conv2d(6, 7, 3, padding=1),
    )
    return made, image()


def field() -> Made:
    """A radiance field: frequencies of positions, an MLP, colours added up along a ray."""

    def run(m: Any, x: Any) -> Any:
        rate = 2.0 ** torch.arange(3)
        angle = (x[..., None] * rate).flatten(-2)
        found = m.net(torch.cat([x, angle.sin(), angle.cos()], -1).to(x.dtype))
        density, colour = F.softplus(found[..., 0]), found[..., 1:].sigmoid()
        opaque = 1 - torch.exp(-density * 0.1)
        through = torch.cumprod(1 - opaque + 1e-6, -1)
        left = torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], -1)
        return ((opaque * left)[..., None] * colour).sum(1)

    net = nn.Sequential(nn.Linear(21, 16), nn.ReLU(), nn.Linear(16, 4))
    return Wrapped(run, net=net), (torch.randn(5, 9, 3),)


def pooled_descriptor() -> Made:
    """NetVLAD: soft assignment to centres, normed twice."""

    def run(m: Any, x: Any) -> Any:
        x = F.normalize(x, dim=1)
        soft = m.assign(x).flatten(2).softmax(1)
        rest = x.flatten(2)[:, None] - m.centres[None, :, :, None]
        found = F.normalize((rest * soft[:, :, None]).sum(-1), dim=2)
        return F.normalize(found.flatten(1), dim=1)

    made = Wrapped(
        run, assign=nn.Conv2d(6, 4, 1, bias=False), centres=nn.Parameter(torch.randn(4, 6))
    )
    return made, image(6, 5, 4)


VISION: dict[str, Callable[[], Made]] = {
    each.__name__: each
    for each in (
        bottleneck,
        efficient,
        convnext,
        vit,
        swin,
        unet_attention,
        dense,
        inception,
        shuffle,
        mixer,
        generator,
        upscaler,
        volume,
        points,
        pyramid,
        field,
        pooled_descriptor,
    )
}
"""Each name with a function that makes the model and its arguments."""
