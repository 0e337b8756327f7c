"""What each extension method costs: prefill and decode beside plain, in turns, and memory: of the cache and beside it.

A decoder of SmolLM2-135M's layers (9 query heads, 3 key heads of 64, float32; random weights) is held to have
been trained to a quarter of `--tokens`. Prefill reads that many tokens in chunks of 1,024; decode adds one token behind
them. The gate: the logits of the last token after decode equal those of one pass over all tokens, or nothing is
recorded. Times are processor time of one thread, so that ratios hold on a busy machine; the record has each method's
medians, their ratios to plain's, and the load. `crop` is not timed: it is plain, over fresh windows. Temporary memory
is what torch has allocated at most during a prefill, beside weights and the cache. Usage:

    python benchmarks/method_costs.py [--tokens 4096] [--layers 1] [--seconds 60]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from records import environment
from timing import Call, Timed, interleave
from torch import Tensor

from ropewalk.atomic_io import write_json
from ropewalk.methods import METHODS, Reach
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.rope.config import RopeConfig

CHUNK, VOCABULARY = 1024, 256
CLOSE = 1e-4  # of the largest logit, in float32


def main() -> None:
    """Gate, time and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="of prefill, and of decode")
    parser.add_argument("--least", type=int, default=5, help="samples of each method")
    parser.add_argument("--record", type=Path, default=Path("benchmarks/results/method-costs.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    reach = Reach(options.tokens // 4, options.tokens)
    ids = torch.randint(0, VOCABULARY, (1, options.tokens + 1), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        models = methods_of(made(options.layers, reach), reach)
        temporary = {name: temporary_bytes(model, ids[:, :-1]) for name, model in models.items()}
        caches = {name: filled(model, ids[:, :-1]) for name, model in models.items()}
        for name, model in models.items():
            gate(name, model, caches[name], ids)
        prefill = [Timed(name, [partial(filled, model, ids[:, :-1])]) for name, model in models.items()]
        decode = [Timed(name, [partial(step, model, caches[name], ids[:, -1:])]) for name, model in models.items()]
        times = {
            kind: interleave(timed, seconds=options.seconds, least=options.least, clock=processor_clock)
            for kind, timed in (("prefill", prefill), ("decode", decode))
        }
    ratios = {kind: {name: round(of["p50"] / found["plain"]["p50"], 3) for name, of in found.items()}
              for kind, found in times.items()}  # fmt: skip
    methods = {
        name: {"cache_bytes": caches[name].nbytes, "temporary_bytes": temporary[name],
               **{kind: {**found[name], "ratio": ratios[kind][name]} for kind, found in times.items()}}
        for name in models
    }  # fmt: skip
    settings = {"tokens": options.tokens, "trained_length": reach.trained, "layers": options.layers, "dtype": "float32"}
    write_json(options.record, {"kind": "method-costs", **settings, **environment(), "methods": methods})


def processor_clock(calls: Sequence[Call]) -> float:
    """Microseconds of processor time that the calls took together: one thread's, whoever else has the machine."""
    begun = time.process_time()
    for call in calls:
        call()
    return (time.process_time() - begun) * 1e6


def made(layers: int, reach: Reach) -> Decoder:
    """The decoder: SmolLM2-135M's attention and MLP, random weights."""
    torch.manual_seed(0)
    rope = RopeConfig(64, interleaved=False, theta=100_000.0, max_position_embeddings=reach.trained)
    config = DecoderConfig(
        vocab_size=VOCABULARY, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, rope=rope, initializer_range=0.1,
    )  # fmt: skip
    return Decoder(config).eval()


def methods_of(model: Decoder, reach: Reach) -> dict[str, Decoder]:
    """The model under every method that reads whole windows."""
    names = [name for name, method in METHODS.items() if not method.crops and name != "as-is"]
    under = {name: METHODS[name].positions(model.config.positions, reach) for name in names}
    return {name: model.with_positions(rope=one.ropes, extension=one.extensions) for name, one in under.items()}


def filled(model: Decoder, ids: Tensor) -> Any:
    """A cache that holds the tokens, read in chunks, with room for one more."""
    tokens = ids.shape[1]
    cache = model.new_cache(seq_len=tokens + 1, capacity=tokens + 1)
    for part in torch.split(ids, CHUNK, dim=1):
        model.hidden_states(part, cache=cache)
    return cache


def temporary_bytes(model: Decoder, ids: Tensor) -> int:
    """What torch has allocated at most during a prefill, less the cache."""
    filled(model, ids[:, :8])
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        cache = filled(model, ids)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(sizes)) - int(cache.nbytes)


def step(model: Decoder, cache: Any, last: Tensor) -> Tensor:
    """Logits `[vocab]` after one more token, which is forgotten again."""
    before = int(max(cache.lengths))
    logits: Tensor = model(last, cache=cache)[0, -1]
    cache.truncate(before)
    return logits


def gate(name: str, model: Decoder, cache: Any, ids: Tensor) -> None:
    """Raise AssertionError if decoding does not give what one pass over all tokens does: nothing is recorded."""
    whole = model(ids, seq_len=ids.shape[1])[0, -1]
    apart = float((step(model, cache, ids[:, -1:]) - whole).abs().max() / whole.abs().max())
    assert apart < CLOSE, f"{name}: decoding differs from one pass over all tokens by {apart:g} of the largest logit"


if __name__ == "__main__":
    main()
