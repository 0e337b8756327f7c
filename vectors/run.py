"""Run the conformance vectors: `python run.py [NAME.json ...]`. Put your engine in place of the first three functions.

Exits with 1 if a case fails. Needs numpy and safetensors. The angles here are float64, cos, sin and products float32.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def frequencies(rope):
    """Radians per token of each pair, or None for a scaling rule that this engine lacks."""
    exponents = np.arange(0, rope["rotary_dim"], 2) / rope["rotary_dim"]
    return rope["theta"] ** -exponents if rope["rope_type"] == "default" else None


def rotate(x, ids, inv_freq, rope, factor):
    """Rotate x [..., heads, head_dim] at ids [..., 1 or pairs]."""
    angle = (ids * inv_freq)[..., None, :]
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    pairs = np.arange(len(inv_freq))
    first, second = (2 * pairs, 2 * pairs + 1) if rope["pairing"] == "interleaved" else (pairs, pairs + len(pairs))
    y, a, b, factor = x.copy(), x[..., first], x[..., second], np.float32(factor)
    y[..., first], y[..., second] = (a * cos - b * sin) * factor, (b * cos + a * sin) * factor
    return y


def positions(kind, settings, given):
    """Derive the position of each token from what a server knows about the batch."""
    count = np.arange(len(given["k"]))
    if "cache_length" in settings:
        return settings["cache_length"] + count
    if kind == "chunks":
        starts = np.cumsum([0, *settings["chunks"]])
        return np.concatenate([start + np.arange(n) for start, n in zip(starts, settings["chunks"])])  # noqa: B905
    if kind == "packed":
        ends = given["cu_seqlens"]
        return count - ends[np.searchsorted(ends, count, side="right") - 1]
    if kind == "left_padded":
        return np.maximum(given["attention_mask"].cumsum(-1) - 1, 0)
    if kind == "context_parallel":
        parts = count.reshape(2 * settings["ranks"], -1)
        return np.stack([np.concatenate([parts[rank], parts[-1 - rank]]) for rank in range(settings["ranks"])])
    return given["position_ids"] if kind == "axes" else count


def run(case, rope, tensors):
    """Return the engine's outputs of a case, or None if it cannot run it."""
    given = {key: tensors[name] for key, name in case["inputs"].items()}
    inv_freq = tensors[case["inv_freq"]]
    if case["kind"] == "inv_freq":
        mine = frequencies(rope)
        return None if mine is None else {"inv_freq": mine}
    if case["kind"] == "cos_sin":
        angle = given["position_ids"][:, None] * inv_freq
        return {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}
    ids = positions(case["kind"], case["parameters"], given)
    by_pair = ids[..., given["axis_of_pair"]] if "axis_of_pair" in given else ids[..., None]
    if case["kind"] == "context_parallel":  # each rank rotates its share; then the tokens return to their order
        y, shares = np.empty_like(given["k"]), ids.reshape(-1)
        y[shares] = rotate(given["k"][shares], shares[:, None], inv_freq, rope, case["attention_factor"])
        return {"position_ids": ids, "k": y}
    rotated = {k: rotate(given[k], by_pair, inv_freq, rope, case["attention_factor"]) for k in ("q", "k") if k in given}
    return {"position_ids": ids, **rotated}


def passes(case, outputs, tensors):
    """Compare the outputs with the truth; padding is not compared."""
    limit = next(iter(case["tolerance"]["float64_angles"].values()))
    for key, name in case["outputs"].items():
        truth, error = tensors[name], np.abs(outputs[key] - tensors[name])
        if "attention_mask" in case["inputs"]:
            mask = tensors[case["inputs"]["attention_mask"]]
            error = error * mask.reshape(mask.shape + (1,) * (error.ndim - mask.ndim))
        bound = 0 if key == "position_ids" else limit * np.abs(truth) if case["measure"] == "relative" else limit
        if not (error <= bound).all():
            return False
    return True


failed = 0
for path in map(Path, sys.argv[1:] or sorted(map(str, Path(__file__).parent.glob("*.json")))):
    document, tensors = json.loads(path.read_text()), load_file(path.with_suffix(".safetensors"))
    ropes = {rope["name"]: rope for rope in document["ropes"]}
    for case in document["cases"]:
        outputs = run(case, ropes[case["rope"]], tensors)
        verdict = "not run" if outputs is None else "pass" if passes(case, outputs, tensors) else "FAIL"
        failed += verdict == "FAIL"
        print(f"{verdict}  {path.stem}  {case['name']}" + (f": {case['fails_if']}" if verdict == "FAIL" else ""))
sys.exit(failed > 0)
