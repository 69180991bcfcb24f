"""Read the progress of an expert's run from its messages: candidates, outcomes and written files.

The messages are the only state, so that an interrupted run resumes at the same point. Not covered:
files in the work folder that others changed; `write` then fails, and the file is read first.
Invariant: a result is assigned to a candidate only if all of its files were written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cuagent.expert.search.outcomes import Bounds, Outcome
from cuagent.expert.search.planner import Proposal
from cuagent.expert.search.repairs import shares_fault
from cuagent.message import Message, ToolCall
from cuagent.timing import Ratio

Propose = Callable[[Sequence[Outcome], Bounds], Proposal | None]
OWN_KERNEL = "own kernel: "
"""Prefix that marks an attempt's own kernels among the operators of a profile."""


@dataclass
class Progress:
    """State of the expert's run after the messages read so far."""

    profiled: bool = False
    """True if the reference was profiled."""
    candidate_profiled: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Text of each file that the expert wrote to the work folder, by relative path."""
    unread: set[str] = field(default_factory=set)
    """Paths of files that must be read before the tool `write` can replace them."""
    refreshed: set[str] = field(default_factory=set)
    """Paths of files whose first refused write is not counted as a failure, because reading solved
    it.
    """
    compiled: bool = False
    """True if the newest candidate was compiled but not yet verified."""
    failures: int = 0
    """Number of calls since the last outcome that failed through no fault of the candidate."""
    failure: str = ""
    """First line of the latest failure that is not the candidate's fault; "" without one."""
    refused: bool = False
    """True if the tool `submit` refused an attempt: a timing at record effort found a fault."""
    empty_submit: bool = False
    """True if `submit` was called without an attempt."""
    bounds: Bounds = field(default_factory=Bounds)


def read_progress(
    messages: Sequence[Message], propose: Propose, *, kernels_only: bool = False
) -> Progress:
    """Return the state of a run from its messages; calls without a result are ignored.

    `propose` gets the outcomes so far and returns the candidate that the expert wrote after them.
    `kernels_only` is that of the bounds.
    """
    progress = Progress(bounds=replace(_bounds(messages), kernels_only=kernels_only))
    results = {m.tool_call_id: m for m in messages if m.role == "tool"}
    for message in messages:
        for call in message.tool_calls if message.role == "assistant" else ():
            result = results.get(call.id)
            if result is not None and not result.data.get("interrupted"):
                _replay(progress, call, result, propose)
    return progress


def _replay(progress: Progress, call: ToolCall, result: Message, propose: Propose) -> None:
    arguments = _arguments(call)
    match call.name:
        case "profile":
            progress.candidate_profiled |= bool(progress.outcomes)
            progress.profiled = True
            _record_profile(progress, result.data)
        case "write":
            _record_write(progress, arguments, result)
        case "bash" if not result.is_error:
            command, *paths = str(arguments.get("command")).split() or [""]
            for path in paths if command == "rm" else ():
                progress.files.pop(path, None)
        case "compile" | "verify":
            proposal = propose(progress.outcomes, progress.bounds)
            if proposal and proposal.candidate.files.items() <= progress.files.items():
                _record_outcome(progress, call.name, proposal, result)
        case "submit":
            _record_submit(progress, arguments, result)


def _record_write(progress: Progress, arguments: Mapping[str, Any], result: Message) -> None:
    path = str(arguments.get("path"))
    if result.is_error:
        progress.unread.add(path)
        progress.files.pop(path, None)
        if path not in progress.refreshed:
            # The first refusal only says that someone else changed the file, so read it next.
            progress.refreshed.add(path)
            return
        _record_failure(progress, result)
    else:
        progress.unread.discard(path)
        progress.files[path] = str(arguments.get("text"))


def _record_outcome(progress: Progress, tool: str, proposal: Proposal, result: Message) -> None:
    """Record the result of the tool `compile` or `verify` for the candidate in the work folder."""
    data, candidate = result.data, proposal.candidate
    match tool:
        case "compile" if "ok" in data:
            progress.compiled = bool(data["ok"])
            if progress.compiled:
                progress.failures = 0
                return None
            files = tuple(str(d.get("file", "")) for d in data.get("diagnostics", ()))
            outcome = Outcome(candidate, False, "build failed", broken_files=files)
        case "verify" if "accepted" in data:
            progress.compiled = False
            outcome = Outcome(
                candidate,
                bool(data["accepted"]),
                str(data.get("reason", "no reason given")),
                data.get("attempt"),
                _ratios(data.get("ratios")),
                seconds=_seconds(data.get("times")),
                judged_s=float(data.get("judged_s", 0.0)),
            )
        case _:
            return _record_failure(progress, result)
    progress.outcomes.append(outcome)
    progress.failures = 0
    return None


