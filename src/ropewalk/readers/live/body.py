"""A live transformers model as the body of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.models.checkpoint_classifier import unit_size
from ropewalk.models.tokens import Tokenizer


class LiveBody(nn.Module):
    """The layers of a causal language model of transformers; see `ropewalk.models.checkpoint_classifier.Body`.

    It is never cut: families differ in what their config says of each layer, so all layers are run and kept.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def num_layers(self) -> int:
        """How many layers it has."""
        return int(self.model.config.get_text_config(decoder=True).num_hidden_layers)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The layers, in order; raises `RopeError` where they are not one list of modules."""
        for module in self.model.base_model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == self.num_layers:
                return list(module)
        raise RopeError(
            "classify: the layers of this model are not one list, so the last of them cannot be tuned alone.",
            facts={"model": type(self.model).__name__},
            cure="Pass --tune adapters, or --tune none.",
        )

    def states(self, input_ids: Tensor, lengths: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """As `Body.states`, each token's divided by its root mean square."""
        real = torch.arange(input_ids.shape[1], device=input_ids.device) < lengths[:, None]
        out = self.model.base_model(
            input_ids=input_ids,
            attention_mask=real.long(),
            use_cache=False,
            output_hidden_states=True,
            return_dict=True,
        )
        return [unit_size(out.hidden_states[number]) for number in layers]

    def cut(self, layer: int) -> LiveBody:
        """Itself."""
        return self

    def write(self, folder: Path, tokenizer: Tokenizer | None) -> None:
        """Write a folder that transformers reads."""
        from ropewalk.readers.live.loading import quietly

        with quietly():
            self.model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save(folder)
