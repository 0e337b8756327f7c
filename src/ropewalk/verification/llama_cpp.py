"""A llama.cpp server in this process, started for the time of a check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer
from ropewalk.optional import need
from ropewalk.verification.engine import Engine
from ropewalk.verification.openai_engine import OpenAIEngine

CONTEXT = 8192  # tokens of the server's context


@contextmanager
def llama_cpp_server(
    source: str | Path,
    tokenizer: Tokenizer,
    *,
    context: int = CONTEXT,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Engine]:
    """A server of a .gguf file on a free port of this machine, as `xllamacpp` (PyPI) brings it.

    - `context`: tokens. `threads`: None takes as many as torch does.
    - `options`: more fields of llama.cpp's parameters, such as `rope_freq_base`, `rope_freq_scale`, `yarn_orig_ctx`;
      what the file says of its rope applies without any.

    Raises `RopeError` for anything but a .gguf file, without the package, and where the server does not start.
    """
    path = find(source)
    if path.suffix != ".gguf":
        raise RopeError(
            "verify: llama.cpp is started from a .gguf file.",
            facts={"model": str(path)},
            cure="Pass the file, or --engine transformers for a Hugging Face folder.",
        )
    xllamacpp = need("xllamacpp", extra="llama-cpp")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.n_ctx, settings.n_parallel, settings.port = context, 1, 0
    settings.warmup, settings.verbosity = False, -1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads or torch.get_num_threads()
    for name, value in (options or {}).items():
        setattr(settings, name, value)
    try:
        server = xllamacpp.Server(settings)
    except RuntimeError as error:
        raise RopeError(
            "verify: llama.cpp does not start with this file.",
            facts={"model": path.name, "error": str(error)},
            cure="Check that this version of llama.cpp reads the architecture.",
        ) from error
    try:
        with OpenAIEngine(server.listening_address, tokenizer, name="llama.cpp") as engine:
            yield engine
    finally:
        del server  # stops it
