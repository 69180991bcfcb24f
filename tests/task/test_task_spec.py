"""Tests of the grammar of --inputs and --init."""

from __future__ import annotations

import pytest

from cuagent.task import TaskError
from cuagent.task.spec import TensorSpec, parse_init, parse_inputs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[8,128,512]", (TensorSpec("float32", (8, 128, 512)),)),
        ("f32[8, 5]; bf16[5]", (TensorSpec("float32", (8, 5)), TensorSpec("bfloat16", (5,)))),
        ("f32[2] i64[16]<1000", (TensorSpec("float32", (2,)), TensorSpec("int64", (16,), 1000))),
        ("i32[3] < 5, 0.5", (TensorSpec("int32", (3,), 5), 0.5)),
        ("float16[2];None;-1", (TensorSpec("float16", (2,)), None, -1)),
        ("f64[]", (TensorSpec("float64", ()),)),
        ("[bool[2], (1, 'a b')]", ([TensorSpec("bool", (2,)), (1, "a b")],)),
        ("{'x': f32[2]}", ({"x": TensorSpec("float32", (2,))},)),
        ("f32[0,4]", (TensorSpec("float32", (0, 4)),)),
    ],
)
def test_inputs_are_parsed(text: str, expected: tuple[object, ...]) -> None:
    assert parse_inputs(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("f33[8]", "did you mean f32?"),
        ("f32[8", 'cannot read "f32[8"'),
        ("f32[-8]", "sizes must be whole numbers"),
        ("f32[1.5]", "sizes must be whole numbers"),
        ("i64[4]<0", "above 0"),
        ("3<4", "bounds a tensor"),
        ("open('x')", "neither a tensor"),
        ("x", "neither a tensor"),
    ],
)
def test_unreadable_inputs_give_a_one_line_error(text: str, says: str) -> None:
    with pytest.raises(TaskError, match=r"^--inputs") as caught:
        parse_inputs(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_init_accepts_only_literals() -> None:
    assert parse_init("512, 2048, bias=True") == ((512, 2048), {"bias": True})
    assert parse_init("") == ((), {})
    assert parse_init("(1, 2), 'relu'") == (((1, 2), "relu"), {})
    for bad in ("__import__('os')", "1 +", "**{}", "1); f(2"):
        with pytest.raises(TaskError, match=r"--init .*"):
            parse_init(bad)
