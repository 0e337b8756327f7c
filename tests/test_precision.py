"""float64 only where a device has it; float32 where half types would lose what is added up."""

from __future__ import annotations

import copy

import pytest
import torch

from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import draws_of, sample
from ropewalk.models.norm import RMSNorm
from ropewalk.precision import chosen_dtype, computing_device, slow_dtype
from tests.models.forms import ROPE, VOCAB
from tests.models.material import PretendMPS


def test_sampling_draws_the_same_tokens_without_float64() -> None:
    """Logits on a device without float64 are drawn from on the CPU: the same tokens for the same seed."""
    logits = torch.randn(4, 50)
    wanted = sample(logits, draws_of(3, len(logits)), temperature=0.8)
    assert sample(PretendMPS(logits), draws_of(3, len(logits)), temperature=0.8) == wanted


def test_small_sums_are_not_rounded_away() -> None:
    """Of many layers that each add little, a bfloat16 model gives what float64 gives to within its products' rounding.

    A stream in bfloat16 would lose half of each layer's share: its error is more than three times as large.
    """
    heads = {"head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "rope": ROPE}
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 24}
    config = DecoderConfig(initializer_range=0.05, **heads, **sizes)
    torch.manual_seed(1)
    model, ids = Decoder(config).bfloat16().eval(), torch.randint(0, VOCAB, (1, 40))
    with torch.no_grad():
        model.embed_tokens.weight.normal_()
        exact = copy.deepcopy(model).double().hidden_states(ids)
        error = float((model.hidden_states(ids) - exact).square().mean().sqrt())
    rounding = float((exact.bfloat16() - exact).square().mean().sqrt())
    assert error < 2.5 * rounding


def test_norms_of_float32_round_nothing_to_their_weights_dtype() -> None:
    """float32 through a norm whose weights are bfloat16 is float64's result to 1e-6."""
    norm = RMSNorm(64).bfloat16()
    with torch.no_grad():
        norm.weight.copy_(torch.rand(64) + 0.5)
        x = torch.randn(5, 64) * 3
        torch.testing.assert_close(norm(x), copy.deepcopy(norm).double()(x.double()).float(), atol=1e-6, rtol=1e-6)


SLOW, NONE = "cpu multiplies bfloat16 more slowly, also with AVX512-BF16", "no fast instructions"
AMD, INTEL = {"avx512_bf16": True, "cpu_name": "AMD EPYC"}, {"avx512_bf16": True, "cpu_name": "Intel Xeon"}
ALL = {**AMD, "avx512_fp16": True, "amx_bf16": True, "amx_fp16": True}
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    ("can", "limit", "dtype", "why", "slow"),
    [
        ({}, "", torch.float32, NONE, HALVES),
        (AMD, "", torch.bfloat16, "AVX512-BF16", [torch.float16]),
        ({**INTEL, "amx_bf16": True}, "", torch.bfloat16, "AMX", [torch.float16]),
        ({**INTEL, "avx512_fp16": True}, "", torch.float32, SLOW, [torch.bfloat16]),
        *((ALL, limit, torch.bfloat16, "AMX", []) for limit in ("", "AVX512_CORE_AMX_FP16", "ALL")),
        *((ALL, limit, torch.float32, NONE, HALVES) for limit in ("AVX2", "AVX512_CORE")),
        (ALL, "avx512_core_bf16", torch.bfloat16, "AVX512-BF16", [torch.float16]),
    ],
)
def test_auto_is_bfloat16_where_the_processor_has_it(
    can: dict[str, bool], limit: str, dtype: torch.dtype, why: str, slow: list[torch.dtype],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """And float32 elsewhere: Intel's AVX512-BF16 without AMX has half of its rate, and torch's products use nothing
    beyond ONEDNN_MAX_CPU_ISA. A named dtype is taken as it is.
    """
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert chosen_dtype("auto", "cpu")[0] == dtype
    assert why in str(chosen_dtype("auto", "cpu")[1])
    assert [each for each in (*HALVES, torch.float32) if slow_dtype(each, "cpu")] == slow
    assert chosen_dtype("bfloat16", "cpu") == (torch.bfloat16, None)
    assert chosen_dtype("auto", "mps")[0] == torch.float32
    assert not slow_dtype(torch.bfloat16, "cuda")
    monkeypatch.setattr(torch._C, "_accelerator_getAccelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # a build for CUDA on a machine without a GPU
    assert computing_device("auto").type == "cpu"
