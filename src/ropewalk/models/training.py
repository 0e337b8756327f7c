"""Train a model from scratch: windows of text, the next-token loss, and one loop of AdamW updates."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.atomic_io import write_whole
from ropewalk.errors import RopeError, check_kind
from ropewalk.models.decoder import Decoder
from ropewalk.models.norm import evaluating
from ropewalk.precision import to_float64
from ropewalk.rope.values import check_positive, check_whole, checked

SAVE_SECONDS = 120.0
"""Time between two writes of `state`."""
AT_ONCE = 8192  # tokens whose logits `loss_by_position` has at one time


@checked
def learning_rate(step: int, *, peak: float, warmup: int, steps: int, final: float) -> float:
    """Return the learning rate of update `step`, counted from 0.

    It rises linearly over `warmup` updates to `peak`, then falls along half a cosine to `final` * peak at the last of
    `steps` updates.

    Source: Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts.

    >>> [round(learning_rate(step, peak=1.0, warmup=2, steps=6, final=0.0), 2) for step in range(6)]
    [0.5, 1.0, 0.85, 0.5, 0.15, 0.0]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup + 1) / max(1, steps - warmup)
    return peak * (final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done))))


@checked
def fit(
    model: nn.Module,
    loss: Callable[[int], Tensor],
    *,
    steps: int,
    lr: float = 3e-3,
    warmup: int | None = None,
    final_lr: float = 0.1,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
    clip: float = 1.0,
    after: Callable[[int, float], bool | None] | None = None,
    state: Path | None = None,
) -> list[float]:
    """Train a model with AdamW, and return the loss of each update.

    **Arguments:**
    - `model`: parameters that require gradients are trained, in their own dtype.
    - `loss`: called with the number of each update, from 0. It returns the loss to minimise, a scalar with gradients,
      and determines batch, precision and dropout.
    - `steps`: number of updates. `lr`: the peak of `learning_rate`, after `warmup` updates (None: a twentieth of all,
      at most 200). `final_lr`: the last rate, as a fraction of the peak.
    - `weight_decay`: of matrices; vectors have none. `betas`: AdamW's. `clip`: largest norm of the gradient.
    - `after`: called after each update with the number of updates so far and the loss. If it returns True, training
      ends.
    - `state`: a file for weights, optimizer, random generators and losses, written every two minutes and at the end. If
      it exists, training resumes from it. If `loss` depends only on its argument and on torch's generators, the result
      has the same bits as that of a run that was not stopped, on the same machine with the same number of threads.

    **Raises:** `RopeError` if a loss or a gradient is not finite, and if `state` is from a run with other settings.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101.

    >>> line = nn.Linear(1, 1, bias=False)
    >>> losses = fit(line, lambda step: (line(torch.ones(1)) - 2).square().sum(), steps=200, lr=0.1, weight_decay=0.0)
    >>> round(line.weight.item(), 2)
    2.0
    """
    check_whole("fit", least=0, steps=steps, warmup=warmup)
    check_positive("fit", lr=lr)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    matrices, others = ([weight for weight in trained if (weight.ndim >= 2) == kind] for kind in (True, False))
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)
    warmup = min(200, steps // 20) if warmup is None else warmup
    settings = {"steps": steps, "lr": lr, "warmup": warmup, "final_lr": final_lr, "weight_decay": weight_decay,
                "betas": list(betas), "clip": clip}  # fmt: skip
    losses: list[float] = []
    if state is not None and state.is_file():
        losses, ended = _resume(state, model, optimizer, settings)
        if ended:
            return losses
    saved = time.monotonic()
    for step in range(len(losses), steps):
        mean = loss(step)
        _check_finite("loss", mean, step)
        mean.backward()  # type: ignore[no-untyped-call]
        _check_finite("gradient norm", nn.utils.clip_grad_norm_(trained, clip), step)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, peak=lr, warmup=warmup, steps=steps, final=final_lr)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(mean.item())
        ended = bool(after is not None and after(step + 1, losses[-1])) or step + 1 == steps
        if state is not None and (ended or time.monotonic() - saved > SAVE_SECONDS):
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            _save(state, settings=settings, losses=losses, ended=ended, **parts)
            saved = time.monotonic()
        if ended:
            break
    return losses


