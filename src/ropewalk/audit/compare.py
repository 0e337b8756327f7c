"""The differences of two checkpoints' rotations, and the distance in tokens from which each shows."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ropewalk.audit.audit import ranges, scale_words
from ropewalk.audit.causes import cause_of, cause_of_factor
from ropewalk.audit.findings import SEVERITIES, Finding, Severity, blocks
from ropewalk.audit.traps import axes_unwritten, query_scale
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_rope import PERMUTED
from ropewalk.checkpoints.load import open_safetensors
from ropewalk.errors import RopeError
from ropewalk.methods import main_rope
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.hugging_face import text_part
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.pairing import convert_pairing

ROUNDING = 1e-6  # relative: the numbers of a GGUF file are float32
_LENGTH = 1_048_576  # tokens: where neither config states a length
_WAYS = {True: "(0,1), (2,3), ...", False: "(i, i + rotary_dim/2)"}
_COPY = "If A is right, copy its settings into B."
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads")
_DRAFTER = "A drafter has its own width, but its theta, scaling and length must fit its target's."
_FIT = f"Their sizes differ, so neither is a copy. {_DRAFTER}"
Layer = tuple[RopeConfig | None, int | None]  # a layer's rope, and its window in tokens


@dataclass(frozen=True, kw_only=True)
class Difference(Finding):
    """One difference of two rotations, A and B, of the layers in `layer_type` (None: all).

    - `severity`: "error" if it changes attention within the longest length that either config states, "warning" if
      that depends on the use, "note" if it does not.
    - `tokens`: the distance in tokens from which it shows; None if text does not show it.
    """

    tokens: int | None = None


def compare(a: Checkpoint, b: Checkpoint, *, drafter: bool = False) -> list[Difference]:
    """Return the differences of two checkpoints' rotations, the most severe and earliest first; [] if there are none.

    Layers are compared by number if both configs state the type of each, else by type. Frequencies are those of the
    longest stated length; if they depend on the length, those at each stated length. The angles of pair i at a distance
    of m tokens differ by m |f_i - g_i| radians: frequencies differ from the first m at which this is a quarter turn
    (pi/2) for one pair. Relative differences up to 1e-6 are rounding. Other differences show from the next token. The
    order of the query rows is compared if both checkpoints have weights (of GGUF files, those in `PERMUTED`).

    `drafter`: B drafts tokens for A with weights of its own, so only lengths and frequencies of the ropes with the
    longest reach are compared, whatever the widths.
    """
    if drafter and a.ropes.rotating and b.ropes.rotating:
        ropes = [main_rope(each.ropes.ropes) for each in (a, b)]
        found = _compare_layer((ropes[0], None), (ropes[1], None))
        return [replace(each, cure=_DRAFTER) for each in found if each.code not in ("width", "axes")]
    if not (a.ropes.rotating and b.ropes.rotating):
        only, still = ("A", "B") if a.ropes.rotating else ("B", "A")
        cure = "If B is a copy of A, one of the configs lost the rotation, or names another class."
        told = f"they rotate only in {only}: no layer of {still} rotates."
        return [_differs("layers", "error", 1, told, cure)] if a.ropes.rotating or b.ropes.rotating else []
    copies = _are_copies(a, b)
    found = _pairing(a, b, _order_of_rows(a, b)) if copies else []
    groups = _groups(a.ropes, b.ropes)
    for (one, other), where in groups.items():
        found += [replace(each, layer_type=where if len(groups) > 1 else None) for each in _compare_layer(one, other)]
    found += _outside_the_rope(a, b)
    if not copies:  # a model that is no copy has a width of its own
        found = [replace(each, cure=_FIT, severity="note" if each.code == "width" else each.severity) for each in found]
    return sorted(found, key=lambda each: (SEVERITIES.index(each.severity), each.tokens or math.inf))


def _groups(a: ModelRopes, b: ModelRopes) -> dict[tuple[Layer, Layer], str]:
    """Return the different pairs of layers, with the numbers of the layers, or their types if a config states none."""
    own, others = (
        [(rope, window if rope else None) for rope, window in zip(each.ropes, each.sliding_windows, strict=True)]
        for each in (a, b)
    )
    groups: dict[tuple[Layer, Layer], list[Any]] = {}
    if a.numbered and b.numbered and own and len(own) == len(others):
        for number, pair in enumerate(zip(own, others, strict=True)):
            groups.setdefault(pair, []).append(number)
        return {pair: f"layer{'s' * (len(found) > 1)} {ranges(found)}" for pair, found in groups.items()}
    types = [[*each.rotating] for each in (a, b)]
    for label in dict.fromkeys(types[0] + types[1]):
        if label or max(map(len, types)) == 1:
            groups.setdefault((a.of_type(label), b.of_type(label)), []).append(label or "other layers")
    return {pair: ", ".join(found) for pair, found in groups.items()}


def _are_copies(a: Checkpoint, b: Checkpoint) -> bool:
    """Return whether the sizes that both configs state agree; a drafter's differ from its target's."""
    one, other = text_part(a.config), text_part(b.config)
    return all(one.get(key, other.get(key)) == other.get(key, one.get(key)) for key in _SIZES)


def _outside_the_rope(a: Checkpoint, b: Checkpoint) -> list[Difference]:
    """Return differences of the scale of queries, and of axes that only one config states."""
    sides = {side: [*blocks(each.config)] if each.config else [] for side, each in (("A", a), ("B", b))}
    scales = [next(map(query_scale, own), None) for own in sides.values()]
    lost = {side: next((each for block in own for each in axes_unwritten(block)), None) for side, own in sides.items()}
    found = []
    if scales[0] != scales[1]:
        shown = [scale_words(one) if one else "1" for one in scales]
        told = f"A multiplies queries by {shown[0]}, B by {shown[1]}."
        found.append(_differs("position-scale", "error", min(one[1] for one in scales if one), told))
    if None in lost.values():
        written = [(side, each) for side, each in lost.items() if each is not None]
        found += [_differs("axes", "warning", None, f"{side}: {each.message}", each.cure) for side, each in written]
    return found


def _drift(one: RopeConfig, other: RopeConfig, seq_len: int) -> tuple[int | None, int]:
    """Return the first distance in tokens at which a pair differs by a quarter turn (None if equal), and that pair."""
    pairs = zip(one.columns_at(seq_len), other.columns_at(seq_len), strict=True)
    apart = [0.0 if math.isclose(f, g, rel_tol=ROUNDING) else abs(f - g) for f, g in pairs]
    pair = max(range(len(apart)), key=apart.__getitem__)
    return (math.ceil(math.pi / 2 / apart[pair]) if apart[pair] else None), pair


def _differs(code: str, severity: Severity, tokens: int | None, message: str, cure: str = _COPY) -> Difference:
    since = "" if tokens is None else f"from a distance of {tokens:,} token{'s' * (tokens > 1)}: "
    return Difference(code=code, severity=severity, tokens=tokens, message=since + message, cure=cure)


def _compare_layer(one: Layer, other: Layer) -> list[Difference]:
    (first, window), (second, its_window) = one, other
    if first is None or second is None:
        only = "B" if first is None else "A"
        return [] if first is second else [_differs("layers", "error", 1, f"they rotate only in {only}.")]
    found = []
    length, its_length = first.max_position_embeddings, second.max_position_embeddings
    if length and its_length and length != its_length:
        told = f"A states a length of {length:,} tokens, B of {its_length:,}; engines stop there."
        found.append(_differs("length", "warning", min(length, its_length), told))
    if window != its_window:
        windows, lengths = (window, its_window), [one for one in (length, its_length) if one]
        seen = [f"{tokens:,}" if tokens else "all" for tokens in windows]
        told, tokens = f"layers of A attend to {seen[0]} tokens, those of B to {seen[1]}.", min(filter(None, windows))
        late = " That is beyond the longest stated length." if tokens >= max(lengths, default=tokens + 1) else ""
        found.append(_differs("window", "note" if late else "error", tokens, told + late))
    if (first.head_dim, first.pairs) != (second.head_dim, second.pairs):
        sizes = [f"{2 * rope.pairs} of {rope.head_dim} features of a head" for rope in (first, second)]
        found.append(_differs("width", "error", 1, f"A rotates {sizes[0]}, B {sizes[1]}."))
        return [*found, *_frequencies(first, _at_width(second, first))]
    if (first.axes, first.axis_blocks) != (second.axes, second.axis_blocks):
        told = "the axes of the pairs differ: text may rotate alike, images and videos do not."
        found.append(_differs("axes", "warning", None, told))
    return [*found, *_frequencies(first, second)]


def _at_width(rope: RopeConfig, of: RopeConfig) -> RopeConfig:
    """Return the rope as if its width were that of `of`; without numbers for each pair, whose length would be wrong."""
    with suppress(RopeError):
        return replace(rope, head_dim=of.head_dim, rotary_dim=of.rotary_dim)
    return replace(of, theta=rope.theta)


def _frequencies(one: RopeConfig, other: RopeConfig) -> list[Difference]:
    """Return the differences of frequencies and attention factor, each at the first length at which it shows."""
    stated = {n for rope in (one, other) for n in (rope.original_length, rope.scaled_length, rope.switch_length) if n}
    lengths = sorted(stated or {_LENGTH})[0 if one.needs_seq_len or other.needs_seq_len else -1 :]
    alone = ModelRopes((one,), (None,), (None,))
    found = []
    drifts = [(n, tokens, pair) for n in lengths for tokens, pair in [_drift(one, other, n)] if tokens]
    for length, tokens, pair in sorted(drifts, key=lambda each: each[1] >= each[0])[:1]:
        f, g = (f"{rope.columns_at(length)[pair]:.4g}" for rope in (one, other))
        told = f"pair {pair} differs by a quarter turn: A rotates it by {f} radians per token, B by {g}"
        cause = cause_of(other.columns_at(1), one, alone, ROUNDING)
        told += f" (B: {cause.words})" if cause else ""
        told += f", in texts of {length:,} tokens." if len(lengths) > 1 else "."
        late = f" That is beyond {length:,} tokens, the longest stated length." if tokens >= length else ""
        found.append(_differs("frequencies", "note" if late else "error", tokens, told + late))
    ratios = [(other.attention_factor_at(n) / one.attention_factor_at(n)) ** 2 for n in lengths]
    ratio = max(ratios, key=lambda each: abs(math.log(each)))
    if not math.isclose(ratio, 1, rel_tol=ROUNDING):
        cause = cause_of_factor(other.attention_factor_at(1), one, alone, ROUNDING)
        told = f"B's attention factor multiplies logits by {ratio:.4g} of A's{f': {cause.words}' if cause else ''}."
        found.append(_differs("factor", "error", 1, told))
    return found


def _pairing(a: Checkpoint, b: Checkpoint, order: str | None) -> list[Difference]:
    """Return the difference if the order of B's query rows does not fit the two pairings."""
    ways = [next(iter(each.ropes.rotating.values())).interleaved for each in (a, b)]
    wanted = "same" if ways[0] == ways[1] else "interleaved" if ways[1] else "half"
    if order == wanted or (order is None and wanted == "same"):
        return []
    told = f"A pairs features {_WAYS[ways[0]]}, B {_WAYS[ways[1]]}"
    if order is None:
        told += ": they agree only if the rows of q and k were permuted; checkpoints with weights would show it."
        return [_differs("pairing", "note" if a.arch or b.arch else "warning", None, told, "")]
    rows = "are in the same order" if order == "same" else f"were permuted for pairs {_WAYS[order == 'interleaved']}"
    return [_differs("pairing", "error", 1, f"{told}, and the query rows of B {rows}.", "Convert A again.")]