def _record_submit(progress: Progress, arguments: Mapping[str, Any], result: Message) -> None:
    if result.data.get("ended"):
        return
    attempt = arguments.get("attempt")
    if not isinstance(attempt, int):
        progress.empty_submit = True
        return
    refused = next((o for o in progress.outcomes if o.attempt == attempt), None)
    if refused is None:
        return
    reason = str(result.data.get("reason", "no reason given"))
    progress.refused = True
    progress.outcomes = [
        replace(o, accepted=False, reason=reason)
        if o is refused or shares_fault(o.candidate, refused.candidate, reason)
        else o
        for o in progress.outcomes
    ]
    # The planner repairs the last candidate.
    progress.outcomes.sort(key=lambda o: o.attempt == attempt)


def _record_failure(progress: Progress, result: Message) -> None:
    progress.failures += 1
    progress.failure = (result.content.strip().splitlines() or ["the tool returned no result"])[0]


HEAVY = re.compile(
    r"^(?!.*init_device_workspace)"
    r".*(conv(?!ert|_depthwise)|gemm|xmma|cutlass|scudnn|winograd|fft)",
    re.IGNORECASE | re.DOTALL,
)
"""Matches names of torch's kernels for products and convolutions, except depthwise ones."""
TF32 = re.compile(r"tf32|s1688|tensorop_s", re.IGNORECASE)
"""Matches names of torch's kernels that read the operands of a product in TF32."""


EXACT_SHARE = 0.1
"""Least share of the products' time in float32 kernels for which a network computes all layers in
TF32. Below it, TF32 in these layers could gain little: the first layer of MobileNetV2, whose
candidate in TF32 was refused in a record timing on inputs with a mean of 5e4."""
NETWORK = 4
"""Least number of launches in TF32 whose errors hide those of the few other layers.

In a network of convolutions cuDNN computes the first layer (3 channels) and torch the last (a
matrix product) often in float32. If as many layers again run in TF32, their errors grow by a factor
of at most about 1.4 (independent errors of equal size), and a candidate's may be 3 times the
reference's. The first layer of SqueezeNet took 7.1 ms in float32 and 2.8 in TF32 (H200).
"""


def runs_in_tf32(profile: Any) -> bool:
    """Return True if the products and convolutions of a profile run in TF32: all kernels, or in a
    network at least half of the launches, if the others take a share of the time."""
    costs = profile.get("kernels") if isinstance(profile, Mapping) else None
    launches, seconds = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for cost in costs or ():
        name = str(cost["name"])
        if HEAVY.search(name):
            coarse = TF32.search(name) is not None
            launches[coarse] += cost.get("calls", 1.0)
            seconds[coarse] += cost["seconds"]
    network = launches[True] >= max(NETWORK, launches[False])
    network &= seconds[False] >= EXACT_SHARE * sum(seconds.values())
    return network or launches[True] > launches[False] == 0


def _record_profile(progress: Progress, data: Mapping[str, Any]) -> None:
    """Record from a profile if the reference runs in TF32, or a candidate's share in own
    kernels.
    """
    if data.get("what") == "reference":
        in_tf32 = runs_in_tf32(data.get("profile"))
        is_exact = progress.bounds.is_exact and not in_tf32
        progress.bounds = replace(progress.bounds, in_tf32=in_tf32, is_exact=is_exact)
    if data.get("what") == "candidate" and progress.outcomes:
        last = progress.outcomes[-1]
        profile = data.get("profile")
        share = own_share(profile, last.candidate.kernels)
        busy = profile.get("busy") if isinstance(profile, Mapping) else None
        busy = float(busy) if isinstance(busy, int | float) else None
        progress.outcomes[-1] = replace(last, own_share=share, busy=busy)


def own_share(profile: Any, kernels: Sequence[str]) -> float | None:
    """Return the share of the profiled time in the kernels named `kernels`; None for an empty
    profile.

    On CUDA these are the GPU's kernels, on the CPU the profiled ranges around their calls.
    """
    if not isinstance(profile, Mapping):
        return None
    costs = profile.get("kernels") or profile.get("operators") or ()
    total = sum(cost["seconds"] for cost in costs)
    named = (OWN_KERNEL, *kernels)
    own = sum(c["seconds"] for c in costs if any(name in c["name"] for name in named))
    return own / total if total else None


def _bounds(messages: Sequence[Message]) -> Bounds:
    """Return the bounds on a kernel's gain, from the ladder message at the start of the run."""
    found: Any = next((m.data["bounds"] for m in messages if "bounds" in m.data), {})
    return Bounds(**found) if isinstance(found, Mapping) else Bounds()


def _seconds(data: Any) -> float | None:
    seconds = data.get("candidate") if isinstance(data, Mapping) else None
    return float(seconds) if isinstance(seconds, int | float) else None


def _ratios(data: Any) -> dict[str, Ratio]:
    """Return the ratios by baseline; a ratio without confidence limits gets an interval of width
    0.
    """
    found = {}
    for name, ratio in data.items() if isinstance(data, Mapping) else ():
        value = ratio.get("value") if isinstance(ratio, Mapping) else None
        if isinstance(value, int | float):
            found[str(name)] = Ratio(value, ratio.get("low", value), ratio.get("high", value))
    return found


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        value = json.loads(call.arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
