"""Expected numbers for web/'s own tests: of its formulas, and of the model that runs in the page.

    python scripts/explorer_golden.py            writes web/test/golden/rope.json, for web/src/rope.ts
    python scripts/explorer_golden.py FOLDER     writes golden.json, and model.txt: the packed weights

`ROPEWALK_GOLDEN=FOLDER npm test` in web/ compares with the second; tests/figures/test_live_model.py does both. There
methods run in ropewalk's Decoder, all else in transformers with a rotary module that computes angles in the given way.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk import scaling
from ropewalk.checkpoints.load import load
from ropewalk.figures.explorer import rule_of
from ropewalk.figures.explorer_model import model_header, packed_model
from ropewalk.figures.material import frequencies
from ropewalk.figures.pairs import never_seen
from ropewalk.methods import METHODS, Reach
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import generate
from ropewalk.positions import mrope_positions
from ropewalk.rope.axes import axes_from_sections

# -- formulas ---------------------------------------------------------------------------------------------------------

PATH = Path(__file__).resolve().parents[1] / "web" / "test" / "golden" / "rope.json"
RULES = (
    None,
    scaling.Linear(4.0),
    scaling.NTK(8.0),
    scaling.DynamicNTK(2.0),
    scaling.YaRN(4.0, 4096),
    scaling.YaRN(32.0, 4096, beta_fast=24.0, beta_slow=2.0, truncate=False, attention_factor=1.5),
    scaling.YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=0.7),
    scaling.Llama3(8.0, 1.0, 4.0, 8192),
    scaling.LongRoPE(tuple(1 + 0.1 * i for i in range(32)), tuple(1 + 2.0 * i for i in range(32)), 2048),
    scaling.Proportional(0.25, 2.0),
)


def formulas() -> dict[str, Any]:
    """Return frequencies, angles and rotations."""
    cases = {"rules": _rules(), "rotations": _rotations(), "rows": _rows(), "unseen": _unseen()}
    return {name: list(of) for name, of in cases.items()}


def _rules() -> Iterator[dict[str, Any]]:
    """Yield each rule's frequencies at a short and a long sequence, for two thetas."""
    for rule, theta, length in itertools.product(RULES, (10_000.0, 500_000.0), (1024, 20_000)):
        rope = rw.RopeConfig(64, interleaved=False, theta=theta, scaling=rule, max_position_embeddings=8192)
        yield {
            "ladder": {"theta": theta, "dim": 64, "maxLength": 8192},
            "rule": rule_of(rope),
            "seqLen": length,
            "invFreq": list(rope.columns_at(length)),
            "attentionFactor": rope.attention_factor_at(length),
        }


def _rotations() -> Iterator[dict[str, Any]]:
    """Yield rotations: both pairings, one axis and several, shared and separate ladders, partial rotation."""
    generator = torch.Generator().manual_seed(16)
    three = axes_from_sections([3, 3, 2])
    for interleaved in (True, False):
        for position, config in (
            ([1_000_003], rw.RopeConfig(16, interleaved=interleaved)),
            ([77], rw.RopeConfig(16, interleaved=interleaved, rotary_dim=8, theta=500_000.0)),
            ([5, 9, 31], rw.RopeConfig(16, interleaved=interleaved, axes=three)),
            ([5, 9, 31], rw.RopeConfig(16, interleaved=interleaved, axes=three, axes_restart=True)),
        ):
            x = torch.randn(1, 1, 1, config.head_dim, generator=generator, dtype=torch.float64)
            ids = torch.tensor(position if config.num_axes == 1 else [position])
            cos, sin = rw.RotaryEmbedding(config).cos_sin(ids, dtype=torch.float64)
            rotated = rw.rotate(x, cos, sin, interleaved=interleaved, rotary_dim=config.rotary_dim)
            yield {
                "ladder": {"theta": config.theta, "dim": 2 * config.pairs},
                "axes": list(config.axes or [0] * config.pairs),
                "restart": config.axes_restart,
                "interleaved": interleaved,
                "position": position,
                "x": x.flatten().tolist(),
                "turned": rotated.flatten().tolist(),
            }


