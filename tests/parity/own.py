"""What a rotary class of transformers does to queries: its own module and its own apply function, at random positions.

A sample holds queries, the positions that we would be given, and what the model makes of them. Vision towers get
(row, column); where a tower's model passes them in another order, or computes coordinates itself, that is done here, as
its model does it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import ropewalk as rw
from tests.parity.classes import Part
from tests.rope.models import Model

LONGEST = 20


class Sample(NamedTuple):
    """Queries `[batch, seq, heads, features]`, positions `[batch, seq]` (or `[..., axes]`), and the queries turned."""

    q: Tensor
    positions: Tensor
    turned: Tensor


def sample(part: Part, config: Any, layer_type: str | None, rope: rw.RopeConfig) -> Sample:
    """Random queries turned by the class itself; `rope` says how wide they are and how many axes positions have."""
    if is_special(part):
        return STYLES.get(part.name, _tower)(part, config, rope)
    q = torch.randn(2, 7, 3, rope.head_dim)
    positions = torch.randint(0, LONGEST, (2, 7) if rope.num_axes == 1 else (2, 7, rope.num_axes))
    model = Model(config, layer_type, part.cls, interleave="Audio" not in part.name)
    ids = positions if rope.num_axes == 1 else positions.movedim(-1, 0)
    return Sample(q, positions, model.rotate(q.transpose(1, 2), ids).transpose(1, 2))


def is_special(part: Part) -> bool:
    """Whether its model is not asked as a text model is: vision towers, and the classes in `STYLES`."""
    vision = "Vision" in part.name and hasattr(part.file, "apply_rotary_pos_emb_vision")
    return part.name in STYLES or vision or part.name.startswith("MLCD")


def frequencies(part: Part, config: Any, layer_type: str | None, seq_len: int = 1) -> tuple[Tensor, float] | None:
    """The class's own inverse frequencies and attention factor at a length; None where it keeps none."""
    if "Attention" in part.name:
        return None
    if is_special(part):
        module = part.cls(config)
        own = getattr(module, "inv_freq", None)
        return None if own is None else (own.double(), float(getattr(module, "attention_scaling", 1.0)))
    return Model(config, layer_type, part.cls).frequencies(seq_len)


def _turned(apply: Callable[..., Any], q: Tensor, *tables: Tensor, **options: Any) -> Tensor:
    """Return q `[batch, seq, heads, features]` rotated by a function of queries and keys with heads first."""
    x = q.transpose(1, 2)
    turned: Tensor = apply(x, x, *tables, **options)[0]
    return turned.transpose(1, 2)


# --- vision towers: tokens of one image, [tokens, heads, features]


def _tower(part: Part, config: Any, rope: rw.RopeConfig, *, column_first: bool = False) -> Sample:
    """Towers whose module takes the coordinates of each token."""
    q, positions = torch.randn(9, 3, rope.head_dim), torch.randint(0, LONGEST, (9, rope.num_axes))
    apply = getattr(part.file, "apply_rotary_pos_emb_vision", None) or part.file.apply_rotary_pos_emb
    turned, _ = apply(q, q, *part.cls(config)(q, positions.flip(-1) if column_first else positions))
    return Sample(q[None], positions[None], turned[None])


def _pixtral(part: Part, config: Any, rope: rw.RopeConfig) -> Sample:
    """Its apply function is a text model's, for all patches of a batch in one row."""
    q, positions = torch.randn(1, 9, 3, rope.head_dim), torch.randint(0, LONGEST, (9, 2))
    tables = part.cls(config)(q, positions)
    return Sample(q, positions[None], _turned(part.file.apply_rotary_pos_emb, q, *tables, unsqueeze_dim=0))


def _gemma4(part: Part, config: Any, rope: rw.RopeConfig) -> Sample:
    """The first half of each head follows the column and the second the row: its processor puts the column first."""
    q, positions = torch.randn(1, 9, 3, rope.head_dim), torch.randint(0, LONGEST, (1, 9, 2))
    cos, sin = part.cls(config)(q, positions.flip(-1))
    return Sample(q, positions, part.file.apply_multidimensional_rope(q, cos, sin, positions.flip(-1)))


def _segment_anything(part: Part, config: Any, rope: rw.RopeConfig) -> Sample:
    """SAM 2, SAM 3 and EdgeTAM: their models pass the column first."""
    q, positions = torch.randn(1, 9, 3, rope.head_dim), torch.randint(0, LONGEST, (9, 2))
    names = ("apply_rotary_pos_emb_2d", "apply_rotary_pos_emb_2d_self_attn")
    apply = next(getattr(part.file, name) for name in names if hasattr(part.file, name))
    return Sample(q, positions[None], _turned(apply, q, *part.cls(config)(q, positions.flip(-1))))


