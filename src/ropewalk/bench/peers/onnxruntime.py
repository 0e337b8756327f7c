"""onnxruntime's RotaryEmbedding operator: one node for each tensor, inputs and outputs bound to our memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.bench.timing import Call
from ropewalk.bench.work import Contender, Skip, Tensors, Work, package

NAME = "onnxruntime"
EPS = 4.0


def build(work: Work) -> Contender:
    """The com.microsoft form on `[batch, seq, heads * head_dim]`, the fastest of its three forms here."""
    onnxruntime, onnx = package("onnxruntime"), package("onnx")
    case = work.case
    kinds = {torch.float32: np.float32, torch.float16: np.float16}
    if case.dtype not in kinds:
        raise Skip(f"its CPU operator has no {str(case.dtype).removeprefix('torch.')}")
    kind = kinds[case.dtype]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = work.threads, 1
    settings.add_session_config_entry("session.force_spinning_stop", "1")  # else it slows who comes next
    session = onnxruntime.InferenceSession(_model(onnx, work, kind), settings, providers=["CPUExecutionProvider"])
    positions = torch.arange(case.seq).repeat(case.batch, 1)
    cos, sin = work.cos.to(case.dtype), work.sin.to(case.dtype)

    def bound(i: int) -> Any:
        binding = session.io_binding()
        for name, x, as_kind in (("positions", positions, np.int64), ("cos", cos, kind), ("sin", sin, kind)):
            binding.bind_input(name, "cpu", 0, as_kind, list(x.shape), x.data_ptr())
        for number, (x, out) in enumerate(zip(work.inputs[i], work.outs[i], strict=True)):
            binding.bind_input(f"x{number}", "cpu", 0, kind, _flat(x), x.data_ptr())
            binding.bind_output(f"y{number}", "cpu", 0, kind, _flat(out), out.data_ptr())
        return binding

    def make(i: int) -> Call:
        binding, held = bound(i), (positions, cos, sin)
        return lambda: (session.run_with_iobinding(binding), held)

    def read(_: Any) -> Tensors:
        return work.outs[0]

    return Contender(NAME, work.each(make), read, eps=EPS)


def _flat(x: Tensor) -> list[int]:
    return [x.shape[0], x.shape[1], x.shape[2] * x.shape[3]]


def _model(onnx: Any, work: Work, kind: Any) -> bytes:
    """A graph of one RotaryEmbedding for each tensor."""
    helper, element = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    inputs = [helper.make_tensor_value_info(name, element, list(table.shape))
              for name, table in (("cos", work.cos), ("sin", work.sin))]  # fmt: skip
    inputs.append(helper.make_tensor_value_info("positions", onnx.TensorProto.INT64, [work.case.batch, work.case.seq]))
    nodes, outputs = [], []
    for number, x in enumerate(work.inputs[0]):
        inputs.append(helper.make_tensor_value_info(f"x{number}", element, _flat(x)))
        outputs.append(helper.make_tensor_value_info(f"y{number}", element, _flat(x)))
        nodes.append(
            helper.make_node(
                "RotaryEmbedding", [f"x{number}", "positions", "cos", "sin"], [f"y{number}"],
                domain="com.microsoft", interleaved=int(work.case.interleaved), num_heads=x.shape[2],
            )
        )  # fmt: skip
    graph = helper.make_graph(nodes, "rotation", inputs, outputs)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model: bytes = helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()
    return model
