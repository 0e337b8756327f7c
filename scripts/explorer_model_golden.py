"""Write token ids and logits of the built-in model under many settings, for the tests of web/src/model.

    python scripts/explorer_model_golden.py FOLDER    writes golden.json, and model.txt: the packed weights

`ROPEWALK_GOLDEN=FOLDER npm test` in web/ compares with them; tests/figures/test_live_model.py does both. Methods run in
ropewalk's Decoder, everything else in transformers with a rotary module that computes angles in the given way. All is
float32.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from ropewalk.checkpoints.load import load
from ropewalk.figures.explorer_model import model_header, packed_model
from ropewalk.layers.decoder import Decoder
from ropewalk.layers.generation import generate
from ropewalk.methods import METHODS, Reach

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
    yield far, 390, {"method": "yarn", "target": 1024, "shift": 5_000}
    yield far, 390, {"method": "self-extend", "target": 1024, "shift": 5_000}


def golden() -> dict[str, Any]:
    """Return everything that the tests compare with."""
    logging.disable_progress_bar()
    model = load("tiny").float().eval()
    assert model.tokenizer is not None
    encode, decode = model.tokenizer.encode, model.tokenizer.decode
    header = model_header(model)
    samples = [sample["text"] for sample in header["samples"]]
    known = sorted({token for text in samples for token in encode(text)})
    cases = []
    for sample, tokens, setting in settings():
        logits = _logits(model, encode(samples[sample])[:tokens], setting)
        cases.append(
            {
                "sample": sample,
                "tokens": tokens,
                "setting": setting,
                "logits": [float(f"{x:.7g}") for x in logits.tolist()],
                "logSumExp": logits.logsumexp(-1).item(),
                "best": int(logits.argmax()),
            }
        )
    weights = _weights(model, encode(samples[1]))
    return {
        "texts": [{"text": text, "ids": encode(text)} for text in (*TEXTS, *samples)],
        "decoded": [{"ids": list(ids), "text": decode(ids)} for ids in (*INVALID, known)],
        "cases": cases,
        "attention": {"sample": 1, "weights": weights},
        "continuation": decode(generate(model, samples[1], max_new_tokens=12)[0]),
    }


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
    folder = resources.files("ropewalk") / "builtin" / "tiny"
    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


class _Tables(torch.nn.Module):
    """A rotary module of transformers' Llama with the angles of a setting."""

    def __init__(self, setting: dict[str, Any]) -> None:
        super().__init__()
        self.setting = setting

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        positions = (position_ids + self.setting.get("shift", 0)).double()[..., None]
        frequencies = 10_000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
        angles = _ANGLES[self.setting.get("angles", "exact")](positions, frequencies)
        if not self.setting.get("rotate", True):
            angles = angles * 0
        both = torch.cat([angles, angles], -1).double()
        return both.cos().float(), both.sin().float()


_ANGLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "exact": lambda positions, frequencies: positions * frequencies,
    "float32": lambda positions, frequencies: positions.float() * frequencies.float(),
    "positions": lambda positions, frequencies: positions.bfloat16().double() * frequencies,
    "frequencies": lambda positions, frequencies: positions * frequencies.bfloat16().double(),
    "angles": lambda positions, frequencies: (positions * frequencies).bfloat16(),
}


def _weights(model: Decoder, ids: list[int]) -> list[dict[str, Any]]:
    """Return transformers' attention weights of the last query in three heads."""
    other = _other_model()
    other.model.rotary_emb = _Tables({})
    other.set_attn_implementation("eager")
    with torch.no_grad():
        found = other(torch.tensor([ids]), output_attentions=True).attentions
    return [
        {"layer": layer, "head": head, "row": [float(f"{x:.7g}") for x in found[layer][0, head, -1].tolist()]}
        for layer, head in ((0, 0), (3, 2), (5, 1))
    ]


def write(folder: Path) -> None:
    """Write the files for the tests."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "golden.json").write_text(json.dumps(golden()))
    (folder / "model.txt").write_text(packed_model())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
