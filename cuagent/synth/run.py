"""Make a task set: compose candidate tasks, filter and record them, then write the accepted ones.

Candidates are numbered. The candidate of an index, and whether it repeats an earlier one, depend
only on the seed and the settings. The set consists of the first `count` accepted candidates by
index. A killed run continues after its last record.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cuagent.record import RecordError, refuse_links
from cuagent.synth.candidate import Candidate
from cuagent.synth.compose import Grammar, candidate
from cuagent.synth.kernelbench import Known, collision, digest, read_problems, sizes_of
from cuagent.synth.order import Order
from cuagent.synth.reasons import Reason
from cuagent.synth.shards import Record, Shards
from cuagent.synth.source import graph_of, normalized, parse
from cuagent.synth.workers import Workers

GENERATOR = 5
"""Version of the generator. Increase it when the same seed leads to other tasks than before."""
LIBRARIES = ("transformers", "timm")
"""Libraries whose installed modelling files give blocks: other versions lead to other tasks."""
SETTINGS = "settings.json"
WINDOWS = {"cpu": (1e-4, 2e-2), "cuda": (1e-3, 1e-1)}
"""Accepted range of a task's eager time in seconds, by device; for a GPU it is that of the CUDA
Agent paper."""
TARGETS = {"cpu": (0.25, 0.6), "cuda": (0.1, 0.45)}
"""Range of a task's target time within the time window, as shares of the window on a logarithmic
scale.

The distance from both ends makes sizes change less on a busy machine, and keeps the checks of a GPU
task short.
"""
MEMORY = {"cpu": 256 << 20, "cuda": 5 << 30}
"""Limit in bytes on the inputs of one call and the results of all its operators together.

An H200 moves about 4.5 GB in the millisecond at which the time window of a GPU begins.
"""
REUSE = 1
"""Largest number of candidates that one process examines."""
MOST_PER_TASK = 20
"""Largest number of candidates examined for each wanted task. A run that reaches this limit ends
with fewer tasks."""

Observe = Callable[[int, int, Record], None]
"""Callback for each record: (number accepted so far, number examined so far, record)."""
Compose = Callable[[int], Candidate | None]


class SynthError(Exception):
    """Error: the task set cannot be made. The message is one line: what happened, where, what to
    do."""


@dataclass(frozen=True)
class Settings:
    """Settings of a task set. A resumed run must have the same settings, except `count`."""

    count: int
    seed: int = 0
    device: str = "cpu"
    compose: str = "grammar"
    grammar: Grammar = field(default_factory=Grammar)
    kernelbench: str = ""
    compile: bool = True

    def identity(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share with the interrupted one."""
        import torch

        found = asdict(self) | {"grammar": self.grammar.to_json()}
        if self.kernelbench:
            found["kernelbench"] = digest(Path(self.kernelbench))  # the path is this machine's
        del found["count"]
        versions = {"generator": GENERATOR, "torch": torch.__version__}
        versions |= {name: installed_version(name) for name in LIBRARIES}
        return json.loads(json.dumps(found | versions))

    def command(self) -> str:
        """Return the command that makes the set, with placeholders for folders."""
        plain, said = Grammar(), [f"--count {self.count}", f"--seed {self.seed}"]
        said += [f"--device {self.device}", "--out DIR"]
        if self.compose != "grammar":
            kind, _, model = self.compose.partition(" ")
            said += [f"--compose {kind}", *([f"--model {model}"] if model else [])]
        if dict(self.grammar.counts) != dict(plain.counts):
            said.append(f"--operators {_shares(self.grammar.counts)}")
        changed = {n: w for n, w in self.grammar.families.items() if plain.families.get(n) != w}
        said += [f"--families {_shares(changed)}"] if changed else []
        said += ["--kernelbench KERNELBENCH"] if self.kernelbench else []
        said += [] if self.compile else ["--no-compile"]
        return " ".join(["cuagent synth", *said])


