"""The floor of `benchmarks/rollouts.py`: tasks that only sleep, as often and as long as the other sides.

In: see `stubs`. Out: see `stubs`; there is no text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stubs import Stubs, measure


async def play(stubs: Stubs) -> list[int]:
    """Sleep through all trajectories at once."""
    return await asyncio.gather(*(_sleep(stubs, row) for row in stubs.tool_s))


async def _sleep(stubs: Stubs, row: Sequence[float]) -> int:
    for tool_s in row:
        await asyncio.sleep(stubs.policy_s)
        await asyncio.sleep(tool_s)
    await asyncio.sleep(stubs.policy_s)
    return stubs.turns


if __name__ == "__main__":
    measure(play, turns_of=int, more=lambda *_: {"text_bytes": 0})
