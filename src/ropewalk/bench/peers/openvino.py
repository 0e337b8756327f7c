"""OpenVINO's fused rotation: the graph of a Llama, which its compiler must have turned into one RoPE node."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.bench.timing import Call
from ropewalk.bench.work import Contender, Skip, Tensors, Work, package

NAME = "OpenVINO"
EPS = 4.0


def build(work: Work) -> Contender:
    """`[batch, seq, heads, head_dim]` in, heads first out (the transposition is fused too), into our memory."""
    openvino = package("openvino")
    case = work.case
    if case.interleaved:
        raise Skip("only its half-split fusion is timed")
    if case.dtype not in (torch.float32, torch.bfloat16):
        raise Skip("timed in float32 and bfloat16")
    kind = openvino.Type.f32 if case.dtype == torch.float32 else openvino.Type.bf16
    options = {
        "INFERENCE_NUM_THREADS": work.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": kind.get_type_name(),
    }
    compiled = openvino.Core().compile_model(_model(openvino, work, kind), "CPU", options)
    _check_fused(compiled, len(work.inputs[0]))
    cos, sin = (torch.cat((table, table), -1)[None, None].to(case.dtype) for table in (work.cos, work.sin))

    def make(i: int) -> Call:
        request = compiled.create_infer_request()
        bound = [cos, sin, *work.inputs[i]]
        for port, x in zip(compiled.inputs, bound, strict=True):
            request.set_tensor(port, _shared(openvino, x, kind))
        for port, out in zip(compiled.outputs, work.outs[i], strict=True):
            request.set_tensor(port, _shared(openvino, _heads_first(out), kind))
        return lambda: (request.infer(), bound)

    def read(_: Any) -> Tensors:
        return tuple(_heads_first(out).transpose(1, 2) for out in work.outs[0])

    return Contender(NAME, work.each(make), read, eps=EPS)


def _model(openvino: Any, work: Work, kind: Any) -> Any:
    """x * cos + rotate_half(x) * sin, as exported Llamas write it."""
    op, case = openvino.opset13, work.case
    cos, sin = (op.parameter([1, 1, case.seq, case.head_dim], kind, name=name) for name in ("cos", "sin"))
    parameters, results = [cos, sin], []
    minus = op.constant(np.array(-1, dtype=np.float32), kind)
    for x in work.inputs[0]:
        parameter = op.parameter(list(x.shape), kind)
        heads_first = op.transpose(parameter, np.array([0, 2, 1, 3]))
        halves = op.variadic_split(heads_first, np.int64(3), np.array([case.head_dim // 2] * 2))
        turned = op.concat([op.multiply(halves.output(1), minus), halves.output(0)], -1)
        results.append(op.add(op.multiply(heads_first, cos), op.multiply(turned, sin)))
        parameters.append(parameter)
    return openvino.Model(results, parameters, "rotation")


def _check_fused(compiled: Any, tensors: int) -> None:
    layers = [node.get_rt_info()["layerType"] for node in compiled.get_runtime_model().get_ordered_ops()]
    found = [layer if isinstance(layer, str) else layer.astype(str) for layer in layers]
    if found.count("RoPE") != tensors:
        raise Skip(f"its compiler did not fuse the rotation: {', '.join(found)}")


def _heads_first(out: Tensor) -> Tensor:
    """The memory of `[batch, seq, heads, head_dim]`, used as `[batch, heads, seq, head_dim]`."""
    batch, seq, heads, head_dim = out.shape
    return out.view(batch, heads, seq, head_dim)


def _shared(openvino: Any, x: Tensor, kind: Any) -> Any:
    """The tensor's own memory; numpy knows no bfloat16, so that goes as 16 bits."""
    if x.dtype == torch.float32:
        return openvino.Tensor(x.numpy(), shared_memory=True)
    return openvino.Tensor(x.view(torch.uint16).numpy(), list(x.shape), kind)