def _order_of_rows(a: Checkpoint, b: Checkpoint) -> str | None:
    """Return how the query rows of B are those of A: "same", permuted to "interleaved" or "half"; None if unknown."""
    first, second, rope = _query(a), _query(b), next(iter(a.ropes.rotating.values()))
    if first is None or second is None or first.shape != second.shape or len(first) % rope.head_dim:
        return None
    apart = {"same": float((first - second).norm())}
    for to in ("interleaved", "half"):
        moved = convert_pairing(first, to=to, head_dim=rope.head_dim, rotary_dim=rope.rotary_dim, dim=0)
        apart[to] = float((moved - second).norm())
    best, next_best = sorted(apart, key=apart.__getitem__)[:2]
    return best if apart[best] < apart[next_best] / 2 else None


def _query(model: Checkpoint) -> Tensor | None:
    """Return the query weights of the first layer as stored, in float32; None without weights."""
    if model.path is not None and model.arch in PERMUTED:
        file, name = GGUFFile(model.path), "blk.0.attn_q.weight"
        return file.read(name).float() if name in file.tensors else None
    for path in sorted(model.path.glob("*.safetensors")) if model.path is not None else ():
        with open_safetensors(path) as opened:
            for key in opened.keys():  # noqa: SIM118
                if f".{key}".endswith(".layers.0.self_attn.q_proj.weight"):
                    return Tensor.float(opened.get_tensor(key)).clone()
    return None
