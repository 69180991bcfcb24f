"""Make a task for a training step: the module's outputs and their gradients.

The step is a task like any other. Its class is a subclass of the user's, and its forward takes the
module's arguments and one cotangent for each differentiable output. It returns the outputs and the
gradients of sum(output * cotangent) with respect to those inputs and parameters that have one. So
the same oracle, draws, bounds and timing judge gradients as they judge outputs.

A candidate for a step is a `ModelNew` with `forward(*arguments)` and `backward(*arguments,
*cotangents)`; `as_step` joins both in the worker.

Not covered: second derivatives, training mode, and gradients of inputs inside of dicts.
"""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from cuagent.task.reference import Reference, open_reference
from cuagent.task.spec import DTYPES
from cuagent.task.task import Task, TaskError
from cuagent.task.tree import Spec, TreeError, flatten

if TYPE_CHECKING:
    from torch import Tensor

SUFFIX = "Step"
"""Ending of the name of a training step's class."""
MARK = "# Added by cuagent: the training step that is verified and timed."
"""Comment line that separates the user's text from the added class of the training step."""
TRAINED = 1 / 4
"""Share of a candidate's calls in which the arguments require gradients. Each such call takes some
microseconds longer."""
SHORT = {long: short for short, long in reversed(DTYPES.items())}
"""Short dtype name in the grammar of `--inputs`, by torch's dtype name."""


@dataclass(frozen=True)
class Step:
    """Description of a training step: which inputs and parameters have gradients, which outputs
    have cotangents. Stored as JSON in `Task.step`."""

    entry: str
    """Name of the user's class."""
    arguments: int
    """Number of arguments of the user's forward. The step's forward takes the cotangents after
    them."""
    inputs: tuple[int, ...]
    """Indices of the input tensors that have a gradient; the tensors in the arguments are counted
    from left to right."""
    parameters: tuple[str, ...]
    """Names of the parameters that have a gradient, in the order of `named_parameters`."""
    outputs: tuple[int, ...]
    """Indices of the output tensors that have a cotangent."""
    returned: int
    """Number of output tensors of the user's forward."""
    unused: tuple[str, ...] = ()
    """Names of trainable parameters that have no gradient. Frozen parameters are in neither
    list."""

    @staticmethod
    def of(task: Task) -> Step | None:
        """Return the training step stored in `task.step`; None if the task is not a training step.

        Raises ValueError if the text is not one that `training_step` writes.
        """
        if not task.step:
            return None
        try:
            data = json.loads(task.step)
        except RecursionError as error:
            raise ValueError("the training step is nested too deeply") from error
        numbers = {k: _typed_list(int, data, k) for k in ("inputs", "outputs")}
        names = {k: _typed_list(str, data, k) for k in ("parameters", "unused")}
        entry, counts = data.get("entry"), (data.get("arguments"), data.get("returned"))
        known = set(data) <= {field.name for field in fields(Step)}
        if not (known and type(entry) is str and all(type(n) is int for n in counts)):
            raise ValueError("the training step has other fields than cuagent writes")
        return Step(**data | numbers | names)


def _typed_list(kind: type, data: Any, name: str) -> tuple[Any, ...]:
    """Return the list `name` of the JSON data `data` as a tuple.

    Raises ValueError if it is not a list or an item is not of type `kind`.
    """
    found = data.get(name, []) if isinstance(data, dict) else None
    if not isinstance(found, list) or not all(type(item) is kind for item in found):
        raise ValueError(f"{name} of the training step: no list of {kind.__name__}")
    return tuple(found)


def training_step(task: Task) -> Task:
    """Return the task for a training step of `task`. Runs the user's module once. Raises
    TaskError."""
    reference = open_reference(task)
    given, spec, results = _run(reference)
    step, names = _examined(reference, given, spec, results)
    cotangents = [results[k] for k in step.outputs]
    text, entry = _text(task, step, names, cotangents)
    inputs = task.inputs
    if inputs is not None:
        inputs = "; ".join([inputs, *map(_entry, cotangents)])
    return replace(
        task,
        entry=entry,
        source=f"{task.source.rstrip()}\n{text}",
        inputs=inputs,
        step=json.dumps(asdict(step)),
    )


