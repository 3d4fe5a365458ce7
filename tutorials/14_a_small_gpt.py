"""Tutorial 14: a small GPT, compiled, looked at, tuned in one place, and trained.

    python tutorials/14_a_small_gpt.py     # needs PyTorch; the CPU, about a minute

A model of PyTorch's needs one line, `torch.compile(model, backend="tedsl")`.  This tutorial looks
at what that line does: which operators become kernels together, which stay PyTorch's and why, what
a search gains in one place, and that training and growing sequences need nothing more.
"""

# %% Setup
from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from lesson import Lesson, console, title

import tedsl as te

lesson = Lesson.begin(__doc__, ["cpu"])
torch: Any = importlib.import_module("torch")
tt: Any = importlib.import_module("tedsl.torch")
nn: Any = torch.nn
F: Any = torch.nn.functional
torch.manual_seed(0)
WIDTH, HEADS, LAYERS = (64, 4, 2) if not lesson.quick else (32, 2, 1)
LENGTH, BATCH, STEPS = (48, 16, 150) if not lesson.quick else (16, 8, 12)


# %% 1. The model
# As anybody writes it.  Attention is spelled out, so that there is something to look at.
def attention_weights(scores: Any, hidden: Any) -> Any:
    """Softmax of the scores of what is not hidden."""
    return scores.masked_fill(hidden, float("-inf")).softmax(-1)


class Block(nn.Module):
    """Attention and two linear layers, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        """From a batch of sequences to one of the same shape."""
        b, t, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
        found = attention_weights(q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5, hidden) @ v
        x = x + self.out(found.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Letters in, scores of the next letter out."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(256, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, ids: Any) -> Any:
        """Scores for each place."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
alphabet = sorted(set(text))
letters = torch.tensor([alphabet.index(each) for each in text])
model = GPT(len(alphabet))


def batch() -> tuple[Any, Any]:
    """Pieces of the text, and the same one letter on."""
    starts = torch.randint(0, len(letters) - LENGTH - 1, (BATCH,))
    rows = torch.stack([letters[s : s + LENGTH + 1] for s in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


# %% 2. Compiled, and looked at
# `explain` says for each graph which operators are in whose hands.  Products stay with the library,
# which is faster at them on the CPU; what stands between two products becomes one region.
title("what became of the model")
with torch.no_grad():
    console.print(str(tt.explain(model, batch()[0])), soft_wrap=True)

# %% 3. One region, tuned
# The same code that the model runs is traced alone: the weights of attention.  A search measures
# schedules of it, checks each result, and returns a kernel whose schedule is text to be kept.
title("one region, tuned")
scores = torch.randn(BATCH, HEADS, LENGTH, LENGTH)
hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
program = tt.trace(attention_weights, scores, hidden)
found = te.autotune(program, "cpu", trials=lesson.trials, seconds=lesson.seconds / 2)
print(found.schedule.as_python())
rules, tuned = (program.build(each, target="cpu") for each in (None, found.schedule))
lesson.compare_torch(
    "weights of attention",
    {
        "PyTorch eager": lambda: attention_weights(scores, hidden),
        "default rules": lambda: rules(scores, hidden),
        "search": lambda: tuned(scores, hidden),
    },
)

# %% 4. Trained
# One line for the whole model; forward and backward are compiled when they are first needed.  With
# `options={"search": "quick"}` all regions would be tuned as the one above was.
title("training")
report = tt.Report()
compiled = torch.compile(model, backend="tedsl", options={"report": report})
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def step(call: Any, ids: Any, wanted: Any) -> Any:
    """One step of training through `call`; the loss before it."""
    optimizer.zero_grad()
    loss = F.cross_entropy(call(ids).flatten(0, 1), wanted.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


ids, wanted = batch()
torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-3, atol=1e-4)
begin = time.perf_counter()
losses = [float(step(compiled, *batch())) for _ in range(STEPS)]
seconds = time.perf_counter() - begin
print(f"{STEPS} steps in {seconds:.1f} s with compilation")
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
assert losses[-1] < losses[0]
assert not report.faults, report.faults

# %% 5. Sequences that grow
# What is written is read again, one letter longer each time.  PyTorch makes the length a symbol
# when it changes, the kernels take it as a size, and nothing is compiled from the third letter on.
title("writing")
prompt = letters[:8][None]
graphs: list[int] = []
with torch.no_grad():
    for _ in range(LENGTH - 8):
        scores = compiled(prompt)[0, -1]
        prompt = torch.cat([prompt, scores.softmax(-1).multinomial(1)[None]], 1)
        graphs.append(len(report.graphs))
print("".join(alphabet[n] for n in prompt[0].tolist()))
print(f"{len(graphs)} lengths, {graphs[-1] - graphs[2]} graphs compiled after the third")
assert graphs[-1] == graphs[2]

# %% Exercises
# 1. Compile with `options={"products": True}`: which regions are there now, and is it faster?
# 2. Replace `F.gelu` by ReLU squared.  Which region changes, and how many kernels has it?
lesson.done()
