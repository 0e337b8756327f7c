"""The Triton attention kernels for GPU tensors, forward and backward; with TRITON_INTERPRET=1 they run in numpy.

They serve what torch's fused attention does not know: position rules, sliding windows, ragged rows, softcap, sinks.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ropewalk.backends import triton
from ropewalk.backends.attention_request import AttentionRegion, AttentionRequest

name = "triton"
kernels = True
before_torch = False
most_regions = 4  # each is compiled by itself

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_FEATURES = {torch.float32: 128, torch.bfloat16: 256, torch.float16: 256}
SPLIT = 1024  # keys of one program at least, where there are too few programs to fill a GPU


def reasons_not_to_attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> list[str]:
    """Why the Triton kernels cannot take queries, keys, values and sinks like these; empty if they can."""
    for x in (q, k, v, sinks):
        reasons = [] if x is None else triton.reasons_not_to(x)
        if reasons:
            return reasons
    reasons = []
    if not q.dtype == k.dtype == v.dtype or q.dtype not in DTYPES:
        reasons.append(f"dtypes {q.dtype}, {k.dtype}, {v.dtype} are not one of float32, bfloat16 and float16")
    if not q.device == k.device == v.device or (sinks is not None and sinks.device != q.device):
        reasons.append("devices differ")
    if q.shape[-1] > MOST_FEATURES.get(q.dtype, q.shape[-1]):
        reasons.append(f"heads of {q.dtype} have more than {MOST_FEATURES[q.dtype]} features")
    return reasons


def attend(request: AttentionRequest, log_sums: Tensor | None = None) -> Tensor:
    """One launch. Where queries are few, as in decoding, keys are split among programs, whose softmaxes are joined."""
    v, regions = request.values, request.regions
    batch, heads, queries, head_dim = regions[0].q.shape
    key_heads, keys = v.shape[1:3]
    # tokens before heads, so that the caller joins the heads of a token without a copy
    out = v.new_empty(batch, queries, heads, head_dim).transpose(1, 2)
    if out.numel() == 0:
        return out
    splits = _splits(request)
    sums = v.new_empty(splits, batch, heads, queries, dtype=torch.float32)
    parts = out[None] if splits == 1 else v.new_empty(splits, batch, heads, queries, head_dim, dtype=torch.float32)
    constants = _constants(request, heads // key_heads)
    scale, constant, scale_strides = _scale(request)
    tables = [(v, v) if region.turn is None else region.turn[:2] for region in regions]
    sinks = v if request.sinks is None else request.sinks.detach().float().contiguous()
    grid = batch * key_heads * splits * -(-queries * constants.groups // constants.rows)
    forward, _ = _gpu()
    with torch.cuda.device(v.get_device()):
        forward.attend_kernel[(grid,)](
            tuple(region.q.detach() for region in regions), tuple(region.k.detach() for region in regions),
            tuple(region.bounds.low for region in regions), tuple(region.bounds.high for region in regions),
            tuple(cos for cos, _ in tables), tuple(sin for _, sin in tables),
            tuple(1.0 if region.turn is None else float(region.turn.factor) for region in regions),
            v.detach(), parts, sums, scale, sinks, constant, float(request.softcap or 1.0), key_heads, queries, keys,
            splits, -(-keys // splits),
            _joined(region.q.stride() for region in regions), _joined(region.k.stride() for region in regions),
            _joined(_bound_strides(region) for region in regions),
            _joined(_table_strides(region) for region in regions),
            v.stride(), parts.stride()[:4], sums.stride()[:3], scale_strides, **_options(constants),
        )  # fmt: skip
    if log_sums is not None:
        log_sums.copy_(sums.logsumexp(0))
    if splits > 1:
        shares = (sums - sums.logsumexp(0)).exp_().nan_to_num_(0.0)  # rows without a key give zeros
        out.copy_((parts * shares[..., None]).sum(0))
    return out


def attend_backward(
    request: AttentionRequest, region: AttentionRegion, log_sums: Tensor, less: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one region's queries and keys, and its part of the values': two launches, the same bits every time.

    `log_sums` as `attend` wrote them; `less`: the sum over features of result times `grad`, float32 `[batch, heads,
    queries]`.
    """
    assert region.turn is None, "the kernel's own turning of keys has no backward"
    v, q, k = request.values.detach(), region.q.detach(), region.k.detach()
    (batch, heads, queries, head_dim), (key_heads, keys) = q.shape, v.shape[1:3]
    to_q = q.new_empty(batch, queries, heads, head_dim).transpose(1, 2)
    to_k, to_v = (v.new_zeros(batch, keys, key_heads, head_dim).transpose(1, 2) for _ in range(2))
    if to_q.numel() == 0 or to_k.numel() == 0:
        return to_q.zero_(), to_k, to_v
    constants = _constants(request._replace(regions=(region,), sinks=None), heads // key_heads)
    scale, constant, scale_strides = _scale(request)
    low, high = region.bounds
    given = (q, k, low, high, v, grad, log_sums, less, scale)
    numbers = (constant, float(request.softcap or 1.0), key_heads, queries, keys)
    strides = (q.stride(), k.stride(), _bound_strides(region), v.stride(), grad.stride(), less.stride(), scale_strides)
    blocks = -(-queries * constants.groups // constants.rows), -(-keys // constants.keys)
    _, backward = _gpu()
    with torch.cuda.device(v.get_device()):
        backward.grad_of_queries_kernel[(batch * key_heads * blocks[0],)](
            *given, to_q, *numbers, *strides, to_q.stride(), **_options(constants)
        )
        backward.grad_of_keys_kernel[(batch * key_heads * blocks[1],)](
            *given, to_k, to_v, *numbers, *strides, to_k.stride(), **_options(constants)
        )
    return to_q, to_k, to_v


def _constants(request: AttentionRequest, groups: int) -> Any:
    forward, _ = _gpu()
    regions, head_dim = request.regions, request.values.shape[-1]
    features = max(16, 1 << (head_dim - 1).bit_length())
    # the interpreter does not multiply numbers of 16 bits as a GPU does
    wide = request.values.dtype == torch.float32 or forward.is_interpreted(forward.attend_kernel)
    small = features > (64 if wide else 128)  # so that tiles fit into the memory of a multiprocessor
    rows = min(32 if small else 64, max(16, 1 << (regions[0].q.shape[2] * groups - 1).bit_length()))
    dtypes = {torch.float32: forward.tl.float32, torch.bfloat16: forward.tl.bfloat16, torch.float16: forward.tl.float16}
    return forward.AttentionConstants(
        regions=len(regions),
        groups=groups,
        head_dim=head_dim,
        rows=rows,
        keys=64 if features <= 64 and not wide else 32,
        features=features,
        pairs=tuple(0 if region.turn is None else region.turn.cos.shape[-1] for region in regions),
        interleaved=tuple(region.turn is not None and region.turn.interleaved for region in regions),
        capped=bool(request.softcap),
        sinks=request.sinks is not None,
        scales=isinstance(request.scale, Tensor),
        dtype=dtypes[torch.float32 if wide else request.values.dtype],
        precision="tf32x3" if torch.version.hip is None else "ieee",  # three products of parts: exact to 2^-22
    )


def _options(constants: Any) -> dict[str, Any]:
    """How a kernel is compiled: warps, and how many tiles are on their way at one time."""
    large, wide = constants.features > 128, constants.dtype.is_fp32()
    return {
        "C": constants,
        "num_warps": 8 if large else 4,
        "num_stages": 1 if large or wide else 2,
        "enable_fp_fusion": True,
    }


def _splits(request: AttentionRequest) -> int:
    """Into how many parts the keys of each program are cut: by shapes alone."""
    batch, heads, queries, _ = request.regions[0].q.shape
    key_heads, keys = request.values.shape[1:3]
    programs = batch * key_heads * -(-queries * (heads // key_heads) // 64)
    return max(1, min(64 // max(1, programs), keys // SPLIT))


def _scale(request: AttentionRequest) -> tuple[Tensor, float, tuple[int, int]]:
    """The scale as a tensor of queries and its strides, or as a number."""
    if isinstance(request.scale, Tensor):
        scale = request.scale.float()
        return scale, 1.0, (_shared(scale, 0), _shared(scale, 1))
    return request.values, float(request.scale), (0, 0)


def _shared(x: Tensor, dim: int) -> int:
    """The stride of a dimension that may have size 1 and then serves all."""
    return x.stride(dim) if x.shape[dim] > 1 else 0


def _bound_strides(region: AttentionRegion) -> tuple[int, int, int, int]:
    low, high = region.bounds
    return _shared(low, 0), _shared(low, 1), _shared(high, 0), _shared(high, 1)


def _table_strides(region: AttentionRegion) -> tuple[int, int]:
    """Of batch and key; cos and sin of one turn have the same."""
    if region.turn is None:
        return 0, 0
    cos = region.turn.cos
    return _shared(cos, 0) if cos.ndim == 3 else 0, cos.stride(-2)


def _joined(parts: Any) -> tuple[int, ...]:
    return tuple(number for part in parts for number in part)


@functools.cache
def _gpu() -> tuple[ModuleType, ModuleType]:
    """The modules that need Triton: forward and backward."""
    from ropewalk.backends.gpu import attention, attention_backward

    return attention, attention_backward
