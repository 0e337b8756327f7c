"""One training update: ropewalk's loop body against a plain loop over transformers' Llama, in turns.

Of `tiny`'s shape with new weights, 16 windows of 256 tokens, in float32 and in bfloat16 (autocast on both sides); or of
all weights of `--model`, one window of `--tokens`, in bfloat16: the bar of issue 13 is 0.7 at 2,048 tokens of SmolLM2.
Both use the fused AdamW. Gate: from the same weights both compute the same loss (float32: within 1e-4) and the same
gradient norm (within 0.1 %), both a hundred times wider in bfloat16. The record is appended to
`results/training.jsonl`. Usage:

    python benchmarks/training.py [--seconds 40]
    python benchmarks/training.py --model FILE.gguf --tokens 2048
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from records import RESULTS, append, environment
from timing import Timed, interleave

from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load_decoder, write_config
from ropewalk.models.decoder import Decoder
from ropewalk.training.data import Batch
from ropewalk.training.loop import make_optimizer
from ropewalk.training.objective import next_token_loss
from ropewalk.training.settings import TrainSettings

SETTINGS = TrainSettings(text=("-",))


def ours(model: Decoder, batch: Batch, precision: str) -> Callable[[], tuple[float, float]]:
    """One update as `ropewalk train` does it."""
    optimizer = make_optimizer(model.train(), SETTINGS)

    def update() -> tuple[float, float]:
        loss = next_token_loss(model, batch, precision=precision)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), norm.item()

    return update


def theirs(batch: Batch, precision: str, twin: Decoder) -> Callable[[], tuple[float, float]]:
    """The same update as a plain loop over LlamaForCausalLM, as one would write it."""
    config = transformers.LlamaConfig(**{k: v for k, v in write_config(twin.config).items() if k != "architectures"})
    model = transformers.LlamaForCausalLM(config).train()
    missing = model.model.load_state_dict(twin.state_dict(), strict=False)
    if missing.missing_keys or missing.unexpected_keys:
        raise SystemExit(f"the twin's weights do not fit: {missing}")
    rates = {"lr": SETTINGS.lr, "betas": (SETTINGS.beta1, SETTINGS.beta2), "weight_decay": SETTINGS.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **rates)
    rows = torch.cat([batch.inputs, batch.targets[:, -1:]], 1)

    def update() -> tuple[float, float]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), norm.item()

    return update


def main() -> None:
    """Gate, time and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--model", default=None, help="a GGUF file or a folder; default new weights of tiny's shape")
    parser.add_argument("--tokens", type=int, default=2048, help="of the window of --model")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.model is None:
        name, shape, precisions = "tiny", (SETTINGS.batch_size, SETTINGS.seq_len), ("float32", "bfloat16")
    else:
        name, shape, precisions = Path(arguments.model).name, (1, arguments.tokens), ("bfloat16",)
    timed = []
    for precision in precisions:
        torch.manual_seed(0)
        model = (
            Decoder(SETTINGS.decoder_config(SETTINGS.vocab_size))
            if arguments.model is None
            else load_decoder(arguments.model)
        )
        ids = torch.randint(0, model.config.vocab_size, (shape[0], shape[1] + 1))
        if model.tokenizer is not None:
            ids = torch.tensor([model.tokenizer.encode(read_text(None)[1])[: shape[1] + 1]])
        batch = Batch(ids[:, :-1], ids[:, 1:], None)
        plain, mine = theirs(batch, precision, model), ours(model, batch, precision)
        (loss, norm), (their_loss, their_norm) = mine(), plain()
        loose = 1 if precision == "float32" else 100
        if (
            abs(loss - their_loss) > 1e-4 * loose * max(1.0, their_loss / 4)
            or abs(norm / their_norm - 1) > 1e-3 * loose
        ):
            raise SystemExit(f"{precision}: loss {loss} and {their_loss}, norm {norm} and {their_norm}; not timed.")
        timed += [Timed(f"ropewalk {precision}", [mine]), Timed(f"transformers {precision}", [plain])]
    result = interleave(timed, seconds=arguments.seconds, least=3)
    tokens = shape[0] * shape[1]
    speeds = {name: round(tokens / times["p50"] * 1e6) for name, times in result.items()}
    over = {of: round(result[f"ropewalk {of}"]["p50"] / result[f"transformers {of}"]["p50"], 3) for of in precisions}
    record = {
        "case": f"{name}, {shape[0]} x {shape[1]} tokens", "microseconds": result, "tokens_per_second": speeds,
        "over_transformers": over, **environment(),
    }  # fmt: skip
    append(RESULTS / "training.jsonl", record)
    for contender, speed in speeds.items():
        print(f"{contender:<24} {speed:>7,} tokens/s")
    print(f"{record['case']}, over transformers: {over}")


if __name__ == "__main__":
    main()