def _check_finite(name: str, value: Tensor, step: int) -> None:
    if not math.isfinite(value.item()):
        raise RopeError(
            f"fit: the {name} is not finite; training stops before the weights are updated.",
            facts={name: value.item(), "update": step + 1},
            cure="Pass a smaller `lr` or a longer `warmup`, or compute the loss in float32.",
        )


def _save(path: Path, **content: Any) -> None:
    """Write the state of a run and of torch's generators into one file, which is replaced as a whole."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    buffer = io.BytesIO()
    torch.save({**content, "random": torch.get_rng_state(), "random_cuda": cuda}, buffer)
    write_whole(path, buffer.getvalue())


def _resume(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, settings: dict[str, Any]
) -> tuple[list[float], bool]:
    """Restore what `_save` wrote; return the losses so far, and whether the run has ended."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    before = content["settings"]
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    stored = {name: list(value.shape) for name, value in content["model"].items()}
    changed = {name: f"{before.get(name)}, now {now}" for name, now in settings.items() if before.get(name) != now}
    if changed or shapes != stored:
        raise RopeError(
            "fit: `state` is from a run with other settings.",
            facts={"state": str(path), **(changed or {"parameters": "other names or shapes"})},
            cure="Pass the same settings to resume it, or remove the file to start over.",
        )
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    torch.set_rng_state(content["random"])
    if content["random_cuda"]:
        torch.cuda.set_rng_state_all(content["random_cuda"])
    return content["losses"], content["ended"]


