"""Triton kernels for GPU tensors: rotation and attention. With TRITON_INTERPRET=1 they also run on CPU tensors.

Triton is imported when the first tensor needs it, not by `import ropewalk`. A repeated call costs little host time,
because its launch is kept.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ropewalk.backends.request import AttentionRegion, AttentionRequest, Norm, Store, Turn
from ropewalk.dispatch import reasons_for_mathematics

name = "triton"
kernels = True
before_torch = False
most_regions = 4  # each is compiled by itself

# Of attention. It supports what torch's does not: position rules, windows, ragged rows, softcap, sinks.
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_FEATURES = {torch.float32: 128, torch.bfloat16: 256, torch.float16: 256}
SPLIT = 1024  # keys of one program at least, if there are too few programs to fill a GPU


def reasons_not_to(x: Tensor) -> list[str]:
    """Return why the Triton kernels cannot rotate `x`; empty if they can."""
    reasons = reasons_for_mathematics(x)
    if reasons:
        return reasons
    if not _is_installed():
        return ["Triton is not installed"]
    if x.is_cuda:
        return []
    if x.device.type != "cpu" or os.environ.get("TRITON_INTERPRET") != "1":
        return [f"`x` is on {x.device.type}, not on a GPU"]
    return [] if _is_interpreted() else ["Triton was imported before TRITON_INTERPRET was set"]


def rotate(
    xs: Sequence[Tensor], cos: Tensor, sin: Tensor, turn: Turn, outs: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Rotate one or two tensors in one launch; with `turn.phases` each program computes its own angles.

    The phase is exact: the error of cos and sin is at most 2e-7 in float32, and 1e-8 in float64, up to position
    10,000,000.
    """
    results = [torch.empty_like(x) for x in xs] if outs is None else list(outs)
    if not turn.phases:
        cos, sin = _alike(cos, sin)
    _rotate(xs, results, cos, sin, turn)
    return results


def norm_rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, norm: Norm | None, store: Store | None
) -> tuple[Tensor, Tensor]:
    """Norm, rotate and store in one launch; sum the squares before it for a joint norm."""
    cos, sin = _alike(cos, sin)
    outs = torch.empty_like(q), torch.empty_like(k) if store is None else store.keys
    weights = (q, k) if norm is None else (norm.q_weight.contiguous(), norm.k_weight.contiguous())
    kept = (q, q, q) if store is None else (store.slots, store.fresh, store.values)
    eps, joint = (None, False) if norm is None else (norm.eps, norm.joint)
    norms = [_joint_norms(x, turn.layout, norm.eps) for x in (q, k)] if norm is not None and joint else [q, k]
    others = (turn, eps, joint)
    key = _key((q, k, cos) if store is None else (q, k, cos, store.keys, *kept), weights, others)
    plans = _plans()
    plan = plans.planned(key) or plans.keep(key, plans.norm_plan((q, k), outs, cos, turn, eps, store, joint=joint))
    plan(q, k, *outs, cos, sin, *weights, *kept, *norms)
    return outs


def _joint_norms(x: Tensor, layout: str, eps: float) -> Tensor:
    """Return 1 / rms of all heads of each token, `[batch, tokens]`, in the dtype of the arithmetic."""
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    means = wide.square().mean((-3, -1) if layout == "bhsd" else (-2, -1))
    return torch.rsqrt(means + eps).contiguous()


