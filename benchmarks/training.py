"""One training update of `tiny`'s shape: ropewalk's loop body against a plain loop over transformers' Llama.

Gate: from the same weights both compute the same loss (float32, within 1e-4) and the same gradient norm (within 0.1 %).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import transformers

from ropewalk.bench.record import append, environment, results_file
from ropewalk.bench.timing import Timed, interleave
from ropewalk.checkpoints.load import write_config
from ropewalk.models.decoder import Decoder
from ropewalk.training.data import Batch
from ropewalk.training.objective import next_token_loss
from ropewalk.training.optimizer import make_optimizer
from ropewalk.training.settings import TrainSettings

SETTINGS = TrainSettings(text=("-",))


def ours(batch: Batch, precision: str) -> tuple[Decoder, Callable[[], tuple[float, float]]]:
    """The model, and one update as `ropewalk train` does it."""
    torch.manual_seed(0)
    model = Decoder(SETTINGS.decoder_config(SETTINGS.vocab_size)).train()
    optimizer = make_optimizer(model, SETTINGS)

    def update() -> tuple[float, float]:
        loss = next_token_loss(model, batch, precision=precision)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), norm.item()

    return model, update


def theirs(batch: Batch, precision: str, twin: Decoder) -> Callable[[], tuple[float, float]]:
    """The same update as a plain loop over LlamaForCausalLM, as one would write it."""
    config = transformers.LlamaConfig(**{k: v for k, v in write_config(twin.config).items() if k != "architectures"})
    model = transformers.LlamaForCausalLM(config).train()
    missing = model.model.load_state_dict(twin.state_dict(), strict=False)
    if missing.missing_keys or missing.unexpected_keys:
        raise SystemExit(f"the twin's weights do not fit: {missing}")
    rates = {"lr": SETTINGS.lr, "betas": (SETTINGS.beta1, SETTINGS.beta2), "weight_decay": SETTINGS.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), **rates)
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ids = torch.randint(0, SETTINGS.vocab_size, (SETTINGS.batch_size, SETTINGS.seq_len + 1))
    batch = Batch(ids[:, :-1], ids[:, 1:], None)
    timed = []
    for precision in ("float32", "bfloat16"):
        model, mine = ours(batch, precision)
        plain = theirs(batch, precision, model)
        (loss, norm), (their_loss, their_norm) = mine(), plain()
        loose = 1 if precision == "float32" else 100
        if abs(loss - their_loss) > 1e-4 * loose or abs(norm / their_norm - 1) > 1e-3 * loose:
            raise SystemExit(f"{precision}: loss {loss} and {their_loss}, norm {norm} and {their_norm}; not timed.")
        timed += [Timed(f"ropewalk {precision}", [mine]), Timed(f"transformers {precision}", [plain])]
    result = interleave(timed, seconds=arguments.seconds, least=3)
    speeds = {name: round(batch.tokens / times["p50"] * 1e6) for name, times in result.items()}
    record = {"case": "tiny, 16 x 256 tokens", "microseconds": result, "tokens_per_second": speeds, **environment()}
    append(results_file("training.jsonl"), record)
    for name, speed in speeds.items():
        print(f"{name:<24} {speed:>7,} tokens/s")


if __name__ == "__main__":
    main()