def _rows() -> Iterator[dict[str, Any]]:
    """Yield the three coordinates of each token in rows of text, images and videos."""
    for pictures in ([], [("image", 1, 3, 5)], [("image", 1, 6, 2), ("video", 7, 2, 3)], [("video", 3, 4, 4)]):
        types, segments = [0] * 4, [{"kind": "text", "tokens": 4}]
        for kind, frames, height, width in pictures:
            types += [1 if kind == "image" else 2] * (frames * height * width) + [0] * 3
            segments.append({"kind": kind, "frames": frames, "height": height, "width": width})
            segments.append({"kind": "text", "tokens": 3})
        grids = {which: [grid[1:] for grid in pictures if grid[0] == which] for which in ("image", "video")}
        positions, _ = mrope_positions(
            torch.tensor(types), images=grids["image"], videos=grids["video"], spatial_merge_size=1
        )
        yield {"segments": segments, "positions": positions.tolist()}


def _unseen() -> Iterator[dict[str, Any]]:
    """Yield which pairs of the built-in model have angles that training never showed, without and with YaRN."""
    rope = load("tiny").config.rope
    trained = rope.trained_length
    for rule in (None, scaling.YaRN(2.0, trained)):
        scaled = dataclasses.replace(rope, scaling=rule)
        for position in (200, 257, 300, 400, 511):
            shown = never_seen(frequencies(scaled), frequencies(rope), trained, np.array([position]))
            yield {"rule": rule_of(scaled), "position": position, "pairs": np.flatnonzero(shown[0]).tolist()}


# -- the model --------------------------------------------------------------------------------------------------------

TEXTS = (
    "", " ", "Call me Ishmael.", "  two spaces,\tone tab\n\n\nthree lines  ", "It's we'll I'd they've 'tis",
    "12,345.67 in 1851", "Ahab\u2014\u201cNo!\u201d\u2014said he\u2019d", "naïve café, Æsop, straße",
    "\u0391\u0392\u0393, кит", "鯨, クジラ, 🐋🧵", "½ ² Ⅷ ٣٤", "a\u0085b\u00a0c\u2028d\u3000e\ufefff",
    "e\u0301 combining",
    "<|endoftext|>A<|endoftext|>", "<|endoftext|", "def f(x):\r\n    return x**2  # ok", "\x00\x07\x7f",
    "x" * 70, "HELLO World hello\nWORLD", " leading and trailing ", "\u200bzero\u200dwidth", "''''s's 's",
)  # fmt: skip
INVALID = ([230], [226, 128], [0, 257, 230, 300])


