"""The plain update: every rollout whole, padded to the longest, logits at every position; loss and backward.

In: model folder, batch file, rollouts in a micro-batch, threads, dtype. Out: see `arm`.
"""

from __future__ import annotations

import sys

import torch
from arm import batch_of, norm_of, serve
from transformers import AutoModelForCausalLM


def main(folder: str, batch_file: str, micro: str, threads: str, dtype: str) -> None:
    """Serve the step."""
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batch, size = batch_of(batch_file), int(micro)
    rows = [batch["prompt"] + completion for completion in batch["completions"]]
    masks = [[0] * len(batch["prompt"]) + mask for mask in batch["masks"]]
    ids_BT, mask_BT = torch.tensor(rows), torch.tensor(masks, dtype=torch.float32)
    advantages_B1 = torch.tensor(batch["advantages"])[:, None]

    def step() -> float:
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                logits_BTV = model(input_ids=ids_BT[part]).logits[:, :-1].float()
            logprobs_BT = torch.log_softmax(logits_BTV, dim=-1).gather(2, ids_BT[part, 1:, None]).squeeze(2)
            ratio_BT = torch.exp(logprobs_BT - batch["logprob"])
            clipped_BT = ratio_BT.clamp(1 - batch["clip_low"], 1 + batch["clip_high"])
            terms_BT = -torch.minimum(ratio_BT * advantages_B1[part], clipped_BT * advantages_B1[part])
            ((terms_BT * mask_BT[part, 1:]).sum() / mask_BT.sum()).backward()
        return norm_of(model)

    serve(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
