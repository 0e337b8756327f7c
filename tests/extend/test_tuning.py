"""`extend.tune` on transformers' Trainer: which weights move, what is written, resuming, families, and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ropewalk as rw
from ropewalk.checkpoints.load import load_decoder
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.extend import ApplySettings, TuneSettings, apply, tune
from ropewalk.extend.job import Extended
from ropewalk.extend.trainer import last_checkpoint
from ropewalk.training import Event
from tests.extend.material import TARGET, TRAINED, checkpoint, checkpoint_with_merges, token_ids
from tests.training.material import prose

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": TRAINED, "initializer_range": 0.2, "pad_token_id": None,
    "bos_token_id": 256, "eos_token_id": 256,
}  # fmt: skip
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma3": ("Gemma3Text", {"head_dim": 8, "sliding_window": 8, "rope_local_base_freq": 1e4,
                              "layer_types": ["sliding_attention", "full_attention"]}),
    "Phi3": ("Phi3", {}),
    "Olmo2": ("Olmo2", {}),
    "Qwen3Moe": ("Qwen3Moe", {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                              "decoder_sparse_step": 1}),
}  # fmt: skip


def settings(path: str, **changes: Any) -> TuneSettings:
    """A run of a second."""
    plain: dict[str, Any] = {
        "text": (path,), "steps": 4, "lr": 1e-2, "target": TARGET, "batch_size": 2, "precision": "float32",
        "device": "cpu", "measure": False,
    }  # fmt: skip
    return TuneSettings(**(plain | changes))


def other(folder: Path, family: str) -> Path:
    """A folder of a family that only transformers computes, with a tokenizer of bytes."""
    config, more = OTHERS[family]
    torch.manual_seed(3)
    made = getattr(transformers, f"{config}Config")(**{**SIZES, **more})
    getattr(transformers, f"{family}ForCausalLM")(made).save_pretrained(folder)
    TextTokenizer.bytes().save(folder)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of a folder, in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def moved(source: Path, out: Path) -> set[str]:
    """The names of the weights that differ."""
    before, after = weights(source), weights(out)
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("train", "tied", "chosen"),
    [
        ("full", False, lambda name: True),
        ("lora+norms", False, lambda name: ".self_attn." in name or "norm" in name),
        ("norms", False, lambda name: "norm" in name),
        ("lora", True, lambda name: ".self_attn." in name),
        ("norms+embeddings", True, lambda name: "norm" in name or "embed" in name or "lm_head" in name),
        ("lora+embeddings", False, lambda name: any(x in name for x in (".self_attn.", "embed", "lm_head"))),
    ],
)
def test_only_what_is_asked_for_moves(text: str, tmp_path: Path, train: str, tied: bool, chosen: Any) -> None:
    """Every other weight keeps its bits."""
    source = checkpoint(tmp_path / "source", tie_word_embeddings=tied)
    tune(source, tmp_path / "out", settings(text, train=train))
    names = weights(source)
    assert moved(source, tmp_path / "out") == set(filter(chosen, names))


@pytest.mark.parametrize("family", ["llama", "qwen3", *OTHERS])
def test_families_end_to_end(text: str, tmp_path: Path, family: str) -> None:
    """transformers loads the folder and computes the tuned weights under the method; nothing else is left behind."""
    make = other if family in OTHERS else checkpoint
    source = make(tmp_path / "source", family)
    done = tune(source, tmp_path / "out", settings(text))
    assert done is not None
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["out", "source"]
    written = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert written.config.get_text_config().max_position_embeddings == TARGET
    expected = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    expected.load_state_dict(written.state_dict())
    with torch.no_grad():
        plain = expected(token_ids(TARGET), use_cache=False).logits
        rw.attach(expected, "yarn", target=TARGET)
        own = expected(token_ids(TARGET), use_cache=False).logits
        theirs = written(token_ids(TARGET), use_cache=False).logits
    assert (theirs - own).abs().max() < 1e-3 * own.abs().max()
    assert (plain - own).abs().max() > 1e-2 * own.abs().max()
    assert moved(source, tmp_path / "out")
    record = json.loads((tmp_path / "out" / "extend.json").read_text())
    assert (record["tuning"]["window"], record["tuning"]["skips"], record["tuning"]["tokens"]) == (
        TRAINED, True, 4 * 2 * TRAINED,
    )  # fmt: skip
    assert "yarn" in (tmp_path / "out" / "README.md").read_text()


def losses(done: Extended | None) -> list[float]:
    """Of every update."""
    assert done is not None
    return [float(entry["loss"]) for entry in done.record["tuning"]["log"]]


def test_tuning_lowers_the_loss(text: str, tmp_path: Path) -> None:
    """Of the text's own words."""
    source = checkpoint(tmp_path / "source")
    found = losses(tune(source, tmp_path / "out", settings(text, steps=30, batch_size=4)))
    assert len(found) == 30
    assert sum(found[-5:]) / 5 < found[0] - 0.5


