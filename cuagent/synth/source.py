"""Write a draft as a Python file; read operators and structure from the source text of any task.

`labels` reads the operators of `Model` from its syntax tree, so labels and code agree. `graph_of`
is a digest of the data flow of forward without names and sizes: two tasks with equal digests are
near duplicates.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from dataclasses import dataclass
from typing import Any

from cuagent.synth.draft import Draft
from cuagent.task.source import parse_python
from cuagent.worker.operators import names_in

BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul",
    ast.Pow: "pow", ast.Mod: "remainder", ast.FloorDiv: "floor_divide", ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
}  # fmt: skip
COMPARISONS = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip
NO_OPERATORS = names_in("size dim numel view_as type item tolist keys values items append")
"""Names of methods that compute nothing and therefore have no label."""
KEPT_OPTIONS = re.compile("dim|affine|bias|mode|stride|dilation")
"""Pattern of the options of a module that change the computation and not only its size."""
SIZE = "#"
BATCH_LINE = re.compile(r"^BATCH = \d+$", re.MULTILINE)


def write_source(draft: Draft, outputs: tuple[str, ...], batch: int) -> str:
    """Return the source text of a task from a draft. `outputs`: names of the values that forward
    returns."""
    attributes = [f"self.{name} = {text}" for name, text in draft.attributes.items()]
    cast = [] if draft.dtype == "float32" or not attributes else [f"self.to(torch.{draft.dtype})"]
    constructor = ["super().__init__()", *attributes, *draft.afterwards, *cast]
    body = list(draft.lines)
    if len(outputs) == 1 and body[-1].startswith(f"{outputs[0]} = "):
        result = body.pop().partition(" = ")[2]
    else:
        result = ", ".join(outputs)
    drawn = "".join(f"        {text},\n" for text in draft.inputs.values())
    text = (
        f"BATCH = {batch}\n\n\n"
        "class Model(nn.Module):\n"
        f"    def __init__(self):\n{_lines(constructor)}\n"
        f"    def forward(self, {', '.join(draft.inputs)}):\n{_lines([*body, f'return {result}'])}"
        f"\n\ndef get_inputs():\n    return [\n{drawn}    ]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    functional = "import torch.nn.functional as F\n" if "F." in text else ""
    return f"import torch\nimport torch.nn as nn\n{functional}\n{text}"


def _lines(statements: list[str]) -> str:
    return "".join(f"        {statement}\n" for statement in statements)


def with_batch(code: str, batch: int) -> str:
    """Return the source text with the constant BATCH set to `batch`."""
    return BATCH_LINE.sub(f"BATCH = {batch}", code)


@dataclass(frozen=True)
class Parsed:
    """Parts of a task's source text from which labels and fingerprints are made."""

    tree: ast.Module
    attributes: dict[str, ast.expr]
    """Expression that the constructor assigns to each `self.name`, by name."""
    forward: ast.FunctionDef
    inputs: str
    """Text of the expressions that `get_inputs` returns, with the sizes removed."""


def parse(code: str) -> Parsed:
    """Return the parts of a task's source text. Raises ValueError if it has no class Model or no
    forward."""
    try:
        tree = parse_python(code)
    except SyntaxError as error:
        raise ValueError(f"not Python: {error}") from error
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    if model is None:
        raise ValueError("no class Model")
    methods = {node.name: node for node in model.body if isinstance(node, ast.FunctionDef)}
    if "forward" not in methods:
        raise ValueError("no method forward")
    attributes: dict[str, ast.expr] = {}
    for node in ast.walk(methods.get("__init__", ast.Module([], []))):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            attributes[node.targets[0].attr] = node.value
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    drawn = functions.get("get_inputs")
    found = [n.value for n in ast.walk(drawn) if isinstance(n, ast.Return)] if drawn else []
    inputs = " ".join(_sizeless(value) for value in found if value is not None)
    return Parsed(tree, attributes, methods["forward"], inputs)


def labels(parsed: Parsed) -> list[str]:
    """Return the names of the operators that forward calls, in order and with repetitions."""
    found: list[str] = []
    for statement in parsed.forward.body:
        found += _labels(statement, parsed)
    return found


def has_loop(code: str) -> bool:
    """Return True if forward has a loop, so that a call in its text may run several times."""
    return any(isinstance(node, ast.For | ast.While) for node in ast.walk(parse(code).forward))


def _labels(node: ast.AST, parsed: Parsed) -> list[str]:
    inner = [name for child in ast.iter_child_nodes(node) for name in _labels(child, parsed)]
    own = _label(node, parsed)
    return [*inner, own] if own else inner


def _label(node: ast.AST, parsed: Parsed) -> str:
    match node:
        case ast.BinOp(op=operator):
            return f"torch.{BINARY[type(operator)]}" if type(operator) in BINARY else ""
        case ast.Compare(ops=[operator]):
            return f"torch.{COMPARISONS[type(operator)]}" if type(operator) in COMPARISONS else ""
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            return "torch.neg"
        case ast.Call(func=function):
            return _called(function, parsed)
    return ""


