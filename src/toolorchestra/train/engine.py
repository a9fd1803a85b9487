"""The `Engine` on this machine: torch, AdamW, one process.

In: samples. Out: an updated policy, its metrics, and folders from which training continues exactly. A checkpoint is an
ordinary Hugging Face or peft folder (`transformers` loads it) with the optimizer's state beside the weights.
Source: project.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from toolorchestra.chat.local import LocalModel
from toolorchestra.configs import TrainConfig
from toolorchestra.models.adapter import load_weights, save_weights
from toolorchestra.train.loss import grpo_terms, kl_terms
from toolorchestra.train.pack import Chunk, MicroBatch, Prompts, micro_batches, pack_groups, token_logprobs
from toolorchestra.types import Sample

_OPTIMIZER = "optimizer.safetensors"
_LAYER_BYTES = 2.5 * 2**30
"""What the layers may hold at once for the backward pass; bounds the memory of an update."""
_LAYER_BYTES_TOK = 84
"""What they hold of a token, in bytes a layer and unit of its width: measured on a Llama in float32."""

Terms = Callable[[torch.Tensor, torch.Tensor | None, Chunk], torch.Tensor]
"""Loss of every sampled token, given its log-probability now, and under the reference if there is one."""


@dataclass
class TorchEngine:
    """Trains the model behind a `LocalModel` in place.

    Attributes:
        policy: what samples; it sees every update at once.
        config: the optimizer's knobs.
        reference: the frozen start model of the KL term; needed when `config.kl` is above 0.
    """

    policy: LocalModel
    config: TrainConfig
    reference: Any = None

    def __post_init__(self) -> None:
        parameters = [p for p in self.policy.model.parameters() if p.requires_grad]
        self._parameters = parameters
        self._optimizer = torch.optim.AdamW(
            parameters, lr=0.0, betas=(0.9, 0.95), weight_decay=self.config.weight_decay, fused=True
        )

    def update(self, samples: Sequence[Sample], lr: float) -> Mapping[str, float]:
        """Take one GRPO step on samples with advantages.

        Args:
            samples: those of a group share their `group` number.
            lr: learning rate of this step.
        """
        return self._step(samples, lr, self._grpo, self.reference if self.config.kl else None)

    def imitate(self, samples: Sequence[Sample], lr: float) -> Mapping[str, float]:
        """Take one supervised step: raise the likelihood of every token that the samples' masks mark."""
        return self._step(samples, lr, lambda logprobs_N, *_: -logprobs_N, None)

    def _grpo(self, logprobs_N: torch.Tensor, reference_N: torch.Tensor | None, chunk: Chunk) -> torch.Tensor:
        config = self.config
        terms_N = grpo_terms(
            logprobs_N,
            chunk.logprobs_N,
            chunk.advantages_N,
            config.clip_low,
            config.clip_high,
            config.dual_clip or None,
        )
        return terms_N if reference_N is None else terms_N + config.kl * kl_terms(logprobs_N, reference_N)

    def _step(self, samples: Sequence[Sample], lr: float, terms: Terms, reference: Any) -> Mapping[str, float]:
        packs = pack_groups(samples)
        tokens = sum(p.sampled for p in packs)
        self._optimizer.zero_grad(set_to_none=True)
        batches = micro_batches(packs, _most_tok(self.policy.model.config.get_text_config()))
        sums = [self._accumulate(batch, terms, tokens, reference) for batch in batches]
        loss, drift = (math.fsum(part) for part in zip(*sums, strict=True))
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.config.grad_norm))
        if not torch.isfinite(torch.tensor([loss, norm])).all():  # a bad step must not reach the weights
            return {"loss": loss, "grad_norm": norm, "drift": drift, "tokens": tokens, "skipped": 1.0}
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return {"loss": loss, "grad_norm": norm, "drift": drift, "tokens": tokens, "skipped": 0.0}

    def _accumulate(self, batch: MicroBatch, terms: Terms, tokens: int, reference: Any) -> tuple[float, float]:
        """Add a micro-batch's gradients; returns its parts of the loss and of the drift since sampling."""
        model = self.policy.model
        references = _logprobs(reference, batch) if reference is not None else [None] * len(batch.chunks)
        prompts = Prompts(model, batch.prompts)
        prompts.cut()
        loss = drift = 0.0
        for chunk, reference_N in zip(batch.chunks, references, strict=True):
            logprobs_N = token_logprobs(model, prompts, chunk)
            chunk_loss = terms(logprobs_N, reference_N, chunk).sum() / tokens
            chunk_loss.backward()
            loss += float(chunk_loss.detach())
            drift += float((logprobs_N.detach() - chunk.logprobs_N).abs().sum()) / tokens
        prompts.backward()
        return loss, drift

    def save(self, folder: Path) -> None:
        """Write weights, tokenizer and the optimizer's state."""
        save_weights(self.policy.model, folder)
        self.policy.template.tokenizer.save_pretrained(folder)
        state = self._optimizer.state
        tensors = {
            f"{i}.{name}": value.contiguous()
            for i, parameter in enumerate(self._parameters)
            for name, value in sorted(state.get(parameter, {}).items())
        }
        save_file(tensors, folder / _OPTIMIZER)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, into the same model.

        Raises:
            RunFolderError: the folder holds another model.
        """
        load_weights(self.policy.model, folder)
        tensors = load_file(folder / _OPTIMIZER)
        for i, parameter in enumerate(self._parameters):
            names = [key.split(".", 1)[1] for key in tensors if key.startswith(f"{i}.")]
            if names:
                self._optimizer.state[parameter] = {name: tensors[f"{i}.{name}"].clone() for name in names}

    def hold_to(self, folder: Path) -> None:
        """Take the model in `folder` as the frozen reference of the KL term."""
        model = self.policy.model
        shared = {id(p): p for p in model.parameters() if not p.requires_grad}  # an adapter's base is there once
        self.reference = copy.deepcopy(model, shared).requires_grad_(False)
        load_weights(self.reference, folder)


@torch.no_grad()
def _logprobs(model: Any, batch: MicroBatch) -> list[torch.Tensor]:
    """Compute the log-probabilities of a micro-batch's chunks under a model that does not learn."""
    prompts = Prompts(model, batch.prompts)
    return [token_logprobs(model, prompts, chunk) for chunk in batch.chunks]


def _most_tok(config: Any) -> int:
    """Choose how many tokens are computed at once, by the size of a model."""
    return int(_LAYER_BYTES / (_LAYER_BYTES_TOK * config.num_hidden_layers * config.hidden_size))