def _segment_anything_attention(part: Part, config: Any, rope: rw.RopeConfig) -> Sample:
    """Their attention classes: the queries that reach the attention function, with projections that do nothing."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    seen: list[Tensor] = []

    def look(module: Any, query: Tensor, key: Tensor, value: Tensor, **_: Any) -> tuple[Tensor, None]:
        seen.append(query)
        return query.transpose(1, 2), None

    embedding = next(
        cls for name, cls in vars(part.file).items() if name.endswith(("VisionRotaryEmbedding", "ViTRotaryEmbedding"))
    )
    width = config.hidden_size if part.folder == "sam3" else config.memory_attention_hidden_size
    attention = part.cls(config, width) if "Cross" in part.name else part.cls(config)
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        torch.nn.init.eye_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
    heads = width // rope.head_dim
    q, positions = torch.randn(1, 9, heads, rope.head_dim), torch.randint(0, LONGEST, (9, 2))
    tables = embedding(config)(q, positions.flip(-1))
    ALL_ATTENTION_FUNCTIONS.register("ropewalk_look", look)
    config._attn_implementation = "ropewalk_look"
    hidden = q.flatten(2)
    with torch.no_grad():
        if part.folder == "sam3":
            attention(hidden.unflatten(1, (3, 3)), tables)
        elif "Cross" in part.name:
            attention(hidden[:, None], hidden[:, None], hidden[:, None], tables, tables, rope_k_repeat=1)
        else:
            attention(hidden[:, None], hidden[:, None], hidden[:, None], position_embeddings=tables)
    return Sample(q, positions[None], seen[0].transpose(1, 2))


def _llama4(part: Part, config: Any, rope: rw.RopeConfig) -> Sample:
    """Patches row by row, numbered from 1, and the class token, which does not turn, last."""
    side = config.image_size // config.patch_size
    patches = rw.positions.grid_positions(side, side, start=1)
    positions = torch.cat([patches, torch.zeros(1, 2, dtype=torch.int64)])
    q = torch.randn(1, len(positions), 3, rope.head_dim)
    turned, _ = part.file.vision_apply_rotary_emb(q, q, part.cls(config)(q))
    return Sample(q, positions[None], turned)


def _dino(part: Part, config: Any, rope: rw.RopeConfig) -> Sample:
    """The patches of an image, after two tokens that do not turn."""
    pixels = torch.zeros(1, 3, 5 * config.patch_size, 4 * config.patch_size)
    patches = rw.positions.grid_positions(5, 4, normalized=True)
    positions = torch.cat([torch.zeros(2, 2, dtype=torch.float64), patches])
    q = torch.randn(1, len(positions), 3, rope.head_dim)
    return Sample(q, positions[None], _turned(part.file.apply_rotary_pos_emb, q, *part.cls(config).eval()(pixels)))


def _efficient_loftr(part: Part, config: Any, rope: rw.RopeConfig) -> Sample:
    """The whole width turns, before it becomes heads; the grid is that of the aggregated queries, from 1."""
    stride, kernel = config.q_aggregation_stride, config.q_aggregation_kernel_size
    features = torch.zeros(1, 1, stride * 4 + kernel, stride * 3 + kernel)
    cos, sin = (table.flatten(1, 2) for table in part.cls(config)(features))
    positions = rw.positions.grid_positions(5, 4, start=1)
    q = torch.randn(1, len(positions), 1, rope.head_dim)
    turned, _ = part.file.apply_rotary_pos_emb(q, q, cos, sin, unsqueeze_dim=2)
    return Sample(q, positions[None], turned)


# --- audio


def _conformer(part: Part, config: Any, rope: rw.RopeConfig) -> Sample:
    """Wav2Vec2's conformers turn the hidden states, as heads, before their projections."""
    owner = next(cls for cls in vars(part.file).values() if hasattr(cls, "_apply_rotary_embedding"))
    q = torch.randn(2, 9, 3, rope.head_dim)
    tables = part.cls(config)(q.flatten(2))
    shape = SimpleNamespace(num_heads=3, head_size=rope.head_dim)
    turned = owner._apply_rotary_embedding(shape, q.flatten(2), tables)
    return Sample(q, torch.arange(9).expand(2, 9), turned.view_as(q))


def _clvp(part: Part, config: Any, rope: rw.RopeConfig) -> Sample:
    """Its attention cuts the leading features off, and turns values as well."""
    q, positions = torch.randn(2, 9, 3, rope.head_dim), torch.randint(0, 9, (2, 9))
    angles = part.cls(config)(q)[0]
    width = angles.shape[-1]
    x = q[..., :width].transpose(1, 2)
    turned, _, values = part.file.apply_rotary_pos_emb(x, x, x, angles.cos(), angles.sin(), positions)
    assert torch.equal(turned, values)
    return Sample(q, positions, torch.cat([turned.transpose(1, 2), q[..., width:]], dim=-1))


_MUSE = partial(_tower, column_first=True)
STYLES: dict[str, Callable[[Part, Any, rw.RopeConfig], Sample]] = {
    "PixtralVisionRotaryEmbedding": _pixtral, "Gemma4VisionRotaryEmbedding": _gemma4,
    "MuseGlimmerVisionRotaryEmbedding": _MUSE, "MuseSparkVisionRotaryEmbedding": _MUSE,
    "Sam2VideoVisionRotaryEmbedding": _segment_anything, "Sam3ViTRotaryEmbedding": _segment_anything,
    "Sam3TrackerVideoVisionRotaryEmbedding": _segment_anything, "EdgeTamVideoVisionRotaryEmbedding": _segment_anything,
    "Sam2VideoRoPEAttention": _segment_anything_attention, "Sam3ViTRoPEAttention": _segment_anything_attention,
    "Sam3TrackerVideoRoPEAttention": _segment_anything_attention,
    "EdgeTamVideoRoPESelfAttention": _segment_anything_attention,
    "EdgeTamVideoRoPECrossAttention": _segment_anything_attention, "Llama4VisionRotaryEmbedding": _llama4,
    "DINOv3ViTRopePositionEmbedding": _dino, "EomtDinov3RotaryEmbedding": _dino,
    "Sapiens2RopePositionEmbedding": _dino, "EfficientLoFTRRotaryEmbedding": _efficient_loftr,
    "Wav2Vec2BertRotaryPositionalEmbedding": _conformer, "Wav2Vec2ConformerRotaryPositionalEmbedding": _conformer,
    "SeamlessM4TConformerRotaryPositionalEmbedding": _conformer, "ClvpRotaryPositionalEmbedding": _clvp,
}  # fmt: skip
