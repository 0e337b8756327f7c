"""Tune a checkpoint under an extension method with transformers' Trainer, in one process or several:

    python examples/tune.py --model FOLDER --text a.txt b.txt --target 32768 --validation c.txt --out longer
    accelerate launch --config_file fsdp.yaml examples/tune.py --model FOLDER --text a.txt --target 32768 --out longer

Windows have the target length. With --validation, the doctor measures the model before and after, in one process.
--rank trains low-rank adapters, which are merged at the end (needs peft). With --resume, a stopped run resumes from its
last checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

import ropewalk as rw
from ropewalk.checkpoints.texts import read_text
from ropewalk.models.training import held_out_windows

TINY = Path(rw.__file__).parent / "builtin" / "tiny"


def with_adapters(model: Any, rank: int) -> Any:
    """Return peft's model: adapters of this rank on every linear layer of the attention; norms are trained, too."""
    from peft import LoraConfig, get_peft_model

    linear = {name.rpartition(".")[2] for name, module in model.named_modules()
              if ".self_attn." in name and isinstance(module, torch.nn.Linear)}  # fmt: skip
    norms = {name.rpartition(".")[2] for name, module in model.named_modules() if "Norm" in type(module).__name__}
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=sorted(linear), modules_to_save=sorted(norms))
    return get_peft_model(model, config)


class Measure(TrainerCallback):
    """Measure the attached model with the doctor before and after training, on one window of `text`."""

    def __init__(self, handle: Any, tokenizer: Any, text: str) -> None:
        self.handle, self.tokenizer, self.text = handle, tokenizer, text
        self.found: dict[int, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **more: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.found[state.global_step] = rw.doctor(
                model, tokenizer=self.tokenizer, text=self.text, methods="as-is", target=self.handle.target,
                trained_length=self.handle.trained_length, windows=1, minutes=math.inf, state=folder, progress=False,
            )  # fmt: skip

    on_train_end = on_train_begin


def main(arguments: list[str] | None = None) -> list[float]:
    """Tune and write the folder; return the loss of each update."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default=str(TINY), help="a folder or a name on the hub [default: the built-in model]"
    )
    parser.add_argument("--text", nargs="+", required=True, help="text files to train on")
    parser.add_argument("--validation", help="a text file on which the doctor measures before and after")
    parser.add_argument("--method", default="yarn")
    parser.add_argument("--target", type=int, required=True, help="tokens that the model is to process")
    parser.add_argument("--window", type=int, help="tokens of a window")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=1, help="windows of a batch of one process")
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--rank", type=int, help="of low-rank adapters; without it, all weights are trained")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="a folder for checkpoints and the tuned model")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args(arguments)

    alone = int(os.environ.get("WORLD_SIZE", 1)) == 1
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    handle = rw.attach(model, given.method, target=given.target)  # on every process, before the Trainer
    window = given.window or given.target
    documents = [tokenizer(read_text(path)[1]).input_ids for path in given.text]
    windows = held_out_windows(documents, length=window, limit=10**9)[:, :-1]
    rows = [{"input_ids": ids, "labels": ids} for ids in windows]
    if given.rank:
        model = with_adapters(model, given.rank)
    callbacks = [Measure(handle, tokenizer, given.validation)] if given.validation and alone else []
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(given.out),
            max_steps=given.steps,
            per_device_train_batch_size=given.batch_size,
            learning_rate=given.lr,
            lr_scheduler_type="cosine_with_min_lr",
            lr_scheduler_kwargs={"min_lr_rate": 0.1},
            warmup_steps=min(20, given.steps // 10),
            max_grad_norm=1.0,
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.accelerator.is_available(),
            logging_steps=1,
            save_steps=max(1, given.steps // 5),
            save_total_limit=1,
            seed=given.seed,
            report_to="none",
            remove_unused_columns=False,
        ),
        train_dataset=rows,
        data_collator=default_data_collator,
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=given.resume)
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    if given.rank and alone:
        model.merge_and_unload().save_pretrained(given.out)
        tokenizer.save_pretrained(given.out)
    else:
        trainer.save_model()  # of adapters in several processes: the adapters
    if trainer.is_world_process_zero():
        found = {step: dataclasses.asdict(one.evidence.standings["as-is"])
                 for callback in callbacks for step, one in callback.found.items()}  # fmt: skip
        texts = {Path(path).name: hashlib.sha256(read_text(path)[1].encode()).hexdigest() for path in given.text}
        record = {"method": given.method, "target": given.target, "window": window, "texts": texts, "loss": losses,
                  "doctor": found}  # fmt: skip
        (given.out / "tuning.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} updates; wrote {given.out}")
        for callback in callbacks:
            print(list(callback.found.values())[-1].verdict.sentence)
    if not alone:
        dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
