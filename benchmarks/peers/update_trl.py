"""TRL's update: the loss of its GRPOTrainer and the backward pass, without its optimizer step.

Gradient checkpointing, which TRL turns on by default, is an argument: it saves memory and costs a second forward pass.
In: model folder, batch file, rollouts in a micro-batch, threads, dtype, "checkpointing" or "plain". Out: see `arm`.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from arm import batch_of, norm_of, serve
from datasets import Dataset  # type: ignore[import-not-found]
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]


def main(folder: str, batch_file: str, micro: str, threads: str, dtype: str, checkpointing: str) -> None:
    """Serve the step."""
    torch.set_num_threads(int(threads))
    batch, size = batch_of(batch_file), int(micro)
    trainer = make_trainer(folder, batch, dtype, checkpointing == "checkpointing")
    prompt_BP = torch.tensor([batch["prompt"]] * len(batch["completions"]))
    completion_BT, mask_BT = torch.tensor(batch["completions"]), torch.tensor(batch["masks"])
    advantages_B = torch.tensor(batch["advantages"])
    model = trainer.model
    trainer.current_gradient_accumulation_steps = 1  # its training loop would set it

    def step() -> float:
        model.train()
        for start in range(0, len(completion_BT), size):
            part = slice(start, start + size)
            inputs = {
                "prompt_ids": prompt_BP[part],
                "prompt_mask": torch.ones_like(prompt_BP[part]),
                "completion_ids": completion_BT[part],
                "completion_mask": torch.ones_like(completion_BT[part]),
                "tool_mask": mask_BT[part],
                "advantages": advantages_B[part],
                "old_per_token_logps": torch.full(mask_BT[part].shape, batch["logprob"]),
                "num_items_in_batch": mask_BT.sum(),
            }
            # TRL divides by the micro-batch's tokens; all rollouts have equally many.
            (trainer.compute_loss(model, inputs) * mask_BT[part].sum() / mask_BT.sum()).backward()
        return norm_of(model)

    serve(step)


def make_trainer(folder: str, batch: dict, dtype: str, checkpointing: bool) -> GRPOTrainer:
    """Set TRL up with our loss: mean over tokens, the same clips, no KL term."""
    rollouts = len(batch["completions"])
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=dtype == "bfloat16",
        gradient_checkpointing=checkpointing,
        per_device_train_batch_size=rollouts,
        num_generations=rollouts,
        max_completion_length=len(batch["completions"][0]),
        loss_type="bnpo",
        epsilon=batch["clip_low"],
        epsilon_high=batch["clip_high"],
        beta=0.0,
        disable_dropout=True,
        model_init_kwargs={"dtype": "float32"},
        report_to=[],
    )
    return GRPOTrainer(
        model=folder,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "x"}] * rollouts),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
