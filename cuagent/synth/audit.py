"""Audit a parquet file of tasks: one from cuagent, CUDA-Agent-Ops-6K, or any file with a column
`code`.

The text of every row is audited: duplicates, labels that the code does not have, changed checksums.
Some rows are also run. They undergo the checks of new candidates, except the time window, and on
request those of `cuagent check`, which draws other inputs and weights and tries trivial answers
under the strict rule.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuagent.synth.card import entropy
from cuagent.synth.dataset import checksum, operators_of, read_set
from cuagent.synth.kernelbench import Known, collision, input_shapes, read_problems, sizes_of
from cuagent.synth.labelled import tail
from cuagent.synth.order import Order
from cuagent.synth.reasons import Reason
from cuagent.synth.source import graph_of, labels, normalized, parse
from cuagent.synth.workers import Workers

SHOWN = 5
REFUSED = "refused by cuagent check"
MEMORY = 4 << 30
LONGEST_CODE = 200_000
"""Largest number of characters of a task's source that is audited."""


@dataclass
class Audit:
    """Result of an audit: the rows with each fault, and counts over the whole file."""

    rows: int = 0
    faults: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of the rows with a fault, by the fault's name."""
    details: dict[tuple[str, int], str] = field(default_factory=dict)
    """Explanation of a fault, by the fault's name and the number of the row."""
    operators: Counter[str] = field(default_factory=Counter)
    """Number of calls of each operator in the code of all rows, by operator."""
    counts: Counter[int] = field(default_factory=Counter)
    """Number of rows by the number of operators that the row declares."""
    sources: Counter[str] = field(default_factory=Counter)
    run: int = 0
    """Number of rows whose module was executed."""

    def add(self, fault: str, row: int, detail: str = "") -> None:
        self.faults.setdefault(fault, []).append(row)
        if detail:
            self.details[fault, row] = detail

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "run": self.run,
            "faults": {name: len(rows) for name, rows in self.faults.items()},
            "faulty_rows": self.faults,
            "different_operators": len(self.operators),
            "operator_entropy_bits": round(entropy(self.operators), 3),
            "count_entropy_bits": round(entropy(self.counts), 3),
            "rows_by_operators": {str(n): self.counts[n] for n in sorted(self.counts)},
            "data_source": dict(self.sources),
        }


@dataclass
class _Seen:
    """Number of the first row with each text, with each normalized syntax tree and with each
    operator graph."""

    texts: dict[str, int] = field(default_factory=dict)
    trees: dict[str, int] = field(default_factory=dict)
    graphs: dict[str, int] = field(default_factory=dict)


def audit(
    path: Path,
    run: int,
    device: str,
    jobs: int,
    compile: bool,
    kernelbench: str = "",
    check: bool = False,
    observe: Callable[[int, Mapping[str, Any]], None] = lambda row, answer: None,
) -> Audit:
    """Check the tasks of a parquet file: the code of each row, and for the first `run` rows also
    their execution, in `jobs` parallel processes.

    `kernelbench`: path of a KernelBench checkout to compare with; "" for none. `compile`: also run
    under torch.compile. `check`: also run the checks of `cuagent check`. `observe` is called with
    the number and the answer of each row that was run. Raises SynthError.
    """
    found, seen = Audit(), _Seen()
    known = read_problems(Path(kernelbench)) if kernelbench else []
    orders: list[tuple[int, Order]] = []
    for number, row in enumerate(read_set(path, all_text=False)):
        found.rows += 1
        sound = _read(number, row, found, seen)
        if sound and known and (hit := _collision(row, known)):
            found.add(Reason.KERNELBENCH.value, number, hit)
        if sound and len(orders) < run:
            orders.append((number, _order(row, device, compile)))
    if orders:
        with Workers(device, compile) as workers:
            _run(orders, found, workers, jobs, check, observe)
    return found


def _read(number: int, row: Mapping[str, Any], found: Audit, seen: _Seen) -> bool:
    """Audit the text of one row and add its faults to `found`; return True if the row can be
    run."""
    code, declared = row["code"], operators_of(row)
    if not isinstance(code, str):
        found.add(Reason.SOURCE.value, number, "its code is no text")
        return False
    if len(code) > LONGEST_CODE:
        found.add(Reason.SOURCE.value, number, f"more than {LONGEST_CODE:,} characters")
        return False
    found.counts[len(declared)] += 1
    found.sources[str(row.get("data_source") or "")] += 1
    if row.get("checksum") and row["checksum"] != checksum(code):
        found.add("changed checksum", number)
    try:
        parsed = parse(code)
    except ValueError as error:
        found.add(Reason.SOURCE.value, number, str(error))
        return False
    ops = labels(parsed)
    found.operators.update(ops)
    if (first := seen.texts.setdefault(code, number)) != number:
        found.add("byte-identical duplicate", number, f"of row {first}")
    elif (first := seen.trees.setdefault(normalized(parsed), number)) != number:
        found.add("duplicate but for names and sizes", number, f"of row {first}")
    elif (first := seen.graphs.setdefault(graph_of(parsed), number)) != number:
        found.add("equal operator graph", number, f"of row {first}")
    absent = sorted({tail(n) for n in declared} - _words(code, ops))
    if absent:
        found.add("label absent from the code", number, ", ".join(absent))
    return True


def _collision(row: Mapping[str, Any], known: Sequence[Known]) -> str:
    code, shapes = str(row["code"]), row.get("shapes")
    return collision(code, known, sizes_of(shapes) if shapes else input_shapes(code))


def _words(code: str, ops: list[str]) -> set[str]:
    """Return the names that occur in the code, and the declared operators, in the spelling of
    labels (`tail`)."""
    return {tail(name) for name in ops} | {tail(word) for word in re.findall(r"\w+", code)}


def _order(row: Mapping[str, Any], device: str, compile: bool) -> Order:
    ours = bool(row.get("checksum"))
    return Order(
        code=str(row["code"]),
        labels=tuple(operators_of(row)),
        dtype=str(row.get("dtype") or "float32"),
        device=device,
        window_s=(0.0, math.inf),
        target_s=0.0,
        memory=MEMORY,
        compile=compile,
        exact_labels=ours,
        solve=False,
    )


def _run(
    orders: list[tuple[int, Order]],
    found: Audit,
    workers: Workers,
    jobs: int,
    check: bool,
    observe: Callable[[int, Mapping[str, Any]], None],
) -> None:
    with ThreadPoolExecutor(jobs) as threads:
        answers = threads.map(lambda order: workers.examine(order[1]), orders)
        for (number, order), answer in zip(orders, answers, strict=True):
            found.run += 1
            if answer.get("reason"):
                found.add(answer["reason"], number, answer.get("detail", ""))
            elif check and (refusal := _refusal(order, workers)):
                found.add(REFUSED, number, refusal)
            observe(number, answer)


def _refusal(order: Order, workers: Workers) -> str:
    """Return the reason why `cuagent check` refuses the task; "" if it accepts the task."""
    from cuagent.task import TaskError, load_task
    from cuagent.verify.admission import admit
    from cuagent.verify.referee import Referee

    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        file = Path(folder, "task.py")
        file.write_text(order.code, encoding="utf-8")
        try:
            task = load_task(file, device=order.device)
            with Referee(task, fork_server=workers.fork_server) as referee:
                return admit(referee).refusal
        except TaskError as error:
            return str(error)
