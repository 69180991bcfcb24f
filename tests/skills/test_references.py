"""The skill is well formed, and its complete examples compile and are accepted."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from worked_examples import EXAMPLES, REFERENCES, SKILLS, Example, named_blocks

from cuagent.agent.prompt import skill
from cuagent.arms import EAGER
from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.judge import LocalJudge
from cuagent.kernels import CompilerMissing, compiler
from cuagent.task import Device
from cuagent.timing import Effort, Standing
from cuagent.verify import Reason, Verdict
from cuagent.worker import ForkServer

pytestmark = pytest.mark.slow

ON_CPU = [name for name, example in EXAMPLES.items() if example.device == "cpu"]
ON_CUDA = [name for name, example in EXAMPLES.items() if example.device == "cuda"]
COMPILED_CUDA = [name for name in ON_CUDA if EXAMPLES[name].attempt.kernels]
OLDER_ARCHITECTURES = ("75", "89")

BROKEN = {
    "one-pass variance": (
        "square += (in[i] - mean) * (in[i] - mean);",
        "square += in[i] * in[i];\n        square -= size * mean * mean;",
        Reason.WRONG_VALUES,
    ),
    "tail left out": (
        "for (long i = 0; i < size; ++i) {",
        "for (long i = 0; i < size / 8 * 8; ++i) {",
        Reason.NOT_WRITTEN,
    ),
    "store past the end": (
        "for (long i = 0; i < size; ++i) {",
        "for (long i = 0; i < (size + 7) / 8 * 8; ++i) {",
        Reason.WROTE_OUTSIDE,
    ),
    "write to the input": (
        "out[i] = v > 0 ? v : v * slope;",
        "out[i] = x[p * size + i] = v > 0 ? v : v * slope;",
        Reason.CHANGED_INPUT,
    ),
}
"""Replacements that break the kernel of wrong-results.md, with the verdict's expected reason."""

WITHDRAWN = {"convolutions"}
"""References whose speedup was measured under another precision contract and so is not stated."""


def test_front_matter_has_name_and_use_of_skill() -> None:
    text = (SKILLS / "SKILL.md").read_text()
    front, fields = text.split("---\n")[1], {}
    for line in front.splitlines():
        key, colon, value = line.partition(": ")
        assert colon, line
        fields[key] = value
    assert set(fields) == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert len(fields["name"]) <= 64
    assert 60 < len(fields["description"]) <= 1024
    assert "Use " in fields["description"]
    assert skill().startswith("# ")


def test_skill_lists_every_reference_and_no_other() -> None:
    listed = re.findall(r"^\| `skills/references/([\w-]+)\.md` \| .{20,}\|$", skill(), re.MULTILINE)
    assert sorted(listed) == sorted(EXAMPLES)
    mentioned = {
        name
        for file in (SKILLS / "SKILL.md", *REFERENCES.glob("*.md"))
        for name in re.findall(r"`(?:skills/references/)?([\w-]+)\.md`", file.read_text())
    }
    assert mentioned <= {*EXAMPLES, "SKILL", "AGENTS"}


def test_skill_explains_every_verdict_reason() -> None:
    explained = skill()
    for reason in set(Reason) - {Reason.ACCEPTED}:
        assert f"`{reason}`" in explained, reason


def test_skill_and_references_keep_length_limits() -> None:
    assert len((SKILLS / "SKILL.md").read_text().splitlines()) < 300
    for reference in REFERENCES.glob("*.md"):
        lines = reference.read_text().splitlines()
        assert 80 <= len(lines) <= 250, reference.name
        assert max(map(len, lines)) <= 240, reference.name


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_reference_states_measured_speedup_with_machine_and_date(name: str) -> None:
    text = (REFERENCES / f"{name}.md").read_text()
    measured = re.search(r"^Measured 20\d\d-\d\d-\d\d on [^:]+:.*?(?=\n\n|\Z)", text, re.M | re.S)
    assert measured
    if name in WITHDRAWN:
        assert "gains of that run\nare not stated: " in measured[0]
        assert "x eager" not in text
    else:
        assert re.search(r"\d[.\d]*x eager", measured[0].splitlines()[0])


@pytest.mark.parametrize("name", COMPILED_CUDA)
def test_cuda_example_compiles(name: str) -> None:
    try:
        made = build(EXAMPLES[name].attempt, Device.CUDA)
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    assert made.ok, [(d.file, d.line, d.message) for d in made.diagnostics]
    kernels = [kernel for library in made.libraries for kernel in library.resources]
    assert kernels
    assert not any(kernel.spill_bytes or kernel.stack_bytes for kernel in kernels)


@pytest.mark.parametrize("device", list(Device))
def test_kernel_form_in_skill_compiles(device: Device) -> None:
    attempt = Attempt(tuple(sorted(named_blocks(skill(device)).items())))
    assert attempt.kernels
    try:
        made = build(attempt, device)
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    assert made.ok, made.diagnostics


@pytest.mark.parametrize("arch", OLDER_ARCHITECTURES)
def test_example_for_older_gpus_compiles(arch: str, tmp_path: Path) -> None:
    try:
        nvcc = compiler.nvcc()
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    EXAMPLES["older-gpus"].attempt.write(tmp_path)
    code = f"arch=compute_{arch},code=sm_{arch}"
    argv = [nvcc, "-gencode", code, "-cubin", "-o", "/dev/null", "kernels/transpose.cu"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ON_CPU)
def test_cpu_example_is_accepted(name: str, judge: LocalJudge) -> None:
    verdict = verify(judge, EXAMPLES[name].attempt)
    assert verdict.accepted, verdict.detail


@pytest.mark.parametrize("change", BROKEN)
@pytest.mark.parametrize("name", ["wrong-results"])
def test_broken_example_is_rejected_with_documented_reason(
    name: str, change: str, judge: LocalJudge
) -> None:
    old, new, reason = BROKEN[change]
    assert verify(judge, EXAMPLES[name].changed(old, new)).reason is reason


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_CUDA)
def test_cuda_example_is_accepted_and_faster_than_eager(name: str, judge: LocalJudge) -> None:
    judgement = judge.judge(EXAMPLES[name].attempt, Effort.QUICK)
    assert judgement.verdict.accepted, judgement.verdict.detail
    assert judgement.timing is not None
    assert judgement.timing.ratios[EAGER].standing is Standing.FASTER


@pytest.fixture(scope="module")
def judges(fork_server: ForkServer) -> Iterator[dict[str, LocalJudge]]:
    opened: dict[str, LocalJudge] = {}
    yield opened
    for judge in opened.values():
        judge.close()


@pytest.fixture
def judge(
    name: str,
    judges: dict[str, LocalJudge],
    fork_server: ForkServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> LocalJudge:
    """Return the judge of the example's task; only one judge is open, because each uses the GPU."""
    if name not in judges:
        for other in [*judges]:
            judges.pop(other).close()
        example: Example = EXAMPLES[name]
        judges[name] = LocalJudge(
            example.task(tmp_path_factory.mktemp(name)), fork_server=fork_server
        )
    return judges[name]


def verify(judge: LocalJudge, attempt: Attempt) -> Verdict:
    judgement = judge.judge(attempt, None)
    assert judgement.build.ok, [d.message for d in judgement.build.diagnostics]
    return judgement.verdict
