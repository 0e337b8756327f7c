"""What `forward.py` is asked: the files that contenders read, how they are run, what their losses must agree with."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from records import CHECKOUT

from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods import METHODS, Reach

HERE = Path(__file__).parent
AGREED = 5e-3  # nats, any single loss in float32
MEAN_AGREED = 5e-3, 4096  # nats, the mean loss in bfloat16 of so many tokens; of fewer more, by the root
LLAMA_AGREED = {"Q4_1": 0.3, "f16": 0.1}  # nats, mean of 20 log-probabilities; it rounds activations to 8 bits
GATE_TOKENS = 16_384
LENGTHS = [1024 << n for n in range(7)]
START_CHAR = 30_000


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
        from ropewalk.checkpoints.load import load, save
        from ropewalk.checkpoints.opening import load_gguf, reader_of
        from ropewalk.checkpoints.texts import read_text

        given = self.options.model
        if self.model.suffix == ".gguf":
            live, tokenizer = load_gguf(self.model)
            given = self.folder / "given"
            live.save_pretrained(given)
            if tokenizer is not None:
                tokenizer.tokenizer.save(str(given / "tokenizer.json"))
        model = load(given)
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
            "text": f"{name} from character {START_CHAR}", "trained": reader_of(model).trained_length,
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
