"""Source texts of the helper functions that a captured task contains.

A candidate contains the same helpers if its `Model` uses them. It runs without the folder's files:
its parameters are zeros until a state dict is loaded.
"""

BUILD = '''
def _file(name):
    """Return the tensors of a file next to this one; None if it is not there."""
    path = pathlib.Path(__file__).with_name(name)
    if not path.is_file():
        return None
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != _FILES[name]:
        raise RuntimeError(f"{path} has changed since the capture")
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def _build(root, tree):
    """Give a module the recorded submodules, attributes, parameters and buffers."""
    values = _file("parameters.pt")
    made = {"": root}
    for path, kind, attributes, parameters, buffers in tree:
        above, _, name = path.rpartition(".")
        if isinstance(kind, str):
            made[path] = made[kind]
        elif path:
            made[path] = kind and kind.__new__(kind)
        if path:
            made[above]._modules[name] = made[path]
        module = made[path]
        if module is None or isinstance(kind, str):
            continue
        if path:
            nn.Module.__init__(module)
        module.__dict__.update(attributes)
        for name, form in parameters.items():
            value = _value(root, values, f"{path}.{name}" if path else name, form)
            if isinstance(form, tuple):
                value = nn.Parameter(value, requires_grad=len(form) == 2 or form[2])
            module._parameters[name] = value
        for name, form in buffers.items():
            value = _value(root, values, f"{path}.{name}" if path else name, form)
            module._buffers[name] = value
            if isinstance(form, torch.Tensor):
                module._non_persistent_buffers_set.add(name)
    for module in made.values():
        if hasattr(module, "_init_flat_weights"):  # of recurrent modules
            module._init_flat_weights()


def _value(root, values, name, form):
    """Return a recorded tensor, a tied one, or zeros if there is no file."""
    if form is None or isinstance(form, torch.Tensor):
        return form
    if isinstance(form, str):
        above, _, last = form.rpartition(".")
        module = root.get_submodule(above)
        return {**module._parameters, **module._buffers}[last]
    dtype = getattr(torch, form[0])
    value = torch.zeros(form[1], dtype=dtype) if values is None else values[name]
    if len(form) < 4:
        return value
    return torch.empty_strided(form[1], form[3], dtype=dtype).copy_(value)
'''

TENSOR = '''
def _tensor(data, dtype, shape):
    """Return a tensor that is held as text."""
    raw = bytearray(zlib.decompress(base64.b85decode(data)))
    if not raw:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(raw, dtype=getattr(torch, dtype)).reshape(shape).clone()
'''

OBJECT = '''
def _object(kind, attributes):
    """Return an object with these attributes; its constructor does not run."""
    made = kind.__new__(kind)
    made.__dict__.update(attributes)
    return made
'''

NODE = '''
def _node(kind, items, context):
    """Return an object that torch's pytrees know, such as a ModelOutput."""
    return torch.utils._pytree.SUPPORTED_NODES[kind].unflatten_fn(items, context)
'''

ITEMS = '''
def _items(value):
    """Return the items of an object that torch's pytrees know."""
    return list(torch.utils._pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0])
'''

CACHE = '''
def _cache(kind, attributes, layer, index):
    """Return a cache that has only the layer with this index; its constructor does not run."""
    made = kind.__new__(kind)
    made.__dict__.update(attributes, layers=[None] * index + [layer])
    return made
'''

UNPICKLED = '''
def _unpickled(data):
    """Return an object of an installed package that is held as text."""
    return pickle.loads(zlib.decompress(base64.b85decode(data)))
'''

PLAIN = '''
def _plain(value):
    """Return a result as nested dicts, lists and tensors."""
    if value is None or isinstance(value, (torch.Tensor, bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    held = getattr(value, "__dict__", {})
    return {key: _plain(item) for key, item in held.items() if item is not None}
'''

MODULES = '''
def _loaded(texts):
    """Return the modules of the script's project, reduced to what Model needs.

    They import each other by their names, which mean the project's own modules again afterwards.
    """
    earlier, found = {}, {}
    try:
        for key, (name, text) in texts.items():
            made = found[key] = types.ModuleType(f"{__name__}.{name}")
            made.__file__ = f"<{made.__name__}>"
            lines = text.splitlines(keepends=True)
            linecache.cache[made.__file__] = (len(text), None, lines, made.__file__)
            sys.modules[made.__name__] = made
            earlier.setdefault(name, sys.modules.get(name))
            sys.modules[name] = made
            above = name.rpartition(".")[0]
            while above and above not in sys.modules:
                earlier.setdefault(above, None)
                sys.modules[above] = types.ModuleType(above)
                above = above.rpartition(".")[0]
            made.__dict__.update(_HELPERS)
            exec(compile(text, made.__file__, "exec"), made.__dict__)
    finally:
        for name, module in earlier.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return found
'''

INPUTS = '''
def get_inputs(shape=0):
    """Return the inputs of one call: floats as they were distributed, all others as recorded."""
    kept, pick = _file("inputs.pt"), int(torch.randint(1 << 30, ()))
    inputs = []
    for name, dtype, size, stride, points in _SHAPES[shape]:
        if points is None:
            recorded = kept[f"{shape}.{name}"]
            inputs.append(_laid(recorded[pick % len(recorded)], size, stride))
        else:
            inputs.append(_laid(_drawn(dtype, _dense(size, stride), points), size, stride))
    return inputs


def get_init_inputs():
    return []


def _drawn(dtype, size, points):
    """Return numbers with these quantiles."""
    wide = torch.float64 if dtype == "float64" else torch.float32
    table = torch.tensor(points, dtype=wide)
    at = torch.rand(size, dtype=wide) * (len(points) - 1)
    low = at.long().clamp_(max=len(points) - 2)
    return torch.lerp(table[low], table[low + 1], at - low).to(getattr(torch, dtype))


def _dense(size, stride):
    """Return the sizes without the repetition of `expand`."""
    return tuple(1 if step == 0 else n for n, step in zip(size, stride, strict=True))


def _laid(values, size, stride):
    """Return the values with the recorded strides."""
    dense = _dense(size, stride)
    if values.shape != dense:
        values = values[tuple(slice(n) for n in dense)]
    laid = torch.empty_strided(dense, stride, dtype=values.dtype, device=values.device)
    return laid.copy_(values).expand(size)
'''

SHAPE = '''"""Calls of another shape: {calls}."""

import task
from task import Model  # noqa: F401


def get_inputs():
    return task.get_inputs({number})


def get_init_inputs():
    return []
'''
