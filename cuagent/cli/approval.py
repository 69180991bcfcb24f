"""Who is asked before a command of the model's runs.

ask    every command
auto   only where no sandbox holds it
yolo   none

An answer other than yes is the reason, and goes to the model. Where nobody can be asked, a command
that would need it does not run. The file tools are never asked: they write in the run's own folder
only. Not covered: the sandbox itself, which holds commands in all three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuagent.agent.tools import Context, Tool, ToolResult

Ask = Callable[[str, str, "Context"], str | None]
"""Shows a command, puts a question to the user; None where the answer is an interrupt."""
ASKED = ("bash",)
YES = ("y", "yes")
ALWAYS = ("a", "always")
OPERATORS = frozenset(";|&$`<>()\n")
"""What makes more than one program of a command line."""
KEYS = "allow this command? y: yes{always}, n or why not: no"
ALWAYS_FOR = ", a: always for `{word}`"


def approved(tools: Sequence[Tool], mode: str, ask: Ask | None = None) -> tuple[Tool, ...]:
    """The tools, those that run commands with a question before them where `mode` wants one."""
    if mode == "yolo" or (mode == "auto" and _confined()):
        return tuple(tools)
    allowed: set[str] = set()
    return tuple(
        replace(tool, function=_asking(tool, allowed, ask)) if tool.name in ASKED else tool
        for tool in tools
    )


def _asking(
    tool: Tool, allowed: set[str], ask: Ask | None
) -> Callable[[Context, Mapping[str, Any]], ToolResult]:
    from cuagent.agent.attended import Interrupted
    from cuagent.agent.tools import ToolError

    def asked(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
        command = str(arguments["command"]).strip()
        word = _only_program(command)
        if word not in allowed or not word:
            if ask is None:
                raise ToolError(
                    "commands need the user's approval here, and nobody can be asked; "
                    "use the file tools, compile, verify and profile"
                )
            always = ALWAYS_FOR.format(word=word) if word else ""
            answer = ask(command, KEYS.format(always=always), context)
            if answer is None:
                raise Interrupted
            if word and answer.lower() in ALWAYS:
                allowed.add(word)
            elif answer.lower() not in YES:
                why = "" if answer.lower() in ("n", "no") else f": {answer}"
                raise ToolError(f"the user does not allow this command{why}")
        return tool.function(context, arguments)

    return asked


def _only_program(command: str) -> str:
    """The program, where the line is one plain call of it; "" for anything that is more."""
    if not command or OPERATORS & set(command):
        return ""
    word = command.split()[0]
    return "" if "=" in word else word


def _confined() -> bool:
    from cuagent.sandbox import Tier, probe

    return probe() is not Tier.NONE
