"""The other packages, one file each: a call as fair as their interface allows, and a reason where there is none.

Nothing is converted inside the timed call: tables, layouts and dtypes are prepared as the peer wants them. Those that
can write into given memory do. All have the same number of threads.
"""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.bench.peers import (
    compiled,
    flash_attention,
    jax,
    liger,
    onnxruntime,
    openvino,
    rotary_embedding_torch,
    transformers,
)
from ropewalk.bench.work import Contender, Work

Build = Callable[[Work], Contender]

CPU: dict[str, Build] = {
    transformers.NAME: transformers.build,
    compiled.NAME: compiled.build,
    onnxruntime.NAME: onnxruntime.build,
    openvino.NAME: openvino.build,
    jax.NAME: jax.build,
    rotary_embedding_torch.NAME: rotary_embedding_torch.build,
}
CUDA: dict[str, Build] = {
    transformers.NAME: transformers.build,
    compiled.NAME: compiled.build,
    liger.NAME: liger.build,
    flash_attention.NAME: flash_attention.build,
}


def peers_of(device: str) -> dict[str, Build]:
    """The peers that run on a device, by name; each builds a contender, or raises `Skip`."""
    return CPU if device == "cpu" else CUDA