def settings() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield (sample, tokens of it, differences from the trained model)."""
    short, twice, far, quarter, long = range(5)
    yield short, 60, {}
    yield twice, 81, {}
    yield long, 400, {}
    yield twice, 81, {"rotate": False}
    yield short, 60, {"shift": 100_000}
    yield short, 60, {"shift": 100_000, "angles": "float32"}
    yield short, 60, {"shift": 1_000, "angles": "positions"}
    yield quarter, 250, {"angles": "frequencies"}
    yield quarter, 250, {"angles": "angles"}
    for name, method in METHODS.items():
        if not (method.keeps_own or method.crops or name == "plain"):
            yield long, 400 if name == "dca" else 270, {"method": name, "target": 512}
    yield far, 330, {"method": "yarn", "target": 1024, "shift": 5_000}
    yield far, 330, {"method": "self-extend", "target": 1024, "shift": 5_000}


def model() -> dict[str, Any]:
    """Return token ids and logits of the built-in model under many settings."""
    tiny = load("tiny").float().eval()
    encode, decode = tiny.tokenizer.encode, tiny.tokenizer.decode
    header = model_header(tiny)
    samples = [sample["text"] for sample in header["samples"]]
    known = sorted({token for text in samples for token in encode(text)})
    cases = []
    for sample, tokens, setting in settings():
        logits = _logits(tiny, encode(samples[sample])[:tokens], setting)
        cases.append({
            "sample": sample, "tokens": tokens, "setting": setting, "logits": _rounded(logits),
            "logSumExp": logits.logsumexp(-1).item(), "best": int(logits.argmax()),
        })  # fmt: skip
    return {
        "texts": [{"text": text, "ids": encode(text)} for text in (*TEXTS, *samples)],
        "decoded": [{"ids": list(ids), "text": decode(ids)} for ids in (*INVALID, known)],
        "cases": cases,
        "attention": {"sample": 1, "weights": _weights(encode(samples[1]))},
        "continuation": decode(generate(tiny, samples[1], max_new_tokens=12)[0]),
    }


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{x:.7g}") for x in values.tolist()]


def _logits(model: Decoder, ids: list[int], setting: dict[str, Any]) -> Tensor:
    """Return logits `[vocab]` after the last token."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        if "method" in setting:
            positions = model.config.positions
            reach = Reach(256, setting["target"])
            changed = METHODS[setting["method"]].positions(positions, reach)
            model = model.with_positions(rope=changed.ropes, extension=changed.extensions)
            seq_len = reach.target if model.config.needs_seq_len else None
            # an extension counts tokens itself; a shift of all positions leaves relative ones as they are
            shift = setting.get("shift", 0) if model.config.extension is None else 0
            ids_at = torch.arange(len(ids)) + shift if shift else None
            return model(tokens, seq_len=seq_len, position_ids=ids_at)[0, -1].float()
        other = _other_model()
        other.model.rotary_emb = _Tables(setting)
        return other(tokens).logits[0, -1]


@cache
def _other_model() -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = resources.files("ropewalk") / "builtin" / "tiny"
    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


class _Tables(torch.nn.Module):
    """A rotary module of transformers' Llama with the angles of a setting."""

    def __init__(self, setting: dict[str, Any]) -> None:
        super().__init__()
        self.shift, self.scale = setting.get("shift", 0), float(setting.get("rotate", True))
        self.angles = _ANGLES[setting.get("angles", "exact")]

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = 10_000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
        angles = self.angles((position_ids + self.shift).double()[..., None], frequencies) * self.scale
        both = torch.cat([angles, angles], -1).double()
        return both.cos().float(), both.sin().float()


_ANGLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "exact": lambda positions, frequencies: positions * frequencies,
    "float32": lambda positions, frequencies: positions.float() * frequencies.float(),
    "positions": lambda positions, frequencies: positions.bfloat16().double() * frequencies,
    "frequencies": lambda positions, frequencies: positions * frequencies.bfloat16().double(),
    "angles": lambda positions, frequencies: (positions * frequencies).bfloat16(),
}


def _weights(ids: list[int]) -> list[dict[str, Any]]:
    """Return transformers' attention weights of the last query in three heads."""
    other = _other_model()
    other.model.rotary_emb = _Tables({})
    other.set_attn_implementation("eager")
    with torch.no_grad():
        found = other(torch.tensor([ids]), output_attentions=True).attentions
    return [
        {"layer": layer, "head": head, "row": _rounded(found[layer][0, head, -1])}
        for layer, head in ((0, 0), (3, 2), (5, 1))
    ]


def write(folder: Path) -> None:
    """Write the files of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "golden.json").write_text(json.dumps(model()))
    (folder / "model.txt").write_text(packed_model())


if __name__ == "__main__":
    if sys.argv[1:]:
        write(Path(sys.argv[1]))
    else:
        PATH.write_text(json.dumps(formulas(), indent=1) + "\n", encoding="utf-8")
