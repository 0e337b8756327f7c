"""The work that is timed, and the packages that compete with ours: each as fast as its interface allows.

Nothing is converted inside a timed call: tables, layouts and dtypes are prepared as the peer expects them. Peers that
can write into given memory do. All have the same number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import torch
from timing import Call, Timed, last_level_cache
from torch import Tensor

from tests.rotation.backends.cases import THETA, Case

Tensors = tuple[Tensor, ...]
FEW = 128  # sets at most: the smallest cases would need thousands
WHOLE = 2**30  # bytes of a set that exceeds every cache: one set is enough
EPS = 4.0  # of the dtype: most peers round tables, two products and a sum to the model's dtype


class Skip(Exception):
    """A peer cannot take part; the message gives the reason."""


@dataclass(frozen=True)
class Contender:
    """One way to do the work on each set of buffers.

    - `read`: makes the rotated tensors, in the case's layout, of what a call returned; None if nothing is rotated.
    - `interleaved`: its pairing, if it is not the case's.
    - `eps`, `own_angles`: the rounding that it is allowed, if it is not ours; see `rotation.check`.
    - `before`: what it does to tensor number n before the rotation, in float64.
    """

    name: str
    calls: Sequence[Call]
    read: Callable[[Any], Tensors] | None = None
    eps: float = 0.0
    own_angles: bool = False
    before: Callable[[int, np.ndarray], np.ndarray] | None = None
    interleaved: bool | None = None
    inverse: bool = False

    def timed(self) -> Timed:
        """Return what the clock needs."""
        return Timed(self.name, self.calls)


@dataclass
class Work:
    """A case in `sets` copies, so that a round of all of them exceeds the last-level cache several times.

    `inputs[i]` are queries and keys (or only queries) of set i, `outs[i]` memory for the result, shared by all who can
    write into it; `spare()` returns copies for those who work in place. Tables are float32 `[seq, pairs]`.
    """

    case: Case
    device: str = "cpu"
    sets: int = 0
    inputs: list[Tensors] = field(init=False)
    outs: list[Tensors] = field(init=False)
    cos: Tensor = field(init=False)
    sin: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sets = self.sets or sets_for(self.case.bytes, self.device)
        first = self.case.tensors(self.device)
        self.inputs = [first, *(tuple(x.clone() for x in first) for _ in range(self.sets - 1))]
        self.outs = [tuple(torch.zeros_like(x) for x in first) for _ in range(self.sets)]
        self.cos, self.sin = self.case.cos_sin(self.device)

    @property
    def threads(self) -> int:
        """Return the threads that every contender may use."""
        return torch.get_num_threads()

    def spare(self) -> list[Tensors]:
        """Return copies of the inputs."""
        return [tuple(x.clone() for x in tensors) for tensors in self.inputs]

    def each(self, make: Callable[[int], Call]) -> list[Call]:
        """Return `make(i)` for each set."""
        return [make(i) for i in range(self.sets)]


def sets_for(size: int, device: str = "cpu") -> int:
    """Return how many sets of `size` bytes in and as many out exceed the last-level cache four times."""
    if device != "cpu" or size >= WHOLE:
        return 1
    return max(2, min(FEW, -(-4 * last_level_cache() // (2 * size))))


def package(name: str, install: str | None = None) -> Any:
    """Import the peer; raise `Skip` with the way to install it if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise Skip(f"cannot be imported ({error}); pip install {install or name}") from error


def transformers(work: Work, name: str = "transformers", wrap: Callable[[Any], Any] = lambda made: made) -> Contender:
    """Call transformers' eager functions: Llama's (half-split, heads first) or GPT-J's (interleaved).

    Tables have the dtype of the model, as its rotary embedding makes them. `wrap` may compile the function.
    """
    if work.case.interleaved:
        function = wrap(package("transformers.models.gptj.modeling_gptj", "transformers").apply_rotary_pos_emb)
        sin, cos = (table[None].to(work.case.dtype) for table in (work.sin, work.cos))
        return Contender(
            name, work.each(lambda i: lambda: [function(x, sin, cos) for x in work.inputs[i]]), tuple, eps=EPS
        )
    function = wrap(package("transformers.models.llama.modeling_llama", "transformers").apply_rotary_pos_emb)
    cos, sin = (torch.cat((table, table), -1)[None].to(work.case.dtype) for table in (work.cos, work.sin))

    def make(i: int) -> Call:
        q, *rest = (x.transpose(1, 2) for x in work.inputs[i])
        k = rest[0] if rest else q[:, :0]  # it takes both: keys of no heads cost it next to nothing
        return lambda: function(q, k, cos, sin)

    def read(returned: Any) -> Tensors:
        return tuple(x.transpose(1, 2) for x in returned[: len(work.inputs[0])])

    return Contender(name, work.each(make), read, eps=EPS)


