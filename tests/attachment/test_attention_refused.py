"""Attention that ours would read wrongly: refused, or left to the model."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import ropewalk as rw
from ropewalk.attachment import attachment_of, layer_attention
from tests.attachment.families import FAMILIES, SMALL, outputs_of, small_model

IDS = torch.randint(3, 64, (2, 150), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_an_indexer_that_asks_for_the_functions_name_is_refused():
    """DeepSeek-V3.2 gives "sdpa" alone what its indexer chose: called by our name, its layers would see every token."""
    indexed = {**SMALL, **FAMILIES["deepseek_v3"], "index_n_heads": 2, "index_head_dim": 16, "index_topk": 16}
    indexed.pop("head_dim")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("deepseek_v32", **indexed)).eval()
    ids = IDS[:1, :40]
    plain = outputs_of(model, ids)
    for method in ("log-n", "self-extend", None):
        with pytest.raises(rw.RopeError, match="depends on the name"):
            rw.attach(model, method, target=None if method is None else 256, kernels=method is None)
    assert attachment_of(model) is None
    assert torch.equal(outputs_of(model, ids), plain)
    with rw.attached(model, "yarn", target=256):  # a method of frequencies changes no function
        assert not torch.equal(outputs_of(model, ids), plain)


@torch.no_grad()
def test_tensors_that_are_not_read_are_not_ignored(monkeypatch):
    """An option of attention that we do not know: remapped positions refuse it, the kernel leaves the call alone."""
    llama = small_model("llama")
    served = []
    by_kernel = layer_attention.LayerAttention._by_kernel

    def spy(*given):
        served.append(given)
        return by_kernel(*given)

    monkeypatch.setattr(layer_attention.LayerAttention, "_by_kernel", spy)
    with rw.attached(llama, kernels=True):
        outputs_of(llama, IDS)
        assert len(served) > 0
        served.clear()
        outputs_of(llama, IDS, indices=torch.zeros(1))
        assert served == []
    with rw.attached(llama, "self-extend", target=256), pytest.raises(rw.RopeError, match="tensors that"):
        outputs_of(llama, IDS, indices=torch.zeros(1))


@torch.no_grad()
def test_flash_attention_is_refused_with_the_command_that_changes_it():
    """What flash attention loads depends on its name; read before anything runs, so without a GPU."""
    llama = small_model("llama")
    module = copy.deepcopy(llama.model.layers[0].self_attn)
    module.config = copy.copy(module.config)
    module.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(rw.RopeError, match="set_attn_implementation"):
        layer_attention.check_module(module, module.config)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning")  # transformers'
@pytest.mark.parametrize("method", ["self-extend", "log-n"])
def test_flex_attention_chosen_after_attaching_is_refused(method):
    """Its masks are no tensors."""
    model = small_model("llama")
    with rw.attached(model, method, target=256):
        model.set_attn_implementation("flex_attention")
        with pytest.raises(rw.RopeError, match=r"(?s)read masks.*BlockMask"):
            outputs_of(model, IDS[:1])