class Batch(NamedTuple):
    """Windows of tokens: `inputs` and the next tokens, `targets`, int64 `[windows, seq]`.

    `document_ids`: int64 `[windows, seq]`; None if every window lies within one document.
    """

    inputs: Tensor
    targets: Tensor
    document_ids: Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on another device."""
        return Batch(*(None if part is None else part.to(device) for part in self))  # type: ignore[arg-type]


class TextWindows:
    """Shuffled windows of concatenated documents, epoch after epoch, determined by `seed` and the window's number.

    The tokens form a circle. Each epoch shifts the grid of windows by a random number of tokens below `length`, and
    visits its ceil(tokens / length) windows in random order. Every token is a target at least once per epoch. No state
    is kept between calls, so a resumed run has the same windows as one that was not stopped.

    **Arguments:**
    - `documents`: token ids, one sequence for each document. `length`: tokens of a window.

    **Raises:** `RopeError` if there are fewer than `length` + 1 tokens.

    >>> windows = TextWindows([range(10)], length=4, seed=0)
    >>> windows.per_epoch, sorted(set(windows.batch(0, 3).targets.flatten().tolist()))
    (3, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    @checked
    def __init__(self, documents: Sequence[Sequence[int]], *, length: int, seed: int) -> None:
        self.tokens = torch.from_numpy(np.concatenate([np.asarray(one, dtype=np.int64) for one in documents]))
        # of the documents in two rounds of the circle, so that a window's wrapped part has ids of its own
        lengths = [len(one) for one in documents]
        self.starts = torch.tensor([0, *lengths, *lengths]).cumsum(0)
        if len(self.tokens) < length + 1:
            raise RopeError(
                "TextWindows: the text is shorter than one window.",
                facts={"tokens": len(self.tokens), "length + 1": length + 1},
                cure="Pass more text, or a smaller `length`.",
            )
        self.length, self.seed = length, seed
        self.per_epoch = -(-len(self.tokens) // length)

    def batch(self, first: int, count: int) -> Batch:
        """Return windows number `first` to `first + count` of the endless sequence."""
        starts: list[int] = []
        for epoch, numbers in groupby(range(first, first + count), lambda number: number // self.per_epoch):
            random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            order, shift = random.permutation(self.per_epoch), int(random.integers(self.length))
            starts += [int(order[number % self.per_epoch]) * self.length + shift for number in numbers]
        size = len(self.tokens)
        indices = torch.tensor(starts)[:, None] % size + torch.arange(self.length + 1)
        documents = torch.searchsorted(self.starts, indices, right=True)[:, :-1]
        spans = bool((documents != documents[:, :1]).any())
        tokens = self.tokens[indices % size]
        return Batch(tokens[:, :-1], tokens[:, 1:], documents if spans else None)


@checked
def split_text(text: str, fraction: float) -> tuple[str, str]:
    r"""Split off the last `fraction` of the characters for validation, after the end of a line if one is near.

    >>> split_text("one\ntwo\nthree\nfour\n", 0.3)
    ('one\ntwo\nthree\n', 'four\n')
    """
    cut = int(len(text) * (1.0 - fraction))
    cut = text.find("\n", cut, cut + 1000) + 1 or cut
    return text[:cut], text[cut:]


@checked
def held_out_windows(documents: Sequence[Sequence[int]], *, length: int, limit: int) -> Tensor:
    """Return up to `limit` windows, evenly spread over the documents: token ids, int64 `[windows, length + 1]`.

    No window spans two documents, and no token is the target of two windows.

    **Raises:** `RopeError` if no document contains a whole window.

    >>> held_out_windows([range(7), range(10, 14)], length=3, limit=9).tolist()
    [[0, 1, 2, 3], [3, 4, 5, 6], [10, 11, 12, 13]]
    """
    windows = [one[start : start + length + 1] for one in documents for start in range(0, len(one) - length, length)]
    if not windows:
        raise RopeError(
            "held_out_windows: no document is as long as one window.",
            facts={"longest document": max(map(len, documents), default=0), "length + 1": length + 1},
            cure="Pass a longer text to validate on, or a smaller `length`.",
        )
    count = min(limit, len(windows))
    return torch.tensor([list(windows[i * len(windows) // count]) for i in range(count)])


def next_token_loss(model: Decoder, batch: Batch) -> Tensor:
    """Return the mean loss of a batch in nats per token, a float32 scalar with gradients.

    >>> from ropewalk.checkpoints.load import load
    >>> ids = torch.arange(40)[None]
    >>> bool(next_token_loss(load("tiny", dtype=torch.float32), Batch(ids[:, :-1], ids[:, 1:])) > 4)
    True
    """
    check_kind("next_token_loss", nn.Module, "Pass a Decoder.", model=model)
    check_kind("next_token_loss", Batch, "Pass TextWindows.batch(...), or Batch(inputs, targets).", batch=batch)
    seq_len = batch.inputs.shape[1] if model.config.needs_seq_len else None
    logits = model(batch.inputs, document_ids=batch.document_ids, seq_len=seq_len)
    return F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten())


@torch.no_grad()
def loss_by_position(model: Decoder, windows: Tensor) -> Tensor:
    """Return the mean loss at each position in nats, float64 `[seq]` on the CPU, with dropout off.

    `windows`: token ids, int64 `[windows, seq + 1]`, as from `held_out_windows`.
    """
    check_kind("loss_by_position", nn.Module, "Pass a Decoder.", model=model)
    check_kind("loss_by_position", Tensor, "Pass held_out_windows(...).", windows=windows)
    if windows.ndim != 2 or windows.shape[1] < 2:
        raise RopeError(
            "loss_by_position: `windows` must be [windows, seq + 1].",
            facts={"windows": windows},
            cure="Pass held_out_windows(...).",
        )
    length = windows.shape[1] - 1
    total = torch.zeros(length, dtype=torch.float64)
    seq_len = length if model.config.needs_seq_len else None
    with evaluating(model):
        for rows in torch.split(windows, max(1, AT_ONCE // length)):
            logits = model(rows[:, :-1], seq_len=seq_len).float()
            losses = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
            total += to_float64(losses).view(len(rows), length).sum(0).cpu()
    return total / len(windows)