def forward_task(task: Task) -> Task:
    """Return the task from which a training step was made; any other task unchanged."""
    step = Step.of(task)
    if step is None:
        return task
    inputs = task.inputs
    if inputs is not None:
        inputs = inputs.rsplit("; ", len(step.outputs))[0]
    source = task.source.rpartition(f"\n{MARK}")[0].rstrip() + "\n"
    return replace(task, entry=step.entry, source=source, inputs=inputs, step="")


def as_step(model: Any, arguments: int) -> Any:
    """Change a candidate's forward, in place, to return its outputs and gradients; return the
    candidate.

    `arguments` is the number of arguments of forward; the cotangents follow them. Whether forward
    or backward runs first is random: a gradient must not depend on a forward before it, because in
    training other calls may come between the two. In some calls the arguments require gradients.
    Raises TypeError if the candidate has no `backward`.
    """
    import torch

    forward, backward = model.forward, getattr(model, "backward", None)
    if not callable(backward):
        raise TypeError(
            "ModelNew has no function backward(self, *arguments, *cotangents); "
            "--backward asks for one"
        )
    hooked = any(model.__dict__.get(name) for name in ("_forward_pre_hooks", "_forward_hooks"))
    if hooked or type(model).__call__ is not torch.nn.Module.__call__:
        raise TypeError("ModelNew with a backward may have no hooks and no __call__ of its own")
    coin = random.SystemRandom()

    def step(*given: Any) -> tuple[Tensor, ...]:
        gradients: Any = None
        if coin.random() < TRAINED:
            arguments_with_gradients = [*map(_trained, given[:arguments])]
            given = (*arguments_with_gradients, *given[arguments:])
        if first := coin.random() < 0.5:
            gradients = backward(*given)
        result = forward(*given[:arguments])
        if not first:
            gradients = backward(*given)
        if not isinstance(gradients, list | tuple):
            raise TypeError("backward must return a tuple of gradients, also for one gradient")
        outputs, _ = flatten(result, "output")
        for k, gradient in enumerate(gradients):
            if not isinstance(gradient, torch.Tensor):
                raise TypeError(f"gradient {k} of backward is a {type(gradient).__name__}")
        return (*outputs, *gradients)

    model.forward = step
    if model.forward is not step:
        raise TypeError("forward of ModelNew cannot be replaced, so its backward cannot be judged")
    return model


def _trained(argument: Any) -> Any:
    """Return a floating tensor as one that requires gradients, as in training; other values
    unchanged."""
    import torch

    if not isinstance(argument, torch.Tensor) or not argument.is_floating_point():
        return argument
    return argument.detach().requires_grad_()


def _run(reference: Reference) -> tuple[list[Tensor], Spec, list[Tensor]]:
    """Call the reference without gradients; return the input tensors, the spec of the arguments'
    nesting, and the output tensors."""
    import torch

    task = reference.task
    arguments = reference.inputs(0)
    try:
        given, spec = flatten(arguments, "inputs")
        with torch.no_grad():
            results, _ = flatten(reference.model(0)(*arguments), "output")
    except TreeError as error:
        raise TaskError(f"{task.path}: {error}") from error
    except Exception as error:  # code of the user
        line = str(error).strip().partition("\n")[0]
        raise TaskError(f"{task.path}: {task.entry} does not run: {line}") from error
    if "dict" in str(spec):
        raise TaskError(f"{task.path}: --backward does not support dicts among the inputs")
    return given, spec, results


