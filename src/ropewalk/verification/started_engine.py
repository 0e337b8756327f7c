"""mlx-lm, ONNX Runtime GenAI and vLLM as engines: each runs in a process of its own; see `program.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.verification import program
from ropewalk.verification.engine import EngineError, NextTokens, TooLong

VARIABLES = {
    "vllm": {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
             "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "ROPEWALK_VLLM_CHECK": "off"},
}  # fmt: skip
INSTALLED = {"mlx": "mlx-lm", "onnx": "onnxruntime-genai", "vllm": "vllm-cpu"}
TITLES = {"mlx": "mlx-lm", "onnx": "ONNX Runtime GenAI", "vllm": "vLLM"}


class StartedEngine:
    """An engine in a process that is started here; see `ropewalk.verification.engine.Engine`. It computes in float32.

    **Arguments:**
    - `kind`: "mlx", "onnx" or "vllm" (on the CPU).
    - `python`: the interpreter of an environment with the engine. Defaults to the running one.

    **Raises:** `RopeError` if the engine is not installed there.
    """

    def __init__(self, kind: str, python: str | os.PathLike[str] | None = None) -> None:
        self.kind, self.name, self.python = kind, TITLES[kind], str(python or sys.executable)
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
                cure=f"Install it: pip install {INSTALLED[self.kind]}, or pass the Python of an environment with it."
                if missing
                else "Check that this version of the engine supports the architecture and its rope.",
            )
        self.version, self.length = answer.get("version", ""), length
        return self

    def token_ids(self, text: str) -> list[int] | None:
        """Return None: the engine receives ids."""
        return None

    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """Return the likeliest next tokens."""
        rows, _ = self.rows(input_ids)
        return NextTokens(rows[0], len(input_ids))

    def generate(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        """Return the generated tokens, always the likeliest, with the answers from which they were taken."""
        rows, generated = self.rows(input_ids, tokens)
        return [NextTokens(row, token=token) for row, token in zip(rows, generated, strict=False)]

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
