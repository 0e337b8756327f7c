"""One contender of `forward.py` in a process of its own: told by JSON what to compute; it prints what it finds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forward_llama import peak_resident

from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.opening import reader_of
from ropewalk.methods import METHODS, Reach
from ropewalk.rotation import backends

ROWS = 256  # logits of so many tokens exist at one time
SHORT = 4.0  # seconds: a measurement is repeated, three times at most, while it has taken less

Measure = Callable[[torch.Tensor], np.ndarray]


def main() -> None:
    """Load, warm up, measure, print."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    torch.set_num_threads(task["threads"])
    folder, dtype = Path(task["folder"]), getattr(torch, task["dtype"])
    if task["contender"] == "matrix product":
        print(json.dumps({"gflops": matrix_product(dtype)}))
        return
    ids = torch.from_numpy(np.load(folder / "ids.npy")[: task["tokens"]])
    if task["contender"] == "gate":
        gate(folder, ids, task["lengths"])
        return
    measure = theirs(folder, dtype) if task["contender"] == "transformers" else ours(folder, task, dtype)
    measure(ids[:ROWS])
    loaded, seconds = peak_resident(), list[float]()
    while not seconds or (len(seconds) < 3 and sum(seconds) < SHORT):
        began = time.perf_counter()
        losses = measure(ids)
        seconds.append(time.perf_counter() - began)
    np.save(task["out"], losses)
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_resident(), "peak_bytes_loaded": loaded}))


def ours(folder: Path, task: dict[str, Any], dtype: torch.dtype) -> Measure:
    """ids -> losses, by ropewalk: plain, a method, or with attention by torch."""
    if task["contender"] == "ropewalk-sdpa":
        backends.ATTENTION = backends.ATTENTION[1:]
    reader = reader_of(load(folder / "model", dtype=dtype))
    if task.get("method"):
        reach = Reach(task["trained"], max(task["tokens"], task["trained"] + 1))
        reader = reader.under(METHODS[task["method"]].positions(reader.positions, reach))
    return lambda ids: reader.window_losses(ids)


def theirs(folder: Path, dtype: torch.dtype) -> Measure:
    """ids -> losses, by transformers: its base model, then head and losses of a few tokens at a time."""
    model = llama(folder, dtype)
    return lambda ids: losses_of(model, ids)[0].double().numpy()


@torch.inference_mode()
def losses_of(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses `[tokens - 1]` and hidden states of transformers' model."""
    hidden, losses = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0], torch.empty(len(ids) - 1)
    for row in range(0, len(ids) - 1, ROWS):
        end = min(row + ROWS, len(ids) - 1)
        logits = model.lm_head(hidden[row:end]).float()
        losses[row:end] = torch.nn.functional.cross_entropy(logits, ids[row + 1 : end + 1], reduction="none")
    return losses, hidden


def llama(folder: Path, dtype: torch.dtype) -> Any:
    """transformers' own model, with `scaled_dot_product_attention`."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder / "model", dtype=dtype, attn_implementation="sdpa").eval()


@torch.inference_mode()
def gate(folder: Path, ids: torch.Tensor, lengths: list[int]) -> None:
    """What the others are held against: transformers in float32 with angles formed in float64.

    Writes the losses of all tokens, and the log-probabilities of every next token after each of the lengths.
    """
    model = llama(folder, torch.float32)
    model.model.rotary_emb.forward = exact_angles(model.config)
    losses, hidden = losses_of(model, ids)
    after = {f"after_{n}": model.lm_head(hidden[n - 1]).log_softmax(-1).numpy() for n in lengths}
    np.savez(folder / "gate.npz", losses=losses.numpy(), **after)
    print(json.dumps({"tokens": len(ids)}))


def exact_angles(config: Any) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """What a Llama's rotary embedding gives, from angles formed in float64; for ropes without scaling."""
    theta, dim = config.rope_parameters["rope_theta"], config.head_dim
    inv_freq = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * inv_freq.to(position_ids.device)
        both = torch.cat([angles, angles], dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    return forward


def matrix_product(dtype: torch.dtype, side: int = 2048) -> float:
    """Arithmetic of a square matrix product, 10^9 operations a second: the fastest of many."""
    a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
    taken = list[float]()
    while len(taken) < 5 or sum(taken) < 3.0:
        began = time.perf_counter()
        a @ b
        taken.append(time.perf_counter() - began)
    return 2.0 * side**3 / min(taken) / 1e9


if __name__ == "__main__":
    main()
