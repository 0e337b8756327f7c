"""`rw.doctor`: the whole run as a library call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.diagnosis.document import Diagnosis
from ropewalk.diagnosis.prepare import prepare, with_tokenizer
from ropewalk.diagnosis.settings import DoctorSettings, TextSource
from ropewalk.progress import Progress
from ropewalk.readers import CHUNK
from ropewalk.readers.sharded import sharing_windows


def doctor(
    model: object = "tiny",
    *,
    tokenizer: Any = None,
    target: int | None = None,
    trained_length: int | None = None,
    text: TextSource = None,
    start_char: int = 0,
    block: int | None = None,
    windows: int | None = None,
    stride: int | None = None,
    methods: str | Sequence[str] | None = None,
    unscaled_tokens: int = 0,
    measure: str | Sequence[str] = ("loss", "use"),
    retrieval: str | Sequence[str] | None = None,
    retrieval_lengths: Sequence[int] | None = None,
    retrieval_samples: int = 4,
    retrieval_chat: bool = False,
    seed: int = 0,
    chunk: int = CHUNK,
    workers: int | None = None,
    minutes: float | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | None = None,
    tp_plan: str | None = None,
    shard_window: bool = False,
    state: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
) -> Diagnosis:
    """Measure how far a model's context really reaches, and what would extend it.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, a model of the hub as OWNER/NAME or OWNER/NAME@REVISION, "tiny"; or
      a `Decoder`, a live model of transformers with its `tokenizer`, or a pair of the two. Families that are not built
      here are computed by transformers; `Diagnosis.environment["library"]` says so.
    - `target`: the length wanted, in tokens; None: four times the trained length. `trained_length`: tokens that the
      model was trained to, in place of what its config and the table of families say.
    - `text`: a file, several, or a list of (name, contents); None: Moby Dick. `start_char`: where each begins.
    - `block`, `stride`: tokens; None: a quarter of the trained length. `windows`: of each text; None: up to 16.
    - `methods`: names, "all" for those in attention as well; None: those that a config can hold. plain and crop are
      always measured with them.
    - `unscaled_tokens`: so many first tokens keep their angles under changed frequencies.
    - `measure`: "loss" (always), "use" (the copy test, for plain, the best method and crop) and "retrieval", with
      commas.
    - `retrieval`: "numbers", "passkey", or "all" (those that fit); None: none. `retrieval_lengths` in tokens,
      `retrieval_samples` texts for each task and length. `retrieval_chat`: put the questions into the frame of the
      model's chat template.
    - `seed` draws the windows and the texts. `chunk`: tokens of one forward. `workers`: windows at one time.
    - `minutes`: measure the windows and methods that fit, by an estimate; plain and crop always. None: all.
    - `dtype`, `device`: of a model that is loaded here; one that is passed as an object has its own. "auto" is bfloat16
      where the machine multiplies it faster (AVX512-BF16, AMX, CUDA from sm_80), else float32.
    - `device_map`, `tp_plan`: for a model larger than one device, as transformers' `from_pretrained` takes them, in
      place of `device`; with `tp_plan` all processes of torchrun compute each window together.
    - `shard_window`: under torchrun, the rows of each window over all processes, for windows that one device cannot
      hold.
    - `state`: the folder that keeps each result as soon as it is there; None: one in the user's cache. `resume`:
      continue, or join, the same run; else it begins again. Several processes may share one folder.
    - `progress`: None: a bar on a terminal and in a notebook, nothing elsewhere; False: nothing; or an object that is
      called as the work goes on (`ropewalk.progress.Progress`).

    **Returns:** a `Diagnosis`. Losses are in nats per token.
    **Raises:** `RopeError` for what cannot be measured, before any work where possible; `RunInterrupted` (a
    KeyboardInterrupt) on Ctrl-C, after which `resume=True` continues.

    >>> text = [("story", "The old man and the sea. " * 60)]
    >>> diagnosis = doctor("tiny", trained_length=16, target=32, text=text, windows=1, methods=["pi"])
    >>> list(diagnosis.measurement.results)
    ['plain', 'pi', 'crop']
    """
    given = {name: value for name, value in locals().items() if name not in ("model", "tokenizer", "progress")}
    settings = DoctorSettings(**given)
    with sharing_windows(settings.together):
        return prepare(model if tokenizer is None else with_tokenizer(model, tokenizer), settings, progress).measure(
            progress
        )
