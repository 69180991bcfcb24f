"""`cuagent mcp` as another agent sees it: the package's own client, the server in a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from commands import TASK, clean_environment
from mcp import Client, StdioServerParameters
from schema import assert_follows

pytestmark = pytest.mark.slow

RIGHT = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n" + (
    "        return torch.softmax(x, -1)\n"
)

HURRIED = """
from cuagent.measure.timing import timer
from cuagent.timing import Effort
timer.BUDGET_S[Effort.RECORD] = 3.0
from cuagent.cli.main import main
main()
"""
"""`cuagent` whose timings of record take as few rounds and processes as are admitted."""

PLANTED = {"SOME_API_KEY": "hunter2-hunter2", "OPENAI_API_KEY": "sk-planted0123456789abcdef"}


Talk = Callable[[Client], Coroutine[Any, Any, None]]
WithClient = Callable[..., None]


@pytest.fixture
def with_client(tmp_path: Path, python: list[str]) -> WithClient:
    """Lets somebody talk to a server in `tmp_path`."""

    async def main(talk: Talk, program: tuple[str, ...]) -> None:
        server = StdioServerParameters(
            command=python[0],
            args=[*python[1:], *program, "mcp"],
            cwd=str(tmp_path),
            env=clean_environment(tmp_path / "home") | PLANTED | {"CUAGENT_DEVICE": "cpu"},
        )
        async with Client(server) as client:
            await talk(client)

    def run(talk: Talk, *program: str) -> None:
        asyncio.run(asyncio.wait_for(main(talk, program or ("-m", "cuagent")), 800))

    return run


def test_the_plain_install_of_the_readme_has_what_the_server_needs() -> None:
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    needs = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    assert any(name.startswith("mcp>") for name in needs)


def test_missing_mcp_package_error_names_the_install_command() -> None:
    program = (
        "import sys; sys.modules['mcp'] = None\n"
        "from cuagent.cli.main import run; sys.exit(run(['mcp']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 2
    assert f"run: {sys.executable} -m pip install 'mcp>=2'" in done.stderr


def test_another_agent_can_use_the_verifier(tmp_path: Path, with_client: WithClient) -> None:
    (tmp_path / "task.py").write_text(TASK)
    for name, text in (("right", RIGHT), ("wrong", RIGHT.replace("softmax", "log_softmax"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_new.py").write_text(text)

    async def talk(client: Client) -> None:
        tools = (await client.list_tools()).tools
        for tool in tools:  # each imports the task's file with the user's rights
            hints = tool.annotations
            assert hints is not None
            assert hints.read_only_hint is False
            assert hints.destructive_hint is True
            assert hints.open_world_hint is True
        names = {tool.name for tool in tools}
        assert names == {"check", "baseline", "compile", "verify", "profile", "export"}
        told: list[str | None] = []

        async def on_text(done: float, total: float | None, message: str | None) -> None:
            told.append(message)

        async def call(tool: str, **arguments: str) -> Any:
            return await client.call_tool(
                tool, {"task": "task.py", **arguments}, progress_callback=on_text
            )

        good = await call("verify", candidate="right", timing="none")
        assert not good.is_error
        assert good.content[0].text.startswith("ACCEPTED attempt 1")
        assert good.structured_content["verdict"]["accepted"] is True
        assert_follows(good.structured_content, "verify")
        assert told[0] == f"opening {tmp_path.name} on cpu"

        bad = await call("verify", candidate="wrong", timing="none")
        assert not bad.is_error, "a rejection is an answer"
        assert bad.content[0].text.startswith("REJECTED attempt 2: wrong values")
        assert told.count(told[0]) == 1, "the judge was opened again"

        assert "can be certified" in (await call("check")).content[0].text
        assert "OK: 0 compiled" in (await call("compile", candidate="right")).content[0].text
        missing = await call("verify", candidate="absent")
        assert missing.is_error
        assert "absent: no such file or folder" in missing.content[0].text

    with_client(talk)


def test_another_agent_gets_what_is_free(
    tmp_path: Path, with_client: WithClient, ladder_known: None
) -> None:
    (tmp_path / "task.py").write_text(TASK)

    async def talk(client: Client) -> None:
        free = await client.call_tool("baseline", {"task": "task.py"})
        assert "eager" in free.content[0].text
        assert_follows(free.structured_content, "baseline")
        names = [rung["name"] for rung in free.structured_content["rungs"]]
        assert names[:2] == ["eager", "compile"]
        assert "--fresh" not in free.content[0].text, "an option that a client cannot give"

    with_client(talk)


def test_another_agent_gets_a_profile_and_a_package(
    tmp_path: Path, with_client: WithClient
) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "right").mkdir()
    (tmp_path / "right" / "model_new.py").write_text(RIGHT)
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "model_new.py").write_text(
        RIGHT.replace("return", "[torch.softmax(x + i, -1) for i in range(40)]; return")
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")

    async def talk(client: Client) -> None:
        async def call(tool: str, **arguments: str | bool) -> Any:
            return await client.call_tool(tool, {"task": "task.py", **arguments})

        shown = await call("profile", candidate="right")
        assert "softmax" in shown.content[0].text
        assert not shown.is_error
        assert_follows(shown.structured_content, "profile")
        counted = await call("profile", device="cpu", counters=True)
        assert "no hardware counters: ncu" in counted.content[0].text

        refused = await call("export", candidate="right", out="full")
        assert refused.is_error
        assert "full: already exists" in refused.content[0].text

        # A module against itself: a busy machine must not decide this test.
        made = await call("export", candidate="right", out="package", force=True)
        assert made.content[0].text.startswith("ACCEPTED attempt 1")
        assert (tmp_path / made.structured_content["out"] / "README.md").is_file()

        slow = await call("export", candidate="slow", out="slow package")
        assert slow.is_error
        assert "slower than eager" in slow.content[0].text
        assert slow.structured_content["out"] is None
        assert slow.structured_content["verdict"]["accepted"] is True
        assert not (tmp_path / "slow package").exists()

    with_client(talk, "-c", HURRIED)


def test_no_secret_of_the_server_reaches_the_client_or_the_candidate(
    tmp_path: Path, with_client: WithClient
) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "curious").mkdir()
    (tmp_path / "curious" / "model_new.py").write_text(
        "import os\nraise RuntimeError(f'sk-planted0123456789abcdef {dict(os.environ)}')\n"
    )

    async def talk(client: Client) -> None:
        given = {"task": "task.py", "candidate": "curious", "timing": "none"}
        answer = await client.call_tool("verify", given)
        whole = answer.model_dump_json()
        assert "RuntimeError" in whole
        for secret in PLANTED.values():
            assert secret not in whole

    with_client(talk)