def _called(function: ast.expr, parsed: Parsed) -> str:
    """Return the label of the function, module or method that an expression calls; "" if it has
    none."""
    text = ast.unparse(function)
    if match := re.fullmatch(r"self\.(\w+)", text):
        made = parsed.attributes.get(match[1])
        if isinstance(made, ast.Call):
            return _called(made.func, Parsed(parsed.tree, {}, parsed.forward, ""))
        return f"self.{match[1]}"
    text = re.sub(r"^(torch\.nn\.functional|F)\.", "nn.functional.", text)
    text = re.sub(r"^torch\.nn\.", "nn.", text)
    if text.startswith(("torch.", "nn.")):
        return text
    if isinstance(function, ast.Name):
        return "" if function.id in dir(__builtins__) or function.id.islower() else function.id
    assert not isinstance(function, ast.Attribute) or function.attr
    name = getattr(function, "attr", "")
    return "" if not name or name in NO_OPERATORS else f"torch.{name}"


def _sizeless(node: ast.AST) -> str:
    """Return the text of an expression with `SIZE` in place of numbers and of constants in capital
    letters."""
    text = ast.unparse(node)
    text = re.sub(r"\b[A-Z][A-Z_0-9]*\b", SIZE, text)
    text = re.sub(r"(?<![\w.])\d+(\.\d+)?", SIZE, text)
    return re.sub(rf"{SIZE} \* {SIZE}", SIZE, text)


def normalized(parsed: Parsed) -> str:
    """Return a digest of the module's syntax tree without names and numbers."""
    names: dict[str, str] = {}
    imported = {
        alias.asname or alias.name
        for node in ast.walk(parsed.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    kept = imported | {"torch", "nn", "F"}  # a block of a library is called by its name only

    def renamed(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}")

    parts: list[str] = []
    for node in ast.walk(parsed.tree):
        match node:
            case ast.Name(id=name):
                parts.append(name if name in kept else renamed(name))
            case ast.arg(arg=name):
                parts.append(renamed(name))
            case ast.Attribute(attr=name, value=ast.Name(id="self")):
                parts.append(renamed(f"self.{name}"))
            case ast.Attribute(attr=name) | ast.keyword(arg=name):
                parts.append(str(name))
            case ast.Constant(value=value):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                parts.append(SIZE if number else repr(value))
            case _:
                parts.append(type(node).__name__)
    return _digest(" ".join(parts))


def graph_of(parsed: Parsed) -> str:
    """Return a digest of the data flow of forward and of the kinds of inputs, without sizes."""
    values: dict[str, str] = {
        argument.arg: f"in{n}" for n, argument in enumerate(parsed.forward.args.args[1:])
    }
    result, others = "none", ""
    for statement in parsed.forward.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = _flow(value, values, parsed)
            case ast.Return(value=value) if value is not None:
                result = _flow(value, values, parsed)
            case _:
                others += _digest(_sizeless(statement))
    return _digest(f"{parsed.inputs} {others}{result}")


def _flow(node: ast.expr, values: dict[str, str], parsed: Parsed) -> str:
    """Return a digest of an expression; `values`: digests of the variables by name."""
    match node:
        case ast.Name(id=name):
            return values.get(name, name)
        case ast.Constant(value=value):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return SIZE if number else repr(value)
        case ast.Attribute(attr=attr, value=ast.Name(id="self")):
            made = parsed.attributes.get(attr)
            return "self" if made is None else _digest(_module_text(made))
        case ast.Call(func=function, args=args, keywords=keywords):
            name = _flow(function, values, parsed)
            given = [_flow(a, values, parsed) for a in args]
            # Unlike a size, another dimension is another computation.
            named = sorted(
                f"{k.arg}={ast.unparse(k.value)}"
                if str(k.arg).startswith("dim")
                else f"{k.arg}={_flow(k.value, values, parsed)}"
                for k in keywords
            )
            return _digest(f"{name}({', '.join([*given, *named])})")
        case ast.Attribute(value=value, attr=attr):
            return f"{_flow(value, values, parsed)}.{attr}"
    inner = ", ".join(
        _flow(child, values, parsed)
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.expr)
    )
    kind = type(getattr(node, "op", node)).__name__
    return _digest(f"{kind}({inner})")


def _module_text(made: ast.expr) -> str:
    """Return the text of a module's constructor without sizes, but with the values of options that
    change the computation (`KEPT_OPTIONS`)."""
    kept = [
        f"{k.arg}={ast.unparse(k.value)}"
        for k in ast.walk(made)
        if isinstance(k, ast.keyword)
        and re.match("dim|affine|bias|mode|stride|dilation", str(k.arg))
    ]
    return f"{_sizeless(made)} {' '.join(kept)}"


def similarity(one: Any, other: Any) -> float:
    """Return the similarity of two token lists, from 0 to 1. A similarity of at most 0.9 may be
    returned as 0, to save time."""
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    return (
        matcher.ratio() if matcher.real_quick_ratio() > 0.9 and matcher.quick_ratio() > 0.9 else 0
    )


def model_tokens(parsed: Parsed) -> list[str]:
    """Return the syntax tree of class Model as a list of tokens: node type with attribute name."""
    model = next(n for n in parsed.tree.body if getattr(n, "name", "") == "Model")
    return [
        f"{type(node).__name__}{getattr(node, 'attr', '')}"
        for node in ast.walk(model)
        if not isinstance(node, ast.expr_context)
    ]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