def compiled(work: Work) -> Contender:
    """Compile transformers' functions for the shape that is timed: static shapes, one graph.

    Earlier compiled code is dropped, so that no limit on recompiling is reached.
    """
    torch.compiler.reset()
    return transformers(work, "torch.compile", lambda made: torch.compile(made, dynamic=False, fullgraph=True))


def rotary_embedding_torch(work: Work) -> Contender:
    """Call rotary-embedding-torch, which rotates only interleaved pairs and forms its own angles.

    Its angles are kept between calls; it forms cos and sin in each. A float32 call comes first and fills its cache of
    angles: for bfloat16 it would form positions in bfloat16, which is wrong from position 257 on.
    """
    case = work.case
    if case.offset:
        raise Skip("timed from position 0")
    module = package("rotary_embedding_torch", "rotary-embedding-torch")
    rotary = module.RotaryEmbedding(
        case.head_dim, theta=THETA, seq_before_head_dim=True, cache_max_seq_len=max(8192, case.seq)
    )
    with torch.no_grad():
        rotary.rotate_queries_or_keys(work.inputs[0][0][..., :1, :].float())
    calls = work.each(lambda i: lambda: [rotary.rotate_queries_or_keys(x) for x in work.inputs[i]])
    return Contender("rotary-embedding-torch", calls, tuple, eps=EPS, own_angles=True, interleaved=True)


def flash_attention(work: Work) -> Contender:
    """Call flash-attention's Triton rotation in place on copies of the inputs, one launch for each tensor."""
    apply_rotary = package("flash_attn.ops.triton.rotary", "flash-attn").apply_rotary
    spare, cos, sin, pairing = work.spare(), work.cos, work.sin, work.case.interleaved
    calls = work.each(
        lambda i: lambda: [apply_rotary(x, cos, sin, interleaved=pairing, inplace=True) for x in spare[i]]
    )
    return Contender("flash-attention", calls, tuple, eps=EPS)


def liger(work: Work) -> Contender:
    """Call Liger-Kernel's Triton rotation (half-split, heads first) on copies of the inputs, which it overwrites."""
    if work.case.interleaved:
        raise Skip("half-split only")
    if not work.case.kv_heads:
        raise Skip("it takes queries and keys together")
    function = package("liger_kernel.transformers.rope", "liger-kernel").liger_rotary_pos_emb
    cos, sin = (torch.cat((table, table), -1)[None].to(work.case.dtype) for table in (work.cos, work.sin))
    spare = work.spare()

    def make(i: int) -> Call:
        q, k = (x.transpose(1, 2) for x in spare[i])
        return lambda: function(q, k, cos, sin)

    def read(returned: Any) -> Tensors:
        return tuple(x.transpose(1, 2) for x in returned)

    return Contender("Liger-Kernel", work.each(make), read, eps=EPS)


def onnxruntime(work: Work) -> Contender:
    """Run onnxruntime's RotaryEmbedding operator: one node for each tensor, bound to our memory.

    The com.microsoft form on `[batch, seq, heads * head_dim]` is the fastest of its three forms here.
    """
    runtime, onnx = package("onnxruntime"), package("onnx")
    case = work.case
    kinds = {torch.float32: np.float32, torch.float16: np.float16}
    if case.dtype not in kinds:
        raise Skip(f"its CPU operator has no {str(case.dtype).removeprefix('torch.')}")
    kind = kinds[case.dtype]
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = work.threads, 1
    settings.add_session_config_entry("session.force_spinning_stop", "1")  # else it slows who comes next
    session = runtime.InferenceSession(_onnx_model(onnx, work, kind), settings, providers=["CPUExecutionProvider"])
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

    return Contender("onnxruntime", work.each(make), lambda _: work.outs[0], eps=EPS)


def _flat(x: Tensor) -> list[int]:
    return [x.shape[0], x.shape[1], x.shape[2] * x.shape[3]]


def _onnx_model(onnx: Any, work: Work, kind: Any) -> bytes:
    """Make a graph of one RotaryEmbedding for each tensor."""
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


