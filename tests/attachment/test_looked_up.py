"""Models that look their tables up by position (GPT-J, CodeGen, RoFormer): rows of ours in the place of theirs."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import ropewalk as rw
from ropewalk.attachment import attachment_of
from ropewalk.methods import METHODS, Reach
from tests.attachment.families import outputs_of

SIZES = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPTJ = {**SIZES, "n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8, "n_positions": 64, "n_ctx": 64}
BERT = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPES = {
    "gptj": GPTJ,
    "codegen": GPTJ,
    "roformer": {**SIZES, **BERT, "embedding_size": 64, "max_position_embeddings": 64, "is_decoder": True},
}
WIDTHS = {"gptj": 8, "codegen": 8, "roformer": 16}  # features that turn
IDS = torch.randint(3, 64, (2, 24), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(IDS)
MASK[0, :9] = 0


def model_of(name: str) -> torch.nn.Module:
    """A random model in eval mode, with matrices large enough that attention, and so positions, matter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SHAPES[name]), attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2 and parameter.requires_grad:
                parameter.normal_(std=1.5 / parameter.shape[-1] ** 0.5)
    return model.eval()


def tables_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The model's own tables, in place."""
    held = [*model.named_buffers(), *model.named_parameters()]
    return [table for name, table in held if "embed_positions" in name]


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_rows_are_exact_at_any_position(name):
    """Sines first, then cosines, of float64's angles; the model beyond its table gives what it gives near."""
    model = model_of(name)
    near = outputs_of(model, IDS)
    far = torch.arange(24)[None].repeat(2, 1) + 1_000_000
    with rw.attachment.attached(model) as handle:
        assert (outputs_of(model, IDS) - near).abs().max() <= 1e-5
        assert handle.difference <= 1e-5
        if name != "roformer":  # its forward counts tokens itself
            assert (outputs_of(model, IDS, position_ids=far) - near).abs().max() <= 1e-4
        stand_in = handle._modules[0].module
        rows = getattr(stand_in, handle._modules[0].looked_up)[far[0]].double()
        angles = far[0].double()[:, None] * 10_000.0 ** (
            -torch.arange(0, WIDTHS[name], 2, dtype=torch.float64) / WIDTHS[name]
        )
        assert (rows - torch.cat((angles.sin(), angles.cos()), dim=-1)).abs().max() <= 1.2e-7
        assert len(tables_of(model)) == len(handle._modules)
    assert torch.equal(outputs_of(model, IDS), near)
    if name != "roformer":
        with pytest.raises((IndexError, RuntimeError)):
            outputs_of(model, IDS, position_ids=far)


def put_yarn(model: torch.nn.Module, width: int) -> None:
    """transformers' YaRN, four times the length, written into the model's own tables."""
    block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    config = LlamaConfig(rope_parameters=block, head_dim=width, max_position_embeddings=256)
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    for table in tables_of(model):
        angles = torch.arange(len(table)).double()[:, None] * frequencies.double()
        table.copy_(torch.cat((angles.sin(), angles.cos()), dim=-1) * factor)


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_a_method_is_that_of_transformers(name):
    """Under YaRN the logits are those of the model with transformers' own YaRN in its tables."""
    model = model_of(name)
    theirs = copy.deepcopy(model)
    put_yarn(theirs, WIDTHS[name])
    expected = outputs_of(theirs, IDS)
    assert (outputs_of(model, IDS) - expected).abs().max() > 0.1
    with rw.attachment.attached(model, "yarn", target=256):
        assert (outputs_of(model, IDS) - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_generation_of_a_padded_batch(name):
    """Through the model's own cache, padded on the left; each row's tokens are those of its own full forwards."""
    model = model_of(name)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    with rw.attachment.attached(model, "yarn", target=256):
        made = model.generate(IDS, attention_mask=MASK, **options)
        for row, pad in ((0, 9), (1, 0)):
            if name == "roformer" and pad:  # it counts padding as positions, so that a row alone is another text
                continue
            whole = outputs_of(model, made[row : row + 1, pad:])[0]
            assert torch.equal(whole[23 - pad : -1].argmax(-1), made[row, 24:])
    theirs = copy.deepcopy(model)
    put_yarn(theirs, WIDTHS[name])
    assert torch.equal(made, theirs.generate(IDS, attention_mask=MASK, **options))


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_and_copies(name):
    """Every weight's gradient is that of the model; a deep copy is attached by itself, and stands on its own."""
    model, grads = model_of(name), []
    for attach in (False, True):
        model.zero_grad()
        with rw.attachment.attached(model) if attach else torch.enable_grad():
            model(input_ids=IDS, labels=IDS).loss.backward()
        grads.append({n: weight.grad.clone() for n, weight in model.named_parameters() if weight.grad is not None})
    assert len(grads[0]) == len(grads[1]) > 10
    for weight, expected in grads[0].items():
        assert (grads[1][weight] - expected).abs().max() <= 1e-4 * (1 + expected.abs().max()), weight
    with torch.no_grad(), rw.attachment.attached(model, "pi", target=256):
        under, copied = outputs_of(model, IDS), copy.deepcopy(model)
        for table in tables_of(model):
            table.zero_()  # nothing reads them now, and the copy has its own
    assert torch.equal(outputs_of(copied, IDS), under)
    attachment_of(copied).detach()
    assert not torch.equal(outputs_of(copied, IDS), under)
    assert all(table.abs().max() > 0 for table in tables_of(copied))


@torch.no_grad()
def test_sixteen_bits():
    """Rows have the dtype of the model's own table, rounded once."""
    model = model_of("gptj").to(torch.bfloat16)
    near = outputs_of(model, IDS).float()
    with rw.attachment.attached(model) as handle:
        table = handle._modules[0].module.embed_positions
        assert table[torch.arange(4)].dtype == torch.bfloat16
        assert (outputs_of(model, IDS).float() - near).abs().max() <= 0.05 * near.abs().max()


@pytest.mark.traced
@pytest.mark.thorough
@torch.no_grad()
def test_compiled_without_graph_break():
    """One graph; the logits are those of eager mode."""
    model = model_of("gptj")
    with rw.attachment.attached(model, "yarn", target=256):
        torch.compiler.reset()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert (compiled(IDS).logits - outputs_of(model, IDS)).abs().max() <= 1e-5


@torch.no_grad()
def test_refusals():
    """A table that is not its config's, a use of it that is not known, and methods that attention does not call."""
    model = model_of("gptj")
    with rw.attachment.attached(model) as handle:
        table = handle._modules[0].module.embed_positions
        with pytest.raises(TypeError):
            torch.cat([table, table])
        with pytest.raises(rw.RopeError, match="not on the device of its inputs"):
            table.to(torch.device("meta"))
        with pytest.raises(rw.RopeError, match="does not go through transformers' attention functions"):
            handle.set_positions(METHODS["log-n"].positions(handle.own, Reach(8, 256)))
        assert handle.positions == handle.own
    with pytest.raises(rw.RopeError, match="does not go through transformers' attention functions"):
        rw.attach(model, "rerope", target=256)
    model.transformer.h[1].attn.embed_positions[40, 1] += 0.1
    rw.attach(model).detach()  # no row of those that are compared
    model.transformer.h[1].attn.embed_positions[63, 1] += 0.1
    with pytest.raises(rw.RopeError, match="differ from those of the config"):
        rw.attach(model)
