"""Ask the user for approval before commands of the model run.

    ask    every command
    auto   only commands outside a sandbox
    yolo   none

The answer is yes, or always: for exactly this command, or for every command that calls the same
programs. "Always" lasts for this session and is stored in memory only. Any other answer rejects the
command and is passed to the model as the reason. Without a user, a command that needs approval does
not run. The file tools need no approval: they write only in the run's folder.

Not covered: the sandbox itself, which confines commands in all three modes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuagent.agent.tools import Context, Tool, ToolResult

Ask = Callable[[str, str, "Context"], str | None]
"""Function that shows a command to the user and asks a question: (command, question, context) ->
answer, or None after an interrupt."""
ASKED = ("bash",)
YES = ("y", "yes")
ALWAYS = ("a", "always")
KIND = ("k", "kind")
KEYS = "allow this command? y: yes, a: always this command{kind}, n or a reason: no"
ALWAYS_KIND = ", k: always {programs}"
HARMLESS = re.compile(r"(?<![^\s])(?:2>&1|[12&]?>{1,2}\s*/dev/null)(?=$|[\s;|&])")
"""Pattern of redirections that write no file, such as `2>&1` and `> /dev/null`."""
OPERATORS = ("&&", "||", ";", "|")
"""Shell operators that may separate the calls in a plain command line."""
PROGRAM = re.compile(r"[\w./+-]+")
SHELL = ("bash", "sh", "dash", "zsh", "eval", "exec", "source", ".", "command", "coproc")
LAUNCHERS = ("env", "xargs", "sudo", "su", "nohup", "nice", "time", "timeout", "setsid")
WORDS = ("if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac")
STARTERS = frozenset((*SHELL, *LAUNCHERS, *WORDS, "select", "function"))
"""Programs that start other programs, and shell keywords. They cannot be allowed by name."""


@dataclass
class Allowed:
    """Commands and programs that the user has allowed for the rest of the session."""

    commands: set[str] = field(default_factory=set)
    programs: set[str] = field(default_factory=set)

    def covers(self, command: str) -> bool:
        """Return True if the user has allowed this command, or all programs in it."""
        kind = programs(command)
        return command in self.commands or (bool(kind) and set(kind) <= self.programs)


def approved(tools: Sequence[Tool], mode: str, ask: Ask | None = None) -> tuple[Tool, ...]:
    """Return the tools, with those that run commands changed to ask the user first if `mode`
    requires it."""
    if mode == "yolo" or (mode == "auto" and _confined()):
        return tuple(tools)
    allowed = Allowed()
    return tuple(
        replace(tool, function=_asking(tool, allowed, ask)) if tool.name in ASKED else tool
        for tool in tools
    )


def programs(command: str) -> tuple[str, ...]:
    """Return the programs that a plain command line calls, in order; () if it is not plain.

    A plain line has calls separated by `&&`, `||`, `;` or `|`. Substitutions, redirections to
    files, assignments, loops and other shell syntax are not plain.
    """
    text = HARMLESS.sub(" ", command)
    if any(sign in text for sign in "$`\n\\"):
        return ()
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    found: list[str] = []
    begins = True
    try:
        for token in lexer:
            if set(token) <= set("();<>|&"):
                if token not in OPERATORS or begins:
                    return ()
                begins = True
            elif begins:
                if not PROGRAM.fullmatch(token) or token in STARTERS:
                    return ()
                found.append(token)
                begins = False
    except ValueError:  # a quotation that does not end
        return ()
    return tuple(dict.fromkeys(found))


def _asking(
    tool: Tool, allowed: Allowed, ask: Ask | None
) -> Callable[[Context, Mapping[str, Any]], ToolResult]:
    def asked(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
        command = str(arguments["command"]).strip()
        if not allowed.covers(command):
            _require_approval(command, allowed, ask, context)
        return tool.function(context, arguments)

    return asked


def _require_approval(command: str, allowed: Allowed, ask: Ask | None, context: Context) -> None:
    """Ask the user to approve a command. Raises ToolError after a no, and Interrupted."""
    from cuagent.agent.attended import Interrupted
    from cuagent.agent.tools import ToolError

    if ask is None:
        raise ToolError(
            "commands need the user's approval, and no user is present; "
            "use the file tools, compile, verify and profile"
        )
    kind = programs(command)
    named = " and ".join(f"`{name}`" for name in kind)
    always = ALWAYS_KIND.format(programs=named) if kind else ""
    context.run.stop_clock()  # the user's time counts towards no limit
    try:
        answer = ask(command, KEYS.format(kind=always), context)
    finally:
        context.run.resume_clock()
    if answer is None:
        raise Interrupted
    match answer.lower():
        case word if word in YES:
            return
        case word if word in ALWAYS:
            allowed.commands.add(command)
            said = "this command is allowed"
        case word if word in KIND and kind:
            allowed.programs.update(kind)
            said = f"commands that only call {named} are allowed"
        case word:
            why = "" if word in ("n", "no") else f": {answer}"
            raise ToolError(f"the user does not allow this command{why}")
    context.run.notice(f"{said} for the rest of this session")


def _confined() -> bool:
    from cuagent.sandbox import Tier, probe

    return probe() is not Tier.NONE