def norm_rotate_backward(
    grads: tuple[Tensor, Tensor], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, norm: Norm
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of q, k and both weights in one launch and two sums; the same bits every time."""
    cos, sin = _alike(cos, sin)
    outs = torch.empty_like(q), torch.empty_like(k)
    weights = norm.q_weight.contiguous(), norm.k_weight.contiguous()
    key = _key((q, k, cos, *grads), weights, (turn, norm.eps))
    plans = _plans()
    plan = plans.planned(key) or plans.keep(
        key, plans.backward_plan((q, k), grads, outs, cos, turn.transposed(), norm.eps)
    )
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    sums = torch.empty(plan.grid[0], q.shape[-1], dtype=compute, device=q.device)
    plan(q, k, *grads, *outs, cos, sin, *weights, sums)
    return *outs, sums[: plan.programs_q].sum(0), sums[plan.programs_q :].sum(0)


def _rotate(xs: Sequence[Tensor], outs: Sequence[Tensor], cos: Tensor, sin: Tensor, turn: Turn) -> None:
    """Rotate by the plan for calls like this one."""
    q, k, q_out, k_out = xs[0], xs[-1], outs[0], outs[-1]
    inplace = q_out is q and k_out is k
    key = (
        turn, len(xs), inplace, sin.shape[-1], q.get_device(), q.dtype, cos.dtype, q.shape, q.stride(),
        q_out.stride(), k.shape, k.stride(), k_out.stride(), cos.shape, cos.stride(),
    )  # fmt: skip
    plans = _plans()
    plan = plans.planned(key)
    if plan is None:
        if (q.shape[0] != k.shape[0] and turn.layout != "thd") or q.shape[-1] != k.shape[-1]:
            for x, out in zip(xs, outs, strict=True):
                _rotate([x], [out], cos, sin, turn)
            return
        plan = plans.keep(key, plans.rotation_plan(xs, outs, cos, sin.shape[-1], turn, inplace))
    plan(q, k, q_out, k_out, cos, sin)


def _key(strided: Sequence[Tensor], weights: Sequence[Tensor], others: tuple[object, ...]) -> tuple[object, ...]:
    """Return everything that a launch depends on; the strides of new tensors follow from those of q and k."""
    parts: list[object] = [others, strided[0].get_device(), weights[0].dtype, weights[1].dtype]
    for x in strided:
        parts += (x.shape, x.stride(), x.dtype)
    return tuple(parts)


def _alike(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tables with equal strides and contiguous features, without a copy if they have these."""
    strides = cos.stride()
    if strides[-1] != 1 or sin.stride() != strides:
        return cos.contiguous(), sin.contiguous()
    return cos, sin


def reasons_not_to_attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> list[str]:
    """Return why the Triton kernels cannot attend with such tensors; empty if they can."""
    for x in (q, k, v, sinks):
        reasons = [] if x is None else reasons_not_to(x)
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
    """Attend in one launch; for few queries, as in decoding, split keys among programs and merge their softmaxes."""
    v, regions = request.values, request.regions
    batch, heads, queries, head_dim = regions[0].q.shape
    key_heads, keys = v.shape[1:3]
    # tokens before heads, so that the caller merges the heads of a token without a copy
    out = v.new_empty(batch, queries, heads, head_dim).transpose(1, 2)
    if out.numel() == 0:
        return out
    splits = _splits(request)
    sums = v.new_empty(splits, batch, heads, queries, dtype=torch.float32)
    parts = out[None] if splits == 1 else v.new_empty(splits, batch, heads, queries, head_dim, dtype=torch.float32)
    constants = _attention_constants(request, heads // key_heads)
    scale, constant, scale_strides = _scale(request)
    tables = [(v, v) if region.turn is None else region.turn[:2] for region in regions]
    sinks = v if request.sinks is None else request.sinks.detach().float().contiguous()
    grid = batch * key_heads * splits * -(-queries * constants.groups // constants.rows)
    device_code = _attention()
    with torch.cuda.device(v.get_device()):
        device_code.attend_kernel[(grid,)](
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
    """Return gradients of a region's queries and keys, and its part of the values': two launches, the same bits.

    `log_sums`: from `attend`. `less`: the sum over features of result times `grad`, float32 `[batch, heads, queries]`.
    """
    assert region.turn is None, "rotation of keys in the kernel has no backward"
    v, q, k = request.values.detach(), region.q.detach(), region.k.detach()
    (batch, heads, queries, head_dim), (key_heads, keys) = q.shape, v.shape[1:3]
    to_q = q.new_empty(batch, queries, heads, head_dim).transpose(1, 2)
    to_k, to_v = (v.new_zeros(batch, keys, key_heads, head_dim).transpose(1, 2) for _ in range(2))
    if to_q.numel() == 0 or to_k.numel() == 0:
        return to_q.zero_(), to_k, to_v
    constants = _attention_constants(request._replace(regions=(region,), sinks=None), heads // key_heads)
    scale, constant, scale_strides = _scale(request)
    low, high = region.bounds
    given = (q, k, low, high, v, grad, log_sums, less, scale)
    numbers = (constant, float(request.softcap or 1.0), key_heads, queries, keys)
    strides = (q.stride(), k.stride(), _bound_strides(region), v.stride(), grad.stride(), less.stride(), scale_strides)
    blocks = -(-queries * constants.groups // constants.rows), -(-keys // constants.keys)
    device_code = _attention()
    with torch.cuda.device(v.get_device()):
        device_code.grad_of_queries_kernel[(batch * key_heads * blocks[0],)](
            *given, to_q, *numbers, *strides, to_q.stride(), **_options(constants)
        )
        device_code.grad_of_keys_kernel[(batch * key_heads * blocks[1],)](
            *given, to_k, to_v, *numbers, *strides, to_k.stride(), **_options(constants)
        )
    return to_q, to_k, to_v


def _attention_constants(request: AttentionRequest, groups: int) -> Any:
    device_code = _attention()
    regions, head_dim = request.regions, request.values.shape[-1]
    features = max(16, 1 << (head_dim - 1).bit_length())
    # the interpreter does not multiply numbers of 16 bits as a GPU does
    wide = request.values.dtype == torch.float32 or device_code.is_interpreted(device_code.attend_kernel)
    small = features > (64 if wide else 128)  # so that tiles fit into the memory of a multiprocessor
    rows = min(32 if small else 64, max(16, 1 << (regions[0].q.shape[2] * groups - 1).bit_length()))
    tl = device_code.tl
    dtypes = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    return device_code.AttentionConstants(
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
    """Return the compiler's options: warps, and the number of stages."""
    large, wide = constants.features > 128, constants.dtype.is_fp32()
    return {
        "C": constants,
        "num_warps": 8 if large else 4,
        "num_stages": 1 if large or wide else 2,
        "enable_fp_fusion": True,
    }


def _splits(request: AttentionRequest) -> int:
    """Return the number of parts that the keys are split into; it depends only on shapes."""
    batch, heads, queries, _ = request.regions[0].q.shape
    key_heads, keys = request.values.shape[1:3]
    programs = batch * key_heads * -(-queries * (heads // key_heads) // 64)
    return max(1, min(64 // max(1, programs), keys // SPLIT))


def _scale(request: AttentionRequest) -> tuple[Tensor, float, tuple[int, int]]:
    """Return the scale as a tensor of queries and its strides, or as a number."""
    if isinstance(request.scale, Tensor):
        scale = request.scale.float()
        return scale, 1.0, (_shared(scale, 0), _shared(scale, 1))
    return request.values, float(request.scale), (0, 0)


def _shared(x: Tensor, dim: int) -> int:
    """Return the stride of a dimension; 0 if it has size 1 and serves all."""
    return x.stride(dim) if x.shape[dim] > 1 else 0


def _bound_strides(region: AttentionRegion) -> tuple[int, int, int, int]:
    low, high = region.bounds
    return _shared(low, 0), _shared(low, 1), _shared(high, 0), _shared(high, 1)


def _table_strides(region: AttentionRegion) -> tuple[int, int]:
    """Return strides of batch and key, which cos and sin share."""
    if region.turn is None:
        return 0, 0
    cos = region.turn.cos
    return _shared(cos, 0) if cos.ndim == 3 else 0, cos.stride(-2)


def _joined(parts: Any) -> tuple[int, ...]:
    return tuple(number for part in parts for number in part)


@functools.cache
def _is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _plans() -> ModuleType:
    """Import the kernels of rotation and norm, which need Triton."""
    from ropewalk.backends.gpu import plans

    return plans


@functools.cache
def _attention() -> ModuleType:
    """Import the kernels of attention, which need Triton."""
    from ropewalk.backends.gpu import attention

    return attention


@functools.cache
def _is_interpreted() -> bool:
    return bool(_plans().is_interpreted(_plans().rotate_kernel))