def test_accumulated_batches_are_one_batch(text: str, tmp_path: Path) -> None:
    """The same windows in four batches of one, and in one of four."""
    source = checkpoint(tmp_path / "source")
    how = {"tokens_per_step": 4 * TRAINED, "train": "full", "lr": 1e-3}
    runs = [losses(tune(source, tmp_path / f"{n}", settings(text, batch_size=n, **how))) for n in (1, 4)]
    assert runs[0] == pytest.approx(runs[1], rel=2e-5)


@pytest.mark.parametrize("method", ["dca", "drope", "plain", "ntk", "dynamic"])
def test_methods(text: str, tmp_path: Path, method: str) -> None:
    """Those that config.json expresses are in it; of the others the card has the call, which applies them."""
    source = checkpoint(tmp_path / "source")
    done = tune(source, tmp_path / "out", settings(text, method=method))
    assert done is not None
    card = (tmp_path / "out" / "README.md").read_text()
    if method in ("dca", "drope"):
        assert done.call is not None
        assert done.call.endswith(f'rw.attach(model, "{method}", target={TARGET})')
        assert done.call in card
    else:
        assert done.call is None
        assert "rw.attach" not in card
    record = json.loads((tmp_path / "out" / "extend.json").read_text())["tuning"]
    assert record["window"] == (TARGET if method == "dca" else TRAINED)
    assert record["skips"] == (method not in ("dca", "drope"))


def test_an_adapter_is_the_merged_model(text: str, tmp_path: Path) -> None:
    """With peft and rw.attach, as the card says; norms included."""
    peft = pytest.importorskip("peft")
    source = checkpoint(tmp_path / "source")
    for name, keeps in (("merged", False), ("adapter", True)):
        tune(source, tmp_path / name, settings(text, keep_adapter=keeps))
    assert not list((tmp_path / "adapter").glob("model*"))
    tune(source, tmp_path / "adapter", settings(text, keep_adapter=True), overwrite=True)
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    rw.attach(model, "yarn", target=TARGET)
    with torch.no_grad():
        one, two = (found(input_ids=token_ids(TARGET), use_cache=False).logits for found in (model, merged))
    assert (one - two).abs().max() < 1e-4 * two.abs().max()
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert "PeftModel.from_pretrained" in card


def test_a_gguf_file_beside_the_folder(text: str, tmp_path: Path) -> None:
    """The same model within the rounding of float16."""
    source = checkpoint_with_merges(tmp_path / "source")
    for again in (False, True):
        tune(source, tmp_path / "out", settings(text, gguf="f16"), overwrite=again)
    folder, file = (load_decoder(tmp_path / name, dtype=torch.float32) for name in ("out", "out/out.gguf"))
    with torch.no_grad():
        one, two = (model(token_ids(TARGET)) for model in (folder, file))
    assert (one - two).abs().max() < 0.01 * one.abs().max()


