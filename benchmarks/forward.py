"""Times a whole forward with its losses: ours, transformers', llama.cpp's, on the same weights and tokens, in turns.

Each contender is named with its dtype or its file's, and runs in a process of its own:

- `ropewalk bfloat16`, `ropewalk float32`: the doctor's reading of a window under plain; and one under each of
  `--methods` (`dca bfloat16` ...). `ropewalk-sdpa float32`: torch's attention in our kernel's place.
- `transformers bfloat16`, `transformers float32`: its base model with `scaled_dot_product_attention`, then the head and
  the losses of 256 tokens at a time.
- `llama.cpp Q4_1`, `llama.cpp f16`: its prompt processing, by `xllamacpp`; both files are written here from the GGUF
  given, the second with its weights widened. Left out if the package is missing or the model is no GGUF file.

Correctness first: transformers in float32 with float64 angles processes the same tokens once (`--prepare` does only
that), up to 16,384 of them. In float32 every loss of ours must agree with it within 0.005 nats, in bfloat16 the mean of
4,096 or more within 0.005; of a method the tokens that it reads as plain; of llama.cpp the log-probabilities of the
likeliest next tokens. What does not agree is not recorded, and the exit status is 1. To resume, rerun the command; more
`--repeats` add turns. For each length a line is appended to `results/forward.jsonl`: seconds, medians, ratios of
methods to plain, resident memory in bytes, and mean losses.

Usage:

    python benchmarks/forward.py --model FILE.gguf --prepare
    python benchmarks/forward.py --model FILE.gguf --tokens 4096 16384 --methods dca,self-extend,rerope
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from records import CHECKOUT, RESULTS, append, environment, slow_products

from ropewalk.checkpoints.load import load, save
from ropewalk.checkpoints.opening import load_gguf, reader_of
from ropewalk.checkpoints.texts import read_text
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods import METHODS, Reach

HERE = Path(__file__).parent
PLAIN = ("ropewalk bfloat16", "ropewalk float32", "ropewalk-sdpa float32")
PEERS = ("transformers bfloat16", "transformers float32")
LLAMA_AGREED = {"Q4_1": 0.3, "f16": 0.1}  # nats, mean of 20 log-probabilities; it rounds activations to 8 bits
AGREED = 5e-3  # nats, any single loss in float32
MEAN_AGREED = 5e-3, 4096  # nats, the mean loss in bfloat16 of so many tokens; of fewer more, by the root
GATE_TOKENS, LONGEST, START_CHAR = 16_384, 65_536, 30_000


class Run:
    """What is asked: the model, its prepared files, and how contenders are run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.model = options, Path(options.model)
        of_model = fingerprint(self.model.read_bytes() if self.model.is_file() else options.model)
        self.folder = Path(options.state) / f"prepared-{of_model}"
        files = sorted((CHECKOUT / "src" / "ropewalk").rglob("*.py")) + sorted(CHECKOUT.glob("src/ropewalk/_kernels*"))
        source = fingerprint(*(file.read_bytes() for file in files))
        key = fingerprint(of_model, source, torch.__version__, options.threads)
        self.ledger = Ledger(Path(options.state) / f"runs-{key}", kind="forward", key=key)
        self.ledger.resume()
        if not (self.folder / "facts.json").is_file():
            self.prepare()
        self.ids: np.ndarray = np.load(self.folder / "ids.npy")
        self.facts: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())

    def prepare(self) -> None:
        """Write the weights as a Hugging Face folder, the tokens, and both GGUF files: what every contender reads."""
        given = self.options.model
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.model.suffix == ".gguf":
            live, tokenizer = load_gguf(self.model)
            given = self.folder / "given"
            live.save_pretrained(given)
            if tokenizer is not None:
                tokenizer.tokenizer.save(str(given / "tokenizer.json"))
            for kind in LLAMA_AGREED:
                write_gguf(self.model, self.folder / f"{kind}.gguf", widened=kind == "f16")
        model = load(given)
        if model.tokenizer is None:
            sys.exit("the model has no tokenizer")
        name, text = read_text(None)
        ids = model.tokenizer.encode(text[START_CHAR:])[:LONGEST]
        save(model, self.folder / "model")
        np.save(self.folder / "ids.npy", np.array(ids, dtype=np.int64))
        (self.folder / "ids.json").write_text(json.dumps(ids))
        config = model.config
        in_products = sum(weight.numel() for weight in model.parameters() if weight.ndim == 2)
        if not config.tie_word_embeddings:
            in_products -= model.embed_tokens.weight.numel()
        facts = {
            "text": f"{name} from character {START_CHAR}", "trained": reader_of(model).trained_length,
            "weights": in_products,
            "scores": config.num_hidden_layers * config.num_attention_heads * (config.head_dim or 0),
        }  # fmt: skip
        (self.folder / "facts.json").write_text(json.dumps(facts))

    def operations(self, tokens: int) -> float:
        """Multiplications and additions of a forward: products with the weights, scores and their sums of values."""
        return 2.0 * self.facts["weights"] * tokens + 2.0 * self.facts["scores"] * tokens * (tokens + 1)

    def gate(self, lengths: list[int]) -> dict[str, np.ndarray]:
        """What is right: losses of at most 16,384 tokens, log-probabilities after each length; computed once."""
        path, wanted = self.folder / "gate.npz", min(max(lengths), GATE_TOKENS)
        inner = [length for length in lengths if length <= wanted]
        if path.is_file():
            with np.load(path) as found:
                held = {name: found[name] for name in found.files}
            if len(held["losses"]) >= wanted - 1 and all(f"after_{n}" in held for n in inner):
                return held
        print(f"gate: transformers with float64 angles, {wanted} tokens", flush=True)
        self.call({"contender": "gate", "dtype": "float32", "tokens": wanted, "lengths": inner})
        return self.gate(lengths)

    def call(self, task: dict[str, Any]) -> dict[str, Any]:
        """Run the worker in a process of its own."""
        whole = {"folder": str(self.folder), "threads": self.options.threads, **task}
        return printed("forward_worker.py", whole)

    def measure(self, contender: str, tokens: int, gate: dict[str, np.ndarray]) -> dict[str, Any]:
        """One contender's turn: its seconds, peak and mean loss, gated."""
        name, kind = contender.split(" ")
        if name == "llama.cpp":
            task = {"gguf": str(self.folder / f"{kind}.gguf"), "ids": str(self.folder / "ids.json"), "tokens": tokens,
                    "threads": self.options.threads}  # fmt: skip
            return gated_llama(printed("forward_llama.py", task), kind, gate.get(f"after_{tokens}"))
        task = {"contender": name, "dtype": kind, "tokens": tokens, "out": str(self.folder / "losses.npy")}
        if name in METHODS:
            task |= {"method": name, "trained": self.trained(tokens)}
        found = self.call(task)
        losses = np.load(self.folder / "losses.npy")
        return {**found, "mean_loss": float(losses.mean()), **self.gated(name, kind, losses, gate["losses"], tokens)}

    def trained(self, tokens: int) -> int:
        """The length that a method extends from: the model's own, or half of what is read if that is shorter."""
        return int(min(self.facts["trained"] or tokens, tokens // 2))

    def gated(
        self, name: str, kind: str, losses: np.ndarray, expected: np.ndarray, tokens: int
    ) -> dict[str, float | int]:
        """How far the losses are from what is right; raises AssertionError if ours are wrong."""
        count = min(len(losses), len(expected))
        if name in METHODS:
            below = METHODS[name].equal_below(Reach(self.trained(tokens), max(tokens, self.trained(tokens) + 1)))
            count = min(count, below - 1)
        if count < 1:
            return {"checked_tokens": 0}
        apart = losses[:count] - expected[:count]
        found = {"checked_tokens": count, "largest_difference": float(np.abs(apart).max()),
                 "mean_difference": float(apart.mean())}  # fmt: skip
        allowed = MEAN_AGREED[0] * max(1.0, MEAN_AGREED[1] / count) ** 0.5
        wrong = abs(found["mean_difference"]) > allowed
        if kind == "float32":
            wrong = found["largest_difference"] > AGREED
        if not np.isfinite(losses).all() or (wrong and name != "transformers"):
            raise AssertionError(f"{name} {kind}, {tokens} tokens: {found}")
        return found

    def record(self, tokens: int, contenders: list[str], peaks: dict[str, float]) -> dict[str, Any] | None:
        """What is known of one length: every run of these contenders, medians, ratios, losses."""
        runs: dict[str, list[dict[str, Any]]] = {}
        for contender in contenders:
            turns = [f"{tokens}/{contender}/{turn}" for turn in range(99)]
            if found := [self.ledger[key] for key in turns if key in self.ledger]:
                runs[contender] = found
        if not runs:
            return None
        seconds = {name: [one for run in found for one in run["seconds"]] for name, found in runs.items()}
        median = {name: round(statistics.median(found), 4) for name, found in seconds.items()}
        plain = {name: f"ropewalk {name.split(' ')[1]}" for name in runs if name.split(" ")[0] in METHODS}
        return {
            **environment(), "kind": "forward", "model": self.model.name, "text": self.facts["text"],
            "tokens": tokens, "seconds": seconds, "median_seconds": median,
            "ratios": [{"of": of, "over": over, "ratio": round(median[of] / median[over], 3)}
                       for of, over in plain.items() if over in median],
            "peak_bytes": {name: max(run["peak_bytes"] for run in found) for name, found in runs.items()},
            "checks": {name: {key: value for key, value in found[0].items() if key not in ("seconds", "peak_bytes")}
                       for name, found in runs.items()},
            "operations": self.operations(tokens), "matrix_product_gflops": peaks,
        }  # fmt: skip


def gated_llama(found: dict[str, Any], kind: str, expected: np.ndarray | None) -> dict[str, Any]:
    """How far llama.cpp's likeliest next tokens are from what is right; raises AssertionError if they are wrong."""
    said = found.pop("log_probs")
    if expected is None:
        return {**found, "checked_tokens": 0}
    apart = float(np.mean([abs(value - expected[int(token)]) for token, value in said.items()]))
    if apart > LLAMA_AGREED[kind]:
        raise AssertionError(f"llama.cpp {kind}: log-probabilities differ by {apart:.3f} nats")
    return {**found, "checked_tokens": 1, "mean_difference_of_log_probs": apart}


def printed(script: str, task: dict[str, Any]) -> dict[str, Any]:
    """The JSON in the last line that a worker printed; ends the run with what it said if it failed."""
    command = [sys.executable, str(HERE / script), json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if line.startswith("{") and line.endswith("}")]
    if done.returncode or not rows:
        sys.exit(f"{command[1:]}\n{done.stdout}\n{done.stderr}")
    found: dict[str, Any] = json.loads(rows[-1])
    return found


def write_gguf(source: Path, target: Path, *, widened: bool) -> None:
    """The same file without a trained length in the way, its weights as they are or widened to float16."""
    import gguf
    from gguf.quants import dequantize

    reader = gguf.GGUFReader(str(source))
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(target), architecture)
    new = {f"{architecture}.context_length": LONGEST}
    if widened:
        new["general.file_type"] = int(gguf.LlamaFileType.MOSTLY_F16)
    for name, field in reader.fields.items():
        if name == "general.architecture" or name.startswith("GGUF."):
            continue
        of_items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, new.get(name, field.contents()), field.types[0], of_items)
    for tensor in reader.tensors:
        if widened and tensor.tensor_type != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float16))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Prepare, check, take turns, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("ROPEWALK_SMOLLM2", "tiny"), help="a GGUF file or a folder")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096])
    parser.add_argument("--repeats", type=int, default=1, help="turns of each contender; those kept count")
    parser.add_argument("--contenders", help="names, comma-separated; default all")
    parser.add_argument("--methods", default="", help="methods, comma-separated; in bfloat16, or METHOD:DTYPE")
    parser.add_argument("--state", default="build/forward")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS / "forward.jsonl", help="append records to this file")
    parser.add_argument("--prepare", action="store_true", help="write files and read the gate, time nothing")
    options = parser.parse_args()
    run = Run(options)
    lengths = sorted(length for length in set(options.tokens) if length <= len(run.ids))
    if len(lengths) < len(set(options.tokens)):
        print(f"left out: lengths beyond the text's {len(run.ids)} tokens", flush=True)
    gate = run.gate(lengths)
    if options.prepare:
        return
    contenders = [*PLAIN, *PEERS]
    if run.model.suffix == ".gguf" and find_spec("xllamacpp"):
        contenders += [f"llama.cpp {kind}" for kind in LLAMA_AGREED]
    if options.contenders is not None:
        contenders = [name for name in options.contenders.split(",") if name]
    for name in filter(None, options.methods.split(",")):
        method, _, kind = name.partition(":")
        contenders.append(f"{method} {kind or 'bfloat16'}")
    kinds = sorted({name.split(" ")[1] for name in contenders} & {"float32", "bfloat16"})
    kinds = [kind for kind in kinds if slow_products(getattr(torch, kind)) is None]
    peaks = {kind: run.call({"contender": "matrix product", "dtype": kind})["gflops"] for kind in kinds}
    print("matrix products, GFLOP/s:", {kind: round(peak) for kind, peak in peaks.items()}, flush=True)
    refused: list[str] = []
    for tokens in lengths:
        for turn, contender in itertools.product(range(options.repeats), contenders):
            key = f"{tokens}/{contender}/{turn}"
            if key not in run.ledger:
                try:
                    run.ledger.add(key, run.measure(contender, tokens, gate))
                except AssertionError as error:
                    print(f"not recorded: {error}", flush=True)
                    refused.append(contender)
                    continue
            seconds = statistics.median(run.ledger[key]["seconds"])
            print(f"{tokens:>6} {contender:<24} {seconds:8.2f} s", flush=True)
        row = run.record(tokens, contenders, peaks)
        if row is not None:
            append(options.out, row)
    if refused:
        sys.exit(f"not recorded: {', '.join(dict.fromkeys(refused))}")


if __name__ == "__main__":
    main()