def _shares(weights: Mapping[Any, float]) -> str:
    return ",".join(f"{name}:{weight:g}" for name, weight in weights.items())


def installed_version(name: str) -> str | None:
    """Return the version of an installed library; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def synthesize(
    settings: Settings,
    out: Path,
    resume: bool,
    jobs: int,
    observe: Observe,
    gpus: Sequence[str | None] = (None,),
    compose: Compose | None = None,
    unfinished: Callable[[Record], None] = lambda record: None,
    reuse: int = 0,
) -> list[Record]:
    """Make the task set and return the records of its accepted candidates. Raises SynthError,
    KeyboardInterrupt.

    `jobs`: number of candidates examined at the same time. `compose`: function that returns the
    candidate of an index; None: `compose.candidate` with the grammar. `unfinished` is called at the
    end for each candidate whose examination was ended; its record has the stage and the use of the
    GPU so far. `reuse`: largest number of candidates that one process examines; 0: the default.
    """
    _begin(settings, out, resume)
    shards = Shards(out)
    run = _Run(settings, shards, observe, compose or _grammar(settings))
    for record in shards.read():
        run.restore(record)
    with (
        Workers(settings.device, settings.compile, gpus, reuse or REUSE) as workers,
        ThreadPoolExecutor(jobs) as threads,
    ):
        pending: dict[Future[Record], int] = {}
        try:
            while not run.complete:
                while len(pending) < 2 * jobs and (order := run.next()) is not None:
                    index, made = order
                    pending[threads.submit(workers.examine, made, index)] = index
                if not pending:
                    break
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    run.finish(pending.pop(future), future.result())
        finally:
            # Candidates beyond the last one needed, or all after an interrupt.
            workers.stop()
            threads.shutdown(wait=True, cancel_futures=True)
            for future, index in pending.items():
                if not future.cancelled() and future.exception() is None:
                    unfinished(run.waiting[index] | future.result())
    return run.accepted()


def _begin(settings: Settings, out: Path, resume: bool) -> None:
    try:
        refuse_links(out)
    except RecordError as error:
        raise SynthError(str(error)) from error
    path = out / SETTINGS
    identity = settings.identity()
    if path.exists():
        if not resume:
            raise SynthError(f"{out}: has a set already; add --resume, or name another --out")
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise SynthError(f"{path}: cannot be read as settings ({error})") from error
        changed = [name for name in identity if before.get(name) != identity[name]]
        if changed:
            raise SynthError(f"{out}: was begun with another {', '.join(changed)}")
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(identity, indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise SynthError(f"{out}: cannot be written ({error.strerror or error})") from error


def _grammar(settings: Settings) -> Compose:
    return lambda index: candidate(settings.seed, index, settings.grammar)


class _Run:
    """State of a run: which candidates have been composed, examined and accepted so far."""

    def __init__(
        self, settings: Settings, shards: Shards, observe: Observe, compose: Compose
    ) -> None:
        self.settings = settings
        self.shards = shards
        self.observe = observe
        self.compose = compose
        self.known: list[Known] = []
        if settings.kernelbench:
            self.known = read_problems(Path(settings.kernelbench))
        self.texts: set[str] = set()
        """Digests of the normalized syntax trees of all tasks so far."""
        self.graphs: set[str] = set()
        self.verdicts: dict[int, bool] = {}
        """True for each accepted index, False for each rejected one."""
        self.waiting: dict[int, Record] = {}
        """Records of the candidates that are being examined, by index."""
        self.restored: dict[int, Record] = {}
        self.index = 0
        self._prefix = 0
        self._prefix_accepted = 0

    @property
    def complete(self) -> bool:
        """True if enough candidates are accepted. Only indices before the first one without a
        verdict are counted."""
        while self._prefix in self.verdicts and self._prefix_accepted < self.settings.count:
            self._prefix_accepted += self.verdicts[self._prefix]
            self._prefix += 1
        return self._prefix_accepted >= self.settings.count

    def restore(self, record: Record) -> None:
        """Register a record of the interrupted run, so that its candidate is not examined again."""
        self.restored[record["index"]] = {
            name: record.get(name) for name in ("normalized", "graph", "reason")
        }

    def next(self) -> tuple[int, Order] | None:
        """Return (index, order) of the next candidate to examine; None if no more candidates are
        needed."""
        limit = MOST_PER_TASK * self.settings.count + 100
        while self.index < limit and not self.complete:
            index, self.index = self.index, self.index + 1
            if (before := self.restored.pop(index, None)) is not None:
                self.texts.add(before["normalized"] or "")
                self.graphs.add(before["graph"] or "")
                self.verdicts[index] = not before["reason"]
                continue
            made = self.compose(index)
            if made is None:
                self._reject({"index": index}, Reason.COMPOSITION, "")
                continue
            if (order := self._screened(made)) is not None:
                return index, order
        return None

    def _screened(self, made: Candidate) -> Order | None:
        """Return the order to examine a candidate. If the candidate is invalid, a duplicate or like
        a KernelBench problem, record the reason and return None."""
        record: Record = {
            "index": made.index,
            "ops": list(made.ops),
            "data_source": f"{made.source}#{len(made.ops)}"
            if made.source == "torch"
            else made.source,
            "families": list(made.families),
            "dtype": made.dtype,
        }
        try:
            parsed = parse(made.code)
        except ValueError as error:
            self._reject(record, Reason.SOURCE, str(error))
            return None
        record |= {"normalized": normalized(parsed), "graph": graph_of(parsed)}
        repeated = record["normalized"] in self.texts, record["graph"] in self.graphs
        self.texts.add(record["normalized"])
        self.graphs.add(record["graph"])
        if any(repeated):
            reason = Reason.DUPLICATE if repeated[0] else Reason.NEAR_DUPLICATE
            self._reject(record, reason, "")
            return None
        if found := collision(made.code, self.known):
            self._reject(record, Reason.KERNELBENCH, found)
            return None
        self.waiting[made.index] = record
        return order_for(made, self.settings)

    def finish(self, index: int, answer: dict[str, Any]) -> None:
        """Write the record of candidate `index` from the answer of the process that examined it."""
        record = self.waiting.pop(index) | answer
        if not record.get("reason") and (found := self._collision(record)):
            record |= {"reason": Reason.KERNELBENCH.value, "detail": found}
        self._record(record)

    def _collision(self, record: Record) -> str:
        return collision(record["code"], self.known, sizes_of(record["inputs"]))

    def _reject(self, record: Record, reason: Reason, detail: str) -> None:
        self._record(record | {"reason": reason.value, "detail": detail})

    def _record(self, record: Record) -> None:
        record["time"] = round(time.time(), 1)
        self.shards.append(record)
        self.verdicts[record["index"]] = not record.get("reason")
        self.observe(sum(self.verdicts.values()), len(self.verdicts), record)

    def accepted(self) -> list[Record]:
        """Return the first `count` accepted records by index. Only indices before the first one
        without a verdict are considered."""
        self.complete  # noqa: B018 - the property updates `_prefix`
        found: list[Record] = []
        for record in self.shards.read():
            if len(found) < self.settings.count and record["index"] < self._prefix:
                found += [] if record.get("reason") else [record]
        return found


def order_for(made: Candidate, settings: Settings) -> Order:
    """Return the order for examining a candidate. The target time is drawn at random, determined by
    seed and index."""
    low, high = WINDOWS[settings.device]
    draw = random.Random(f"{settings.seed}/{made.index}/time")
    share = draw.uniform(*TARGETS[settings.device])
    target = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return Order(
        code=made.code,
        labels=made.ops,
        dtype=made.dtype,
        device=settings.device,
        window_s=(low, high),
        target_s=target,
        memory=MEMORY[settings.device],
        compile=settings.compile,
    )