def _examined(
    reference: Reference, given: Sequence[Tensor], spec: Spec, results: Sequence[Tensor]
) -> tuple[Step, list[str]]:
    """Determine which tensors have gradients; return the step and the names of forward's arguments.

    Raises TaskError.
    """
    import torch

    from cuagent.task.tree import unflatten

    task, model = reference.task, reference.model(0)
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in given]
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    try:
        with torch.enable_grad():
            outputs, _ = flatten(model(*unflatten(leaves, spec)), "output")
            have = [k for k, x in enumerate(outputs) if x.requires_grad]
            wanted = [*(t for t in leaves if t.requires_grad), *parameters.values()]
            if not have or not wanted:
                raise TaskError(f"{task.path}: no output of {task.entry} has a gradient")
            found = torch.autograd.grad(
                [outputs[k] for k in have],
                wanted,
                [torch.ones_like(outputs[k]) for k in have],
                allow_unused=True,
            )
    except (RuntimeError, NotImplementedError) as error:
        line = str(error).strip().partition("\n")[0]
        raise TaskError(
            f"{task.path}: {task.entry} cannot be differentiated here: {line}"
        ) from error
    used = {id(t) for t, gradient in zip(wanted, found, strict=True) if gradient is not None}
    step = Step(
        task.entry,
        len(spec["items"]),
        tuple(k for k, t in enumerate(leaves) if id(t) in used),
        tuple(n for n, p in parameters.items() if id(p) in used),
        tuple(have),
        len(results),
        tuple(n for n, p in parameters.items() if id(p) not in used),
    )
    if not (step.inputs or step.parameters):
        raise TaskError(f"{task.path}: no input or parameter of {task.entry} has a gradient")
    return step, _names(model.forward, step.arguments)


def _names(forward: Callable[..., Any], count: int) -> list[str]:
    """Return `count` names for the arguments of forward, its own where they can be passed by
    position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        own = [p.name for p in inspect.signature(forward).parameters.values() if p.kind in kinds]
    except (TypeError, ValueError):
        own = []
    return [own[k] if k < len(own) else f"argument_{k}" for k in range(count)]


def _entry(tensor: Tensor) -> str:
    """Return a tensor's dtype and shape in the grammar of `--inputs`, such as `f32[8,512]`."""
    name = str(tensor.dtype).removeprefix("torch.")
    return f"{SHORT.get(name, name)}[{','.join(map(str, tensor.shape))}]"


def _text(
    task: Task, step: Step, names: Sequence[str], cotangents: Sequence[Tensor]
) -> tuple[str, str]:
    """Return the text of the step's class, to append to the user's file, and the name of the
    class."""
    entry = f"{step.entry}{SUFFIX}"
    given = [f"cotangent_{k}" for k in range(len(cotangents))]
    while entry in task.source:
        entry += "_"
    while set(given) & set(names):
        given = [f"{name}_" for name in given]
    drawn = [f"_torch.randn({list(x.shape)}).to({x.dtype!r})" for x in cotangents]
    drawn = [text.replace("to(torch.", "to(_torch.") for text in drawn]
    tail = ""
    if task.inputs is None:
        tail = f"""

_inputs_of_{step.entry} = get_inputs


def get_inputs():
    return [*_inputs_of_{step.entry}(), {", ".join(drawn)}]
"""
    return (
        f'''

{MARK}
import torch as _torch
from torch.utils import _pytree


class {entry}({step.entry}):
    """Outputs of {step.entry}, and gradients of sum(output * cotangent)."""

    def forward(self, {", ".join([*names, *given])}):
        leaves, form = _pytree.tree_flatten([{", ".join(names)}])
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, _torch.Tensor)]
        parameters = dict(self.named_parameters())
        with _torch.enable_grad():
            for k in {list(step.inputs)}:
                leaves[places[k]] = leaves[places[k]].detach().requires_grad_()
            result = super().forward(*_pytree.tree_unflatten(leaves, form))
            outputs = [x for x in _pytree.tree_leaves(result) if isinstance(x, _torch.Tensor)]
            wanted = [leaves[places[k]] for k in {list(step.inputs)}]
            wanted += [parameters[name] for name in {list(step.parameters)}]
            found = _torch.autograd.grad(
                [outputs[k] for k in {list(step.outputs)}], wanted, [{", ".join(given)}]
            )
        return (*(x.detach() for x in outputs), *found)
{tail}''',
        entry,
    )
