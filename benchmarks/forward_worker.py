"""One contender of `forward.py` in a process of its own: what it reads, it is told by JSON; what it finds, it prints.

`ropewalk` may be another version of it: `source` is put before the module path, and nothing of it is imported earlier.
"""

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

ROWS = 256  # logits of so many tokens exist at one time
SHORT = 4.0  # seconds: a measurement is repeated, three times at most, while it has taken less

Measure = Callable[[torch.Tensor], np.ndarray]


def main() -> None:
    """Load, warm up, measure, print."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    if task.get("source"):
        sys.path.insert(0, task["source"])
    if task.get("threads"):
        torch.set_num_threads(task["threads"])
    folder, device, dtype = Path(task["folder"]), task["device"], getattr(torch, task["dtype"])
    if task["contender"] == "matrix product":
        print(json.dumps({"gflops": matrix_product(dtype, device)}))
        return
    ids = torch.from_numpy(np.load(folder / "ids.npy")[: task["tokens"]]).to(device)
    if task["contender"] == "gate":
        gate(folder, ids, task["lengths"])
        return
    make = theirs if task["contender"].startswith("transformers") else ours
    measure = make(folder, task, dtype)
    measure(ids if device != "cpu" else ids[:ROWS])
    loaded, seconds = peak(device), list[float]()
    while not seconds or (len(seconds) < 3 and sum(seconds) < SHORT):
        began = time.perf_counter()
        losses = measure(ids)
        seconds.append(time.perf_counter() - began)
    np.save(task["out"], losses)
    print(json.dumps({"seconds": seconds, "peak_bytes": peak(device), "peak_bytes_loaded": loaded}))


def ours(folder: Path, task: dict[str, Any], dtype: torch.dtype) -> Measure:
    """ids -> losses, by ropewalk: plain, a method, attention by torch, or another version of the package."""
    if task["contender"] == "baseline":
        from ropewalk.checkpoints.losses import window_losses as measure

        from ropewalk.checkpoints.load import load as load_model

        old = load_model(folder / "model", dtype=dtype)
        return lambda ids: measure(old, ids)  # type: ignore[no-any-return]
    import ropewalk.rotation.backends
    from ropewalk.checkpoints.load import load
    from ropewalk.checkpoints.opening import reader_of
    from ropewalk.methods import METHODS, Reach

    if task["contender"] == "ropewalk-sdpa":
        ropewalk.rotation.backends.ATTENTION = ropewalk.rotation.backends.ATTENTION[1:]
    reader = reader_of(load(folder / "model", dtype=dtype).to(task["device"]))
    if task.get("method"):
        reach = Reach(task["trained"], max(task["tokens"], task["trained"] + 1))
        reader = reader.under(METHODS[task["method"]].positions(reader.positions, reach))
    return lambda ids: reader.window_losses(ids)


def theirs(folder: Path, task: dict[str, Any], dtype: torch.dtype) -> Measure:
    """ids -> losses, by transformers: its base model, then head and losses of a few tokens at a time.

    `transformers-whole` lets it make the logits of all tokens at once, as its own forward does.
    """
    model, device = llama(folder, dtype).to(task["device"]), task["device"]
    whole = task["contender"] == "transformers-whole"

    def measure(ids: torch.Tensor) -> np.ndarray:
        losses = torch.empty(len(ids) - 1, device=device)
        with torch.inference_mode():
            if whole:
                found = model(input_ids=ids[None], use_cache=False).logits[0]
            else:
                found = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
            for row in range(0, len(ids) - 1, ROWS):
                end = min(row + ROWS, len(ids) - 1)
                logits = found[row:end] if whole else model.lm_head(found[row:end])
                losses[row:end] = torch.nn.functional.cross_entropy(
                    logits.float(), ids[row + 1 : end + 1], reduction="none"
                )
        return losses.double().cpu().numpy()

    return measure


def llama(folder: Path, dtype: torch.dtype) -> Any:
    """transformers' own model, with `scaled_dot_product_attention`."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder / "model", dtype=dtype, attn_implementation="sdpa").eval()


def gate(folder: Path, ids: torch.Tensor, lengths: list[int]) -> None:
    """What the others are held against: transformers in float32 with angles formed in float64.

    Writes the losses of all tokens, and the log-probabilities of every next token after each of the lengths.
    """
    model = llama(folder, torch.float32)
    model.model.rotary_emb.forward = exact_angles(model.config)
    losses = torch.empty(len(ids) - 1)
    with torch.inference_mode():
        hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        for row in range(0, len(ids) - 1, ROWS):
            end = min(row + ROWS, len(ids) - 1)
            losses[row:end] = torch.nn.functional.cross_entropy(
                model.lm_head(hidden[row:end]), ids[row + 1 : end + 1], reduction="none"
            )
        after = {f"after_{n}": model.lm_head(hidden[n - 1]).log_softmax(-1).numpy() for n in lengths if n <= len(ids)}
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


def matrix_product(dtype: torch.dtype, device: str, side: int = 2048) -> float:
    """Arithmetic of a square matrix product, 10^9 operations a second: the fastest of many."""
    a, b = (torch.randn(side, side).to(device, dtype) for _ in range(2))
    taken = list[float]()
    while len(taken) < 5 or sum(taken) < 3.0:
        began = time.perf_counter()
        a @ b
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return 2.0 * side**3 / min(taken) / 1e9


def peak(device: str) -> int:
    """The largest resident memory of this process so far, or what torch allocated on the GPU, in bytes."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident()


if __name__ == "__main__":
    main()
