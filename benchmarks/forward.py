"""Times a whole forward with its losses: ours, transformers', llama.cpp's, on the same weights and tokens, in turns.

Each contender is named with its dtype or its file's, and runs in a process of its own:

- `ropewalk bfloat16`, `ropewalk float32`: the doctor's reading of a window under plain; and one under each of
  `--methods` (`dca bfloat16` ...), read from its first token on. `ropewalk-sdpa float32`: torch's attention in our
  kernel's place.
- `baseline float32`: an earlier version of ropewalk, unpacked at `--baseline`. Speed is counted from commit 345187a:
  `git worktree add W 345187a; pip wheel --no-deps W`, and unzip the wheel.
- `transformers bfloat16`, `transformers float32`: its base model with `scaled_dot_product_attention`, then the head and
  the losses of 256 tokens at a time. `transformers-whole DTYPE`: with the logits of all tokens at once.
- `llama.cpp Q4_1`, `llama.cpp f16`: its prompt processing, by `xllamacpp` in `--llama-python`; both files are written
  here from the GGUF given, the second with its weights widened. Left out, and said so, where the package is missing.

Correctness first: transformers in float32 with float64 angles reads the same tokens once (`--prepare` does only that),
up to 16,384 of them. In float32 every loss of ours must agree with it within 0.005 nats, in bfloat16 the mean of 4,096
or more within 0.005; of a method the tokens that it reads as plain; of llama.cpp the log-probabilities of the likeliest
next tokens. What does not agree is not recorded, and the exit status is 1. Every result is kept in `--state`: stopped,
the same command goes on; more `--repeats` add turns.

For each length a line is appended to `results/forward.jsonl`: seconds, their medians, ratios, memory (bytes: resident
on the CPU, torch's own on a GPU), mean losses, and the bars of issue 13. `--figure` draws time and memory by length
from them, with the bound that this machine's matrix products set. `--minutes` leaves out what would end later. Usage:

    python benchmarks/forward.py --model FILE.gguf --prepare
    python benchmarks/forward.py --model FILE.gguf --tokens 4096 16384 --methods dca,self-extend,rerope
    python benchmarks/forward.py --model FILE.gguf --tokens 1024 2048 32768 --minutes 6 --figure
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.bench.record import CHECKOUT, append, environment, results_file
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods import METHODS, Reach

HERE = Path(__file__).parent
PLAIN = ("ropewalk bfloat16", "ropewalk float32", "ropewalk-sdpa float32")
PEERS = ("transformers bfloat16", "transformers float32", "llama.cpp Q4_1", "llama.cpp f16")
BARS = (
    ("ropewalk bfloat16", "baseline float32", 0.42),
    ("ropewalk float32", "baseline float32", 0.82),
    ("ropewalk bfloat16", "ropewalk-sdpa float32", None),
    ("ropewalk float32", "ropewalk-sdpa float32", None),
    ("ropewalk bfloat16", "transformers bfloat16", 0.5),
    ("ropewalk bfloat16", "transformers float32", 0.4),
    ("ropewalk float32", "transformers float32", None),
    ("ropewalk bfloat16", "llama.cpp Q4_1", 0.4),
    ("ropewalk bfloat16", "llama.cpp f16", 0.4),
)
OVER_PLAIN = 1.15  # of a method
AGREED = 5e-3  # nats, any single loss in float32
MEAN_AGREED = 5e-3, 4096  # nats, the mean loss in bfloat16 of so many tokens; of fewer more, by the root
LLAMA_AGREED = {"Q4_1": 0.3, "f16": 0.1}  # nats, mean of 20 log-probabilities; it rounds activations to 8 bits
GATE_TOKENS = 16_384
LENGTHS = [1024 << n for n in range(7)]
START_CHAR = 30_000
STARTS_IN = 12.0  # seconds of a process beside its measurement


class Refused(Exception):
    """A result is not what it should be."""


class Job:
    """What is asked: the model, its prepared files, and how contenders are run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.model = options, Path(options.model)
        self.llama: str | None = None
        self.threads = options.threads or torch.get_num_threads()
        of_model = fingerprint(self.model.read_bytes() if self.model.is_file() else options.model)
        self.folder = Path(options.state) / f"prepared-{of_model}"
        files = sorted((CHECKOUT / "src" / "ropewalk").rglob("*.py")) + sorted(CHECKOUT.glob("src/ropewalk/_kernels*"))
        source = fingerprint(*(file.read_bytes() for file in files))
        key = fingerprint(of_model, source, torch.__version__, options.device, self.threads)
        self.ledger = Ledger(Path(options.state) / f"runs-{key}", kind="forward", key=key)
        self.ledger.resume()

    @property
    def ids(self) -> np.ndarray:
        """The tokens of the text, int64."""
        found: np.ndarray = np.load(self.folder / "ids.npy")
        return found

    def prepare(self) -> None:
        """Write the weights as a Hugging Face folder, the tokens, and both GGUF files: what every contender reads."""
        if (self.folder / "facts.json").is_file():
            return
        from ropewalk.builtin.texts import read_text
        from ropewalk.checkpoints.load import load, save
        from ropewalk.readers.decoder import DecoderReader

        model = load(self.options.model)
        if model.tokenizer is None:
            sys.exit("the model has no tokenizer")
        name, text = read_text(self.options.text)
        ids = model.tokenizer.encode(text[START_CHAR:])[: max(LENGTHS)]
        self.folder.mkdir(parents=True, exist_ok=True)
        save(model, self.folder / "model")
        np.save(self.folder / "ids.npy", np.array(ids, dtype=np.int64))
        (self.folder / "ids.json").write_text(json.dumps(ids))
        if self.model.suffix == ".gguf":
            for kind in LLAMA_AGREED:
                write_gguf(self.model, self.folder / f"{kind}.gguf", widened=kind == "f16")
        config = model.config
        in_products = sum(weight.numel() for weight in model.parameters() if weight.ndim == 2)
        if not config.tie_word_embeddings:
            in_products -= model.embed_tokens.weight.numel()
        facts = {
            "text": f"{name} from character {START_CHAR}", "trained": DecoderReader(model).trained_length,
            "weights": in_products,
            "scores": config.num_hidden_layers * config.num_attention_heads * (config.head_dim or 0),
        }  # fmt: skip
        (self.folder / "facts.json").write_text(json.dumps(facts))

    @property
    def facts(self) -> dict[str, Any]:
        """Name of the text, trained length, and what arithmetic depends on."""
        found: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())
        return found

    def operations(self, tokens: int) -> float:
        """Multiplications and additions of a forward: products with the weights, scores and their sums of values."""
        return 2.0 * self.facts["weights"] * tokens + 2.0 * self.facts["scores"] * tokens * (tokens + 1)

    def gate(self, lengths: list[int]) -> dict[str, np.ndarray]:
        """What is right: losses of at most 16,384 tokens, log-probabilities after each length; computed once."""
        path = self.folder / "gate.npz"
        wanted = min(max(lengths), GATE_TOKENS, len(self.ids))
        inner = sorted({length for length in [*lengths, *LENGTHS] if length <= wanted})
        if path.is_file():
            with np.load(path) as found:
                held = {name: found[name] for name in found.files}
            if len(held["losses"]) >= wanted - 1 and all(f"after_{n}" in held for n in lengths if n <= wanted):
                return held
        print(f"gate: transformers with float64 angles, {wanted} tokens", flush=True)
        self.call({"contender": "gate", "dtype": "float32", "tokens": wanted, "lengths": inner})
        return self.gate(lengths)

    def call(self, task: dict[str, Any]) -> dict[str, Any]:
        """Run a contender of Python and torch; returns what it printed."""
        whole = {"folder": str(self.folder), "device": self.options.device, "threads": self.threads, **task}
        return printed([sys.executable, str(HERE / "forward_worker.py"), json.dumps(whole)])

    def find_llama(self) -> str | None:
        """An interpreter that has xllamacpp; None where there is none, or the model is no GGUF file, and says so."""
        if self.model.suffix != ".gguf":
            print("llama.cpp is left out: the model is no GGUF file", flush=True)
            return None
        for python in (self.options.llama_python, sys.executable):
            ran = python and subprocess.run([python, "-c", "import xllamacpp"], capture_output=True, check=False)
            if ran and not ran.returncode:
                return str(python)
        print("llama.cpp is left out: install `xllamacpp`, here or in --llama-python", flush=True)
        return None

    def measure(self, contender: str, tokens: int) -> dict[str, Any]:
        """One contender's turn: its seconds, peak and mean loss, gated."""
        name, kind = contender.split(" ")
        gate = self.gate([tokens])
        if name == "llama.cpp":
            task = {"gguf": str(self.folder / f"{kind}.gguf"), "ids": str(self.folder / "ids.json"),
                    "tokens": tokens, "threads": self.threads}  # fmt: skip
            assert self.llama is not None
            found = printed([self.llama, str(HERE / "forward_llama.py"), json.dumps(task)])
            return self.gated_llama(found, kind, gate.get(f"after_{tokens}"))
        task = {"contender": name, "dtype": kind, "tokens": tokens, "out": str(self.folder / "losses.npy")}
        if name in METHODS:
            task |= {"method": name, "trained": self.trained(tokens)}
        if name == "baseline":
            task["source"] = str(Path(self.options.baseline).resolve())
        found = self.call(task)
        losses = np.load(self.folder / "losses.npy")
        found |= {"mean_loss": float(losses.mean()), **self.gated(name, kind, losses, gate["losses"], tokens)}
        return found

    def trained(self, tokens: int) -> int:
        """The length that a method extends from: the model's own, or half of what is read where that is shorter."""
        return int(min(self.facts["trained"] or tokens, tokens // 2))

    def gated(
        self, name: str, kind: str, losses: np.ndarray, expected: np.ndarray, tokens: int
    ) -> dict[str, float | int]:
        """How far the losses are from what is right; raises `Refused` where ours are wrong."""
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
        exact = kind == "float32"
        wrong = found["largest_difference"] > AGREED if exact else abs(found["mean_difference"]) > allowed
        if not np.isfinite(losses).all() or (wrong and not name.startswith("transformers")):
            raise Refused(f"{name} {kind}, {tokens} tokens: {found}")
        return found

    def gated_llama(self, found: dict[str, Any], kind: str, expected: np.ndarray | None) -> dict[str, Any]:
        """The same of llama.cpp: its likeliest next tokens."""
        said = found.pop("log_probs")
        if expected is None:
            return {**found, "checked_tokens": 0}
        apart = float(np.mean([abs(value - expected[int(token)]) for token, value in said.items()]))
        if apart > LLAMA_AGREED[kind]:
            raise Refused(f"llama.cpp {kind}: log-probabilities differ by {apart:.3f} nats")
        return {**found, "checked_tokens": 1, "mean_difference_of_log_probs": apart}


def printed(command: list[str]) -> dict[str, Any]:
    """The JSON in the last line that a process printed; ends the run with what it said where it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    rows = [line for line in lines if line.startswith("{") and line.endswith("}")]
    if done.returncode or not rows:
        sys.exit(f"{command[1:]}\n{done.stdout}\n{done.stderr}")
    found: dict[str, Any] = json.loads(rows[-1])
    return found


def write_gguf(source: Path, target: Path, *, widened: bool) -> None:
    """The same file without a trained length in the way, its weights as they are or widened to float16."""
    import gguf
    from gguf.quants import dequantize

    reader = gguf.GGUFReader(str(source))
    fields = reader.fields
    architecture = fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(target), architecture)
    new = {f"{architecture}.context_length": max(LENGTHS)}
    if widened:
        new["general.file_type"] = int(gguf.LlamaFileType.MOSTLY_F16)
    for name, field in fields.items():
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


def record(job: Job, tokens: int, contenders: list[str], peaks: dict[str, float]) -> dict[str, Any] | None:
    """What is known of one length: every run of these contenders, medians, ratios, losses."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for contender in contenders:
        turns = [f"{tokens}/{contender}/{turn}" for turn in range(99)]
        runs[contender] = [job.ledger[key] for key in turns if key in job.ledger]
    runs = {contender: found for contender, found in runs.items() if found}
    if not runs:
        return None
    seconds = {name: [one for run in found for one in run["seconds"]] for name, found in runs.items()}
    median = {name: round(statistics.median(found), 4) for name, found in seconds.items()}
    methods = [(name, f"ropewalk {name.split(' ')[1]}", OVER_PLAIN) for name in runs if name.split(" ")[0] in METHODS]
    ratios = [
        {"of": of, "over": over, "ratio": round(median[of] / median[over], 3), "bar": bar if tokens == 16_384 else None}
        for of, over, bar in (*BARS, *methods)
        if of in median and over in median
    ]
    return {
        **environment(job.options.device), "kind": "forward", "model": job.model.name, "text": job.facts["text"],
        "tokens": tokens, "seconds": seconds, "median_seconds": median, "ratios": ratios,
        "peak_bytes": {name: max(run["peak_bytes"] for run in found) for name, found in runs.items()},
        "checks": {name: {key: value for key, value in found[0].items() if key not in ("seconds", "peak_bytes")}
                   for name, found in runs.items()},
        "losses": losses_of(runs), "operations": job.operations(tokens), "matrix_product_gflops": peaks,
        "share_of_matrix_product": {
            name: round(job.operations(tokens) / median[name] / 1e9 / peaks[name.split(" ")[1]], 3)
            for name in median if name.split(" ")[1] in peaks
        },
    }  # fmt: skip


def losses_of(runs: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Nats: bfloat16's mean loss less float32's, and how far two methods' gains over plain move apart."""
    means = {name: found[0]["mean_loss"] for name, found in runs.items() if "mean_loss" in found[0]}
    shifts = {}
    for name, mean in means.items():
        method, kind = name.split(" ")
        if kind == "bfloat16" and f"{method} float32" in means and (method in METHODS or method == "ropewalk"):
            shifts[method] = mean - means[f"{method} float32"]
    found = {f"bfloat16 less float32, {method}": shift for method, shift in shifts.items()}
    if len(shifts) > 1:
        found["largest difference between two methods' gains"] = max(shifts.values()) - min(shifts.values())
    return found


def expected_seconds(done: dict[tuple[str, int], float], contender: str, tokens: int) -> float:
    """About how long a turn takes, from the longest shorter length that this contender has read."""
    shorter = [length for name, length in done if name == contender and length <= tokens]
    if not shorter:
        return 0.0
    last = max(shorter)
    return done[contender, last] * (tokens / last) ** 1.7 + STARTS_IN


def draw(records: list[dict[str, Any]], target: Path) -> None:
    """Time and memory by length, as png and svg."""
    from ropewalk.figures.growth import growth
    from ropewalk.figures.style import render

    for kind in ("png", "svg"):
        target.with_suffix(f".{kind}").write_bytes(render(growth(records), kind))
    print(f"figure: {target}.png, .svg")


def main() -> None:
    """Prepare, check, take turns, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("ROPEWALK_SMOLLM2", "tiny"), help="a GGUF file or a folder")
    parser.add_argument("--text", default=None, help="a file; default the built-in novel")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096])
    parser.add_argument("--repeats", type=int, default=1, help="turns of each contender; those kept count")
    parser.add_argument("--contenders", default=None, help="names, comma-separated; default all")
    parser.add_argument("--methods", default="", help="methods, comma-separated; in bfloat16, or METHOD:DTYPE")
    parser.add_argument("--minutes", type=float, default=None, help="leave out turns that would end later")
    parser.add_argument("--state", default="build/forward")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--baseline", default=None, help="a folder that holds an earlier ropewalk")
    parser.add_argument("--llama-python", default=None, help="an interpreter that has xllamacpp")
    parser.add_argument("--prepare", action="store_true", help="write files and read the gate, time nothing")
    parser.add_argument("--figure", action="store_true", help="draw results/forward.png and .svg from all records")
    options = parser.parse_args()
    began, job = time.monotonic(), Job(options)
    job.prepare()
    known = len(job.ids)
    lengths = sorted(length for length in set(options.tokens) if length <= known)
    if len(lengths) < len(set(options.tokens)):
        print(f"left out: lengths beyond the text's {known} tokens", flush=True)
    job.gate(lengths)
    if options.prepare:
        return
    contenders = [*PLAIN, *(["baseline float32"] if options.baseline else []), *PEERS]
    if options.contenders is not None:
        contenders = [name for name in options.contenders.split(",") if name]
    for name in filter(None, options.methods.split(",")):
        method, _, kind = name.partition(":")
        contenders.append(f"{method} {kind or 'bfloat16'}")
    if "baseline float32" in contenders and not options.baseline:
        sys.exit("baseline float32 needs --baseline: the folder of an earlier ropewalk")
    job.llama = job.find_llama() if any(name.startswith("llama.cpp") for name in contenders) else None
    if job.llama is None:
        contenders = [name for name in contenders if not name.startswith("llama.cpp")]
    kinds = sorted({name.split(" ")[1] for name in contenders} & {"float32", "bfloat16"})
    peaks = {kind: job.call({"contender": "matrix product", "dtype": kind})["gflops"] for kind in kinds}
    print("matrix products, GFLOP/s:", {kind: round(peak) for kind, peak in peaks.items()}, flush=True)
    done: dict[tuple[str, int], float] = {}
    refused: list[str] = []
    target = results_file("forward.jsonl")
    for tokens in lengths:
        for turn in range(options.repeats):
            shift = turn % len(contenders)
            for contender in contenders[shift:] + contenders[:shift]:
                key = f"{tokens}/{contender}/{turn}"
                if key not in job.ledger:
                    left = None if options.minutes is None else 60 * options.minutes - (time.monotonic() - began)
                    if left is not None and expected_seconds(done, contender, tokens) > left:
                        print(f"{tokens:>6} {contender:<24} left out: no time", flush=True)
                        continue
                    try:
                        job.ledger.add(key, job.measure(contender, tokens))
                    except Refused as error:
                        print(f"not recorded: {error}", flush=True)
                        refused.append(contender)
                        continue
                seconds = statistics.median(job.ledger[key]["seconds"])
                done[contender, tokens] = seconds
                print(f"{tokens:>6} {contender:<24} {seconds:8.2f} s", flush=True)
        row = record(job, tokens, contenders, peaks)
        if row is not None:
            append(target, row)
            for ratio in row["ratios"]:
                bar = "" if ratio["bar"] is None else f"  bar {ratio['bar']}"
                print(f"{tokens:>6} {ratio['of']} over {ratio['over']}: {ratio['ratio']}{bar}")
            sizes = {name: round(size / 1e9, 2) for name, size in row["peak_bytes"].items()}
            print(f"{tokens:>6} losses: {row['losses']}; peak, GB: {sizes}", flush=True)
    if options.figure:
        records = [json.loads(line) for line in target.read_text().splitlines()]
        draw([one for one in records if one["model"] == job.model.name], target.with_suffix(""))
    if refused:
        sys.exit(f"not recorded: {', '.join(dict.fromkeys(refused))}")


if __name__ == "__main__":
    main()