def test_sources_of_every_kind(text: str, tmp_path: Path) -> None:
    """A GGUF file, the built-in model, a Decoder and a live model, which does not change."""
    folder = checkpoint_with_merges(tmp_path / "source")
    apply(folder, tmp_path / "model.gguf", ApplySettings(method="as-is"))
    tune(tmp_path / "model.gguf", tmp_path / "of gguf", settings(text))
    tune(load_decoder(folder), tmp_path / "of decoder", settings(text))
    tune("tiny", tmp_path / "of tiny", settings(text, target=512, steps=1, batch_size=1))
    live = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    before = {name: weight.clone() for name, weight in live.state_dict().items()}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tune((live, tokenizer), tmp_path / "of live", settings(text))
    assert all(torch.equal(weight, before[name]) for name, weight in live.state_dict().items())
    assert live.config.max_position_embeddings == TRAINED
    for name in ("gguf", "decoder", "tiny", "live"):
        config = json.loads((tmp_path / f"of {name}" / "config.json").read_text())
        assert config["rope_parameters"]["rope_type"] == "yarn"
        assert (tmp_path / f"of {name}" / "tokenizer.json").is_file()


@contextmanager
def command(source: Path, text: str, out: Path, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A process of `ropewalk extend tune`."""
    file = out.with_suffix(".toml")
    lines = {"precision": "float32", "device": "cpu", "measure": False, "checkpoint_every": 2, "batch_size": 2, **more}
    file.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in lines.items()))
    words = [sys.executable, "-m", "ropewalk", "extend", "tune", str(source), "--out", str(out), "--text", text]
    words += ["--target", str(TARGET), "--steps", "40", "--lr", "1e-3", "--settings", str(file)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_checkpoint(process: subprocess.Popen[str], out: Path, *, number: int = 4) -> None:
    """Return when the run has written this checkpoint, or a later one."""
    run = out.with_name(f"{out.name}.tuning") / "trainer" / "run"
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        last = last_checkpoint(run) if run.is_dir() else None
        if last is not None and int(last.name.rpartition("-")[2]) >= number:
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate()[1] if process.poll() is not None else "no checkpoint")


def test_a_killed_run_ends_as_an_undisturbed_one(text: str, tmp_path: Path) -> None:
    """SIGKILL after a checkpoint, SIGINT in the second attempt, then the end: equal weights, bit for bit."""
    source = checkpoint(tmp_path / "source", attention_dropout=0.1)
    for number in (signal.SIGKILL, signal.SIGINT):
        with command(source, text, tmp_path / "out") as process:
            wait_for_checkpoint(process, tmp_path / "out", number=4 if number == signal.SIGKILL else 12)
            process.send_signal(number)
            said = process.communicate()[1]
            assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert "To resume, rerun the command" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
    for name in ("out", "whole"):
        with command(source, text, tmp_path / name) as process:
            said = process.communicate()[1]
            assert process.returncode == 0, said
            assert ("continues after step" in said) == (name == "out")
            assert "\x1b" not in said
            assert "Warning" not in said
            assert "%|" not in said
    apart = [(weights(tmp_path / "out")[name] - weight).abs().max() for name, weight in weights(tmp_path / "whole").items()]  # noqa: E501  # fmt: skip
    assert max(map(float, apart)) == 0.0


def test_an_incomplete_checkpoint_is_skipped(tmp_path: Path) -> None:
    """The newest with its last file counts."""
    for number, state in ((2, "{}"), (10, "{}"), (12, '{"cut'), (14, None)):
        (tmp_path / f"checkpoint-{number}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{number}" / "trainer_state.json").write_text(state)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert last_checkpoint(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": {"no_such_field": 1}}, "rejects these arguments"),
        ({"trainer": Path("nowhere.json")}, "cannot be read"),
        ({"trainer": {"output_dir": "elsewhere"}}, "other settings determine these fields"),
        ({"window": 2 * TARGET}, "longer than the target"),
        ({"skip": True, "method": "dca"}, "positions cannot skip"),
        ({"text": ("nowhere.txt",)}, "nowhere.txt"),
        ({"train": "everything"}, "must be parts of the model"),
        ({"keep_adapter": True, "train": "full"}, "--keep-adapter needs lora"),
        ({"native": True}, "do not apply"),
        ({"steps": 0}, "`steps` must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """With nothing left behind but the folder of unfinished work."""
    source = checkpoint(tmp_path / "source")
    with pytest.raises(RopeError) as refused:
        tune(source, tmp_path / "out", settings(text, **changes))
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_method_that_changes_no_layer_is_refused(text: str, tmp_path: Path) -> None:
    """Before any training: here all layers have a sliding window."""
    made = transformers.Gemma3TextConfig(
        **SIZES, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "sliding_attention"]
    )
    transformers.Gemma3ForCausalLM(made).save_pretrained(tmp_path / "source")
    TextTokenizer.bytes().save(tmp_path / "source")
    with pytest.raises(RopeError, match="changes no layer"):
        tune(tmp_path / "source", tmp_path / "out", settings(text))


def test_a_short_text_is_refused(tmp_path: Path) -> None:
    """It has no window."""
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(RopeError, match="shorter than one window"):
        tune(checkpoint(tmp_path / "source"), tmp_path / "out", settings(str(tmp_path / "short.txt")))


def test_a_loss_that_is_not_finite_ends_the_run(text: str, tmp_path: Path) -> None:
    """With the update and the cure."""
    source = checkpoint(tmp_path / "source")
    with pytest.raises(RopeError, match="not finite"):
        tune(source, tmp_path / "out", settings(text, lr=1e30, steps=6, train="full", warmup=0))


def test_fields_of_the_trainer_pass_through(text: str, tmp_path: Path) -> None:
    """From a file: here another optimizer, and more checkpoints kept."""
    (tmp_path / "trainer.json").write_text('{"optim": "adafactor", "save_total_limit": 9}')
    source = checkpoint(tmp_path / "source")
    reported: list[Event] = []
    plain = settings(text, trainer=tmp_path / "trainer.json", checkpoint_every=1)
    seen: list[Path] = []

    def note(event: Event) -> None:
        reported.append(event)
        seen.extend((tmp_path / "out.tuning" / "trainer" / "run").glob("checkpoint-*"))

    tune(source, tmp_path / "out", plain, report=note)
    assert len({path.name for path in seen}) >= 3
    assert [event.kind for event in reported].count("log") == 4
    assert not (tmp_path / "out.tuning").exists()


def test_another_recipe_and_foreign_files(text: str, tmp_path: Path) -> None:
    """A stopped run with other settings is refused until it is discarded; foreign files always."""
    source, out = checkpoint(tmp_path / "source"), tmp_path / "out"

    def stop(event: Event) -> None:
        if event.kind == "step" and event.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="stopped after update"):
        tune(source, out, settings(text, steps=8), report=stop)
    with pytest.raises(RopeError, match="stopped tuning with other settings"):
        tune(source, out, settings(text, steps=8, lr=1e-4))
    with pytest.raises(KeyboardInterrupt):
        tune(source, out, settings(text, steps=8, lr=1e-4), restart=True, report=stop)
    tune(source, out, settings(text, steps=8, lr=1e-4))
    assert not (tmp_path / "out.tuning").exists()
    (tmp_path / "two.tuning").mkdir()
    (tmp_path / "two.tuning" / "mine.txt").write_text("mine")
    with pytest.raises(RopeError, match="other files"):
        tune(source, tmp_path / "two", settings(text), restart=True)


@pytest.mark.thorough
def test_the_doctor_judges_before_and_after(text: str, tmp_path: Path) -> None:
    """Both diagnoses are in the record and on the card; crop is the tuned model's own."""
    held_out = tmp_path / "held out.txt"
    held_out.write_text(prose(900, 5))
    source = checkpoint(tmp_path / "source")
    done = tune(source, tmp_path / "out", settings(text, measure=True, validation=held_out, windows=2))
    assert done is not None
    assert list(done.diagnoses) == ["untuned", "tuned"]
    before, after = (found.measurement for found in done.diagnoses.values())
    assert before.within("plain")[0] == pytest.approx(after.within("plain")[0], rel=1e-6)
    assert before.beyond("crop") != after.beyond("crop")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Before tuning" in card
    assert "After tuning" in card
    with pytest.raises(RopeError, match="passages with the texts to tune on"):
        tune(source, tmp_path / "no", settings(text, measure=True, validation=Path(text)))


def test_no_warning_reaches_the_caller(text: str, tmp_path: Path) -> None:
    """Deprecations inside the Trainer are hidden; ours would be errors."""
    source = checkpoint(tmp_path / "source")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        tune(source, tmp_path / "out", settings(text, steps=1))
    assert [str(one.message)[:80] for one in seen if "ResourceWarning" not in str(one.category)] == []
