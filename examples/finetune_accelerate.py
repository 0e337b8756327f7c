"""Fine-tune a transformers model under YaRN, in one process or many:

    python examples/finetune_accelerate.py
    accelerate launch --use_fsdp --fsdp_version 2 examples/finetune_accelerate.py \\
        --model FOLDER --text FILE --target 32768

Without --model it makes a tiny random Llama and trains it on made-up tokens, in seconds.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import ropewalk as rw


def tiny_model() -> LlamaForCausalLM:
    """Return a random Llama with a trained length of 64 tokens."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=64, **sizes))


def windows(arguments: argparse.Namespace) -> torch.Tensor:
    """Return token ids `[windows, target]`: of the text, or repeats of a block of random tokens."""
    if arguments.model is None:
        block = torch.randint(0, 64, (16, 32))
        return block.repeat(1, -(-arguments.target // 32))[:, : arguments.target]
    with open(arguments.text, encoding="utf-8") as text:
        ids = AutoTokenizer.from_pretrained(arguments.model)(text.read(), return_tensors="pt").input_ids[0]
    return ids[: len(ids) // arguments.target * arguments.target].view(-1, arguments.target)


def main() -> None:
    """Train, and save a folder that every reader of config.json loads with the extension."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a name on the hub; without it a tiny random model")
    parser.add_argument("--text", help="a text file to train on")
    parser.add_argument("--target", type=int, default=256, help="tokens that the model is to reach")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", help="a folder for the trained model")
    arguments = parser.parse_args()

    torch.manual_seed(0)  # the same on every process
    model = tiny_model() if arguments.model is None else AutoModelForCausalLM.from_pretrained(arguments.model)
    rw.attach(model, "yarn", target=arguments.target)  # the one line; before prepare(), on every process

    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3 if arguments.model is None else 2e-5)
    batches = DataLoader(windows(arguments), batch_size=2, shuffle=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    model.train()
    step = 0
    while step < arguments.steps:
        for ids in batches:
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step in (1, arguments.steps):
                mean = accelerator.gather(loss.detach()[None]).mean()
                accelerator.print(f"step {step}: loss {float(mean):.3f} on {accelerator.num_processes} processes")
            if step == arguments.steps:
                break

    if arguments.out is not None:
        weights = accelerator.get_state_dict(model)
        whole = accelerator.unwrap_model(model)
        whole.save_pretrained(arguments.out, state_dict=weights, is_main_process=accelerator.is_main_process)
    accelerator.end_training()


if __name__ == "__main__":
    main()
