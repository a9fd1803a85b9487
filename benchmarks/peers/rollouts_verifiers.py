"""The rollout loop of `verifiers` 0.4: its agent, its rollout, its interception server and its trace.

A rollout there is a harness that talks to the model through a local HTTP server, which records the trace. The harnesses
that it ships start a process for each rollout, and tools are servers. Its contract also allows a loop in this process
that sends every model call to the server; that is what is measured, since it is the cheapest way that is allowed. In
its favour: one server and one box for all rollouts, nothing limits how many run at once, the model client makes no HTTP
request and answers with finished objects, no MCP stands before the tool, and the harness uses a light HTTP client.
In: see `stubs`. Out: see `stubs`.
Source: https://pypi.org/project/verifiers, version 0.4.0.
"""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Mapping
from typing import Any

import aiohttp  # type: ignore[import-not-found]
import verifiers.v1 as vf  # type: ignore[import-not-found]
from stubs import Stubs, measure, place, query, result
from verifiers.v1.interception import InterceptionServer  # type: ignore[import-not-found]

__all__ = ["StubHarness"]  # where the package looks for the harness of this module

_ENDPOINT = vf.EvalClientConfig(base_url="http://127.0.0.1", api_key_var="STUB_KEY")  # never connected to
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "looks something up",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


class StubClient(vf.Client):
    """The stub policy: waits, then calls the tool, or answers in the last turn."""

    def __init__(self, stubs: Stubs) -> None:
        self._stubs = stubs

    async def get_response(self, dialect: Any, body: dict[str, Any], *_: Any, **__: Any) -> vf.Response:
        """Take the next turn; the question names the trajectory, and every turn adds two messages to the first two."""
        await asyncio.sleep(self._stubs.policy_s)
        messages = body["messages"]
        turn = len(messages) // 2 - 1
        asked = None if turn == self._stubs.turns - 1 else query(int(messages[1]["content"]), turn)
        return _response(asked, body["model"])


class StubHarness(vf.Harness):
    """The stub tool, and the loop around it: ask the model, run its call, until it makes none."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    stubs: Stubs
    http: aiohttp.ClientSession

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Play one trajectory."""
        system, question = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ]
        url, headers = f"{endpoint}/chat/completions", {"Authorization": f"Bearer {secret}"}
        while True:
            body = {"model": ctx.model, "messages": messages, "tools": [_TOOL]}
            async with self.http.post(url, json=body, headers=headers) as reply:
                reply.raise_for_status()
                message = (await reply.json())["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return vf.ProgramResult(0, "", "")
            messages += [await self._call(call) for call in message["tool_calls"]]

    async def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        trajectory, turn = place(json.loads(call["function"]["arguments"])["query"])
        await asyncio.sleep(self.stubs.tool_s[trajectory][turn])
        return {"role": "tool", "tool_call_id": call["id"], "content": result(trajectory, turn)}


def _response(asked: str | None, model: str) -> vf.Response:
    """Write a response as the package wants it: as an object for the trace, and as plain data for the harness."""
    if asked is None:
        message, calls, reason = {"role": "assistant", "content": "done"}, None, "stop"
    else:
        arguments = json.dumps({"query": asked})
        function = {"name": "look", "arguments": arguments}
        message = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
        calls, reason = [vf.ToolCall(id="c", name="look", arguments=arguments)], "tool_calls"
    return vf.Response(
        id="stub",
        created=0,
        model=model,
        message=vf.AssistantMessage(content=message.get("content"), tool_calls=calls),
        finish_reason=reason,
        raw={"id": "stub", "choices": [{"index": 0, "message": message, "finish_reason": reason}]},
    )


async def play(stubs: Stubs) -> list[vf.Trace]:
    """Do all rollouts at once."""
    settings = {"harness": {"id": "rollouts_verifiers"}, "runtime": {"type": "subprocess"}, "model": "stub"}
    tasks = [vf.Task(vf.TaskData(idx=n, prompt=str(n), system_prompt="Look it up.")) for n in range(stubs.trajectories)]
    unlimited = aiohttp.TCPConnector(limit=0)
    async with InterceptionServer() as server, aiohttp.ClientSession(connector=unlimited) as http:
        server.clients[_ENDPOINT.model_dump_json()] = StubClient(stubs)
        agent = vf.Agent(vf.AgentConfig(**settings, client=_ENDPOINT), interception=server)
        agent.harness.stubs, agent.harness.http = stubs, http
        async with agent.provision() as box:
            return await asyncio.gather(*(agent.run(task, runtime=box) for task in tasks))


def _turns_of(trace: vf.Trace) -> int:
    return trace.num_turns if trace.ok else 0


def main() -> None:
    """Measure; each rollout holds both ends of a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    measure(play, _turns_of)


if __name__ == "__main__":
    from rollouts_verifiers import main as named_main  # the package imports the harness by the name of its module

    named_main()
