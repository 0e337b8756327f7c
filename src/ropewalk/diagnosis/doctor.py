"""`rw.doctor`: the whole run as a library call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.diagnosis.document import Diagnosis
from ropewalk.diagnosis.prepare import prepare, with_tokenizer
from ropewalk.diagnosis.settings import DoctorSettings, Protocol, TextSource
from ropewalk.progress import Progress


def doctor(
    model: object = "tiny",
    *,
    tokenizer: Any = None,
    target: int | None = None,
    trained_length: int | None = None,
    text: TextSource = None,
    methods: str | Sequence[str] | None = None,
    engine: str | None = None,
    measure: str | Sequence[str] = ("loss", "copies"),
    minutes: float | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    state: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
    protocol: Protocol | None = None,
) -> Diagnosis:
    """Measure how far a model's context really reaches, and what would extend it.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, a model of the hub as OWNER/NAME or OWNER/NAME@REVISION, "tiny"; or
      a `Decoder` in Llama's layout, a live model of transformers with its `tokenizer`, or a pair of the two.
      transformers computes the model; `Diagnosis.environment["library"]` contains its version and the model's class.
    - `target`: the desired length in tokens; None: four times the trained length. `trained_length`: in tokens;
      overrides the config and the table of families.
    - `text`: a file or folder, a list of them, or a list of (name, contents); None: passages of books and of code.
    - `methods`: names, or "all", which includes methods in attention; None: those that a config can express. plain and
      crop are always measured.
    - `engine`: the engine for the model: "vllm", "sglang", "llama.cpp", "ollama", "transformers" or "python". Only
      methods it can run are recommended. None: any engine that uses a config.
    - `measure`: "loss" (always) and "copies" (copying of passages of the text), separated by commas.
    - `minutes`: time limit, after which the run ends with the best answer so far. None: 10 on a CPU;
      no limit elsewhere. `math.inf`: no limit.
    - `dtype`, `device`: for a model that is loaded here. "auto" is bfloat16 if the machine multiplies it faster
      (AVX512-BF16, AMX, CUDA from sm_80), else float32.
    - `state`: the folder in which results are saved as they are computed; None: in the user's cache. `resume`: resume
      the same run; else it starts over.
    - `progress`: None: a bar on a terminal and in a notebook, nothing elsewhere; False: nothing; or an object that
      gets the progress (`ropewalk.progress.Progress`).
    - `protocol`: how to measure, a `ropewalk.diagnosis.Protocol`. Lengths are in tokens:

      | field | default | |
      |---|---|---|
      | `windows` | None: up to 16 | most windows to measure, of all texts |
      | `block` | None: an eighth of the tokens beyond | tokens of a block of positions |
      | `stride` | None: a quarter of the trained length | crop's stride |
      | `start_char` | 0 | character at which each text starts |
      | `seed` | 0 | seed of the windows |
      | `keep_going` | False | measure every window under every method, even after the verdict is final |
      | `chunk` | 2048 | tokens of one forward pass |
      | `workers` | None: as cores and memory allow | windows measured at the same time |
      | `device_map` | None | transformers' argument, instead of `device`, for models larger than a device |

    **Returns:** a `Diagnosis`. Losses are in nats per token.
    **Raises:** `RopeError` if something cannot be measured, before any work if possible; `RunInterrupted` (a
    KeyboardInterrupt) on Ctrl-C, after which `resume=True` resumes the run.

    >>> from ropewalk.diagnosis import Protocol
    >>> text = [("story", "The old man and the sea. " * 60)]
    >>> one = Protocol(windows=1)
    >>> diagnosis = doctor("tiny", trained_length=16, target=32, text=text, methods=["pi"], protocol=one)
    >>> list(diagnosis.measurement.results)
    ['plain', 'crop', 'pi']
    """
    settings = DoctorSettings(
        target=target,
        trained_length=trained_length,
        text=text,
        methods=methods,
        engine=engine,
        measure=measure,
        minutes=minutes,
        dtype=dtype,
        device=device,
        state=state,
        resume=resume,
        protocol=Protocol() if protocol is None else protocol,
    )
    chosen = model if tokenizer is None else with_tokenizer(model, tokenizer)
    return prepare(chosen, settings, progress).measure(progress)
