"""Models in their published configurations, with random weights: each a function that makes the
model and what it is called with.  The libraries that define them are imported when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

torch: Any = importlib.import_module("torch")
Made = tuple[Any, tuple[Any, ...]]


def _vision(name: str, batch: int = 32, side: int = 224) -> Callable[[], Made]:
    def make() -> Made:
        models: Any = importlib.import_module("torchvision.models")
        return getattr(models, name)(weights=None), (torch.randn(batch, 3, side, side),)

    return make


def _words(
    name: str, tokens: tuple[int, int], below: int, model: str = "Model", **changed: Any
) -> Callable[[], Made]:
    """A model of `transformers`, called with tokens."""

    def make() -> Made:
        library: Any = importlib.import_module("transformers")
        config = getattr(library, f"{name}Config")(**changed)
        config.use_cache = False
        return getattr(library, f"{name}{model}")(config), (torch.randint(0, below, tokens),)

    return make


class First(torch.nn.Module):
    """The first result of a model, which is called with tokens as both of its sequences."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Any) -> Any:
        return self.model(input_ids=ids, decoder_input_ids=ids).last_hidden_state


def _translator() -> Made:
    library: Any = importlib.import_module("transformers")
    model = library.T5Model(library.T5Config(use_cache=False))
    return First(model), (torch.randint(0, 32128, (8, 512)),)


class Heard(torch.nn.Module):
    """The encoder of a model of speech."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.encoder

    def forward(self, x: Any) -> Any:
        return self.encoder(x).last_hidden_state


def _speech() -> Made:
    library: Any = importlib.import_module("transformers")
    config = library.WhisperConfig(
        d_model=512, encoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8
    )
    return Heard(library.WhisperModel(config)), (torch.randn(8, 80, 3000),)


class Clicks(torch.nn.Module):
    """A recommender: 26 tables, their pairwise products, two stacks of layers."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        nn = torch.nn
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.low = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)
        )
        count = tables + 1
        self.high = nn.Sequential(
            nn.Linear(count * (count - 1) // 2 + width, 512), nn.ReLU(), nn.Linear(512, 1)
        )
        self.register_buffer("pairs", torch.triu_indices(count, count, 1))

    def forward(self, x: Any, ids: Any) -> Any:
        low = self.low(x)
        every = torch.stack([low, *(t(ids[:, n]) for n, t in enumerate(self.tables))], 1)
        products = (every @ every.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.high(torch.cat([low, products], 1)))


def _clicks() -> Made:
    return Clicks(), (torch.randn(4096, 13), torch.randint(0, 100_000, (4096, 26)))


LLAMA: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
MODELS: dict[str, Callable[[], Made]] = {
    "resnet50": _vision("resnet50"),
    "mobilenet_v3_large": _vision("mobilenet_v3_large"),
    "efficientnet_b0": _vision("efficientnet_b0"),
    "convnext_tiny": _vision("convnext_tiny"),
    "vit_b_16": _vision("vit_b_16"),
    "swin_t": _vision("swin_t"),
    "densenet121": _vision("densenet121"),
    "gpt2": _words("GPT2", (8, 1024), 50257),
    "bert": _words("Bert", (16, 512), 30522),
    "llama of 4 layers": _words("Llama", (4, 1024), 32000, **LLAMA),
    "t5 small": _translator,
    "whisper encoder": _speech,
    "recommender": _clicks,
}
