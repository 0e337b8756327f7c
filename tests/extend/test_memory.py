"""The memory formula against bytes that are counted while small models are trained."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from ropewalk.errors import RopeError
from ropewalk.extend.memory import tuning_bytes

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft
NORMS = ["input_layernorm", "post_attention_layernorm", "norm"]
TOLERANCE = 0.1  # rope's tables, token ids, log-sum-exps and adapters' activations are not in the formula
SHAPES = {
    "the loss": {"vocab_size": 4096, "num_hidden_layers": 4},
    "a wide layer": {"vocab_size": 16, "intermediate_size": 512},
    "many layers": {"vocab_size": 16, "num_hidden_layers": 16},
    "a wide model": {"vocab_size": 16, "hidden_size": 128, "intermediate_size": 448, "num_attention_heads": 8},
}


class LiveBytes(TorchDispatchMode):
    """The bytes of all storages that operators make and that are alive, and their peak, without a model's own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.sizes = {weight.untyped_storage()._cdata: 0 for weight in (*model.parameters(), *model.buffers())}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result


def llama(**changes: Any) -> LlamaConfig:
    """A small config, without tied embeddings."""
    sizes = {"hidden_size": 64, "intermediate_size": 224, "num_hidden_layers": 2, "num_attention_heads": 4}
    fields = {**sizes, "num_key_value_heads": 2, "vocab_size": 64, "tie_word_embeddings": False, **changes}
    return LlamaConfig(**fields)


def model_of(config: LlamaConfig, rank: int | None, dtype: torch.dtype) -> nn.Module:
    """A random model, with adapters and trained norms if there is a rank."""
    model: Any = LlamaForCausalLM(config).to(dtype).train()
    if rank is not None:
        peft = pytest.importorskip("peft")
        adapters = peft.LoraConfig(
            r=rank, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], modules_to_save=NORMS
        )
        model = peft.get_peft_model(model, adapters, autocast_adapter_dtype=False)
    model.activation_checkpointing_enable({"use_reentrant": False})
    return model


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_gradients_and_states_are_a_models_own(rank, tied):
    """Exactly the bytes of a float32 model after one step of AdamW; frozen parameters would be bfloat16."""
    config = llama(tie_word_embeddings=tied)
    model = model_of(config, rank, torch.float32)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    ids = torch.zeros(1, 8, dtype=torch.long)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    held = tuning_bytes(config, 8, rank=rank)
    moments = [x for state in optimizer.state.values() for name, x in state.items() if name != "step"]
    assert held.states == sum(x.nbytes for x in moments)
    assert held.gradients == sum(weight.grad.nbytes for weight in model.parameters() if weight.grad is not None)
    trained = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    copies = sum(weight.nbytes for name, weight in model.named_parameters() if "original_module" in name)  # by peft
    frozen = sum(weight.nbytes for weight in model.parameters() if not weight.requires_grad) - copies
    assert held.parameters == trained + frozen // 2


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_activations_are_what_a_step_allocates(rank, shape):
    """The peak of a forward and backward pass in bfloat16, as FSDP2 computes, without the gradients' own bytes."""
    config, tokens = llama(**shape), 4096
    model = model_of(config, rank, torch.bfloat16)
    ids = torch.zeros(1, tokens, dtype=torch.long)
    with LiveBytes(model) as counted:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    held = tuning_bytes(config, tokens, rank=rank)
    assert held.activations == pytest.approx(counted.peak, rel=TOLERANCE)


def test_gpus_share_the_shards_and_not_the_activations():
    """Eight GPUs hold an eighth of parameters, gradients and states each; a fused loss has no logits."""
    config = llama(vocab_size=4096)
    one, eight = tuning_bytes(config, 512), tuning_bytes(config, 512, gpus=8)
    assert [8 * part for part in eight[:3]] == list(one[:3])
    assert eight[3:] == one[3:]
    fused = tuning_bytes(config, 512, fused_loss=True)
    assert one.loss - fused.loss == 3 * 4 * 512 * 4096
    assert fused.peak < one.peak


@pytest.mark.parametrize("sizes", [{"gpus": 0}, {"rank": 0}])
def test_sizes_below_one_are_refused(sizes):
    """No GPU, and no rank."""
    with pytest.raises(RopeError, match="at least 1"):
        tuning_bytes(llama(), 512, **sizes)