def openvino(work: Work) -> Contender:
    """Run OpenVINO on the graph of a Llama, which its compiler must fuse into one RoPE node.

    `[batch, seq, heads, head_dim]` in, heads first out (the transposition is fused too), into our memory.
    """
    module = package("openvino")
    case = work.case
    if case.interleaved:
        raise Skip("only its half-split fusion is timed")
    if case.dtype not in (torch.float32, torch.bfloat16):
        raise Skip("timed in float32 and bfloat16")
    kind = module.Type.f32 if case.dtype == torch.float32 else module.Type.bf16
    options = {
        "INFERENCE_NUM_THREADS": work.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": kind.get_type_name(),
    }
    made = module.Core().compile_model(_openvino_model(module, work, kind), "CPU", options)
    layers = [node.get_rt_info()["layerType"] for node in made.get_runtime_model().get_ordered_ops()]
    names = [layer if isinstance(layer, str) else layer.astype(str) for layer in layers]
    if names.count("RoPE") != len(work.inputs[0]):
        raise Skip(f"its compiler did not fuse the rotation: {', '.join(names)}")
    cos, sin = (torch.cat((table, table), -1)[None, None].to(case.dtype) for table in (work.cos, work.sin))

    def shared(x: Tensor) -> Any:
        if x.dtype == torch.float32:
            return module.Tensor(x.numpy(), shared_memory=True)
        return module.Tensor(x.view(torch.uint16).numpy(), list(x.shape), kind)  # numpy has no bfloat16

    def make(i: int) -> Call:
        request = made.create_infer_request()
        bound = [cos, sin, *work.inputs[i]]
        for port, x in zip(made.inputs, bound, strict=True):
            request.set_tensor(port, shared(x))
        for port, out in zip(made.outputs, work.outs[i], strict=True):
            request.set_tensor(port, shared(_heads_first(out)))
        return lambda: (request.infer(), bound)

    def read(_: Any) -> Tensors:
        return tuple(_heads_first(out).transpose(1, 2) for out in work.outs[0])

    return Contender("OpenVINO", work.each(make), read, eps=EPS)


def _openvino_model(module: Any, work: Work, kind: Any) -> Any:
    """Make x * cos + rotate_half(x) * sin, as exported Llamas write it."""
    op, case = module.opset13, work.case
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
    return module.Model(results, parameters, "rotation")


def _heads_first(out: Tensor) -> Tensor:
    """Return the memory of `[batch, seq, heads, head_dim]` as `[batch, heads, seq, head_dim]`."""
    batch, seq, heads, head_dim = out.shape
    return out.view(batch, heads, seq, head_dim)


def jax(work: Work) -> Contender:
    """Run jax.jit of the rotation in float32, into a donated output: each call overwrites the output of the last."""
    module = _jax(work.threads)
    interleaved = work.case.interleaved

    def turn(x: Any, cos: Any, sin: Any) -> Any:
        # stacking compiles to one loop; slicing and concatenating halves is several times slower
        axis = -1 if interleaved else -2
        pairs = x.astype("float32").reshape(*x.shape[:-1], *((-1, 2) if interleaved else (2, -1)))
        a, b = (module.numpy.take(pairs, n, axis=axis) for n in (0, 1))
        c, s = cos[None, :, None], sin[None, :, None]
        return module.numpy.stack([a * c - b * s, b * c + a * s], axis=axis).reshape(x.shape).astype(x.dtype)

    def turn_all(inputs: Any, cos: Any, sin: Any, outs: Any) -> Any:
        return [turn(x, cos, sin) for x in inputs]

    run = module.jit(turn_all, donate_argnums=3, keep_unused=True)
    cos, sin = module.dlpack.from_dlpack(work.cos), module.dlpack.from_dlpack(work.sin)

    def make(i: int) -> Call:
        inputs = [module.dlpack.from_dlpack(x) for x in work.inputs[i]]
        held = [[module.numpy.zeros_like(x) for x in inputs]]

        def call() -> Any:
            held[0] = module.block_until_ready(run(inputs, cos, sin, held[0]))
            return held[0]

        return call

    def read(returned: Any) -> Tensors:
        return tuple(torch.utils.dlpack.from_dlpack(x).clone() for x in returned)

    return Contender("jax.jit", work.each(make), read, eps=EPS)


_started: dict[str, int] = {}


def _jax(threads: int) -> Any:
    """Import jax for the CPU with that many threads: it makes its pool once, from the variable NPROC."""
    if "threads" not in _started:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        before = os.environ.get("NPROC")
        os.environ["NPROC"] = str(threads)
        try:
            package("jax").devices()
        finally:
            if before is None:
                del os.environ["NPROC"]
            else:
                os.environ["NPROC"] = before
        _started["threads"] = threads
    if _started["threads"] != threads:
        raise Skip(f"it was started with {_started['threads']} threads")
    return package("jax")


Build = Callable[[Work], Contender]
CPU: dict[str, Build] = {
    "transformers": transformers,
    "torch.compile": compiled,
    "onnxruntime": onnxruntime,
    "OpenVINO": openvino,
    "jax.jit": jax,
    "rotary-embedding-torch": rotary_embedding_torch,
}
CUDA: dict[str, Build] = {
    "transformers": transformers,
    "torch.compile": compiled,
    "Liger-Kernel": liger,
    "flash-attention": flash_attention,
}


def peers_of(device: str) -> dict[str, Build]:
    """Return the peers of a device by name; each builds a contender, or raises `Skip`."""
    return CPU if device == "cpu" else CUDA
