"""Refuse torch operators that compute, for candidates under the rule `kernels-only`.

The rule is that of CUDA Agent: a candidate computes in its own kernels, and torch's operators only
create, view and copy tensors. Products (cuBLAS) and convolutions (cuDNN) are allowed, but not
library kernels that also apply an activation.

Each other operator's kernel for the CPU and for CUDA is replaced in the dispatcher of this process,
before any code of the candidate is imported. So the rule holds in every thread, for calls from C++,
and for operators that an operator is composed of. Nothing holds the replaced kernels any more: a
candidate that finds the replacement can change its error message, but cannot compute with it.

Not covered: numpy and other libraries on the CPU, operators that other packages register, and
functions of torch's libraries that a candidate's own machine code calls without the dispatcher.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn


def names_in(text: str) -> frozenset[str]:
    """Return the set of words in a text, separated by white space."""
    return frozenset(text.split())


NAMESPACES = ("aten", "quantized", "_quantized", "onednn", "mkldnn", "mkldnn_prepacked", "mkl")
"""Operator namespaces of torch with kernels for a device; torch's operators of other namespaces are
composed of these."""
DEVICES = ("CPU", "CUDA")
KERNELS = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""Dispatch keys whose kernels are used for every device."""
PRODUCTS = names_in(
    """
    mm addmm bmm baddbmm addbmm mv addmv dot vdot _int_mm _scaled_mm _grouped_mm
    _scaled_grouped_mm linalg_matmul
    """
)
"""`_addmm_activation` is left out, because it applies an activation too, and `addr`, because torch
computes it elementwise."""
CONVOLUTIONS = names_in(
    """
    convolution _convolution convolution_overrideable mkldnn_convolution cudnn_convolution
    cudnn_convolution_transpose slow_conv3d_forward slow_conv3d _slow_conv2d_forward thnn_conv2d
    conv_depthwise3d _conv_depthwise2d slow_conv_transpose2d slow_conv_transpose3d
    slow_conv_dilated2d slow_conv_dilated3d _nnpack_spatial_convolution miopen_convolution
    cudnn_is_acceptable
    mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight
    """
)
"""`cudnn_convolution_relu` and `cudnn_convolution_add_relu` are left out, because they compute more
than a convolution."""
CREATIONS = names_in(
    """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided empty_quantized
    zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full scalar_tensor
    arange _efficientzerotensor zero_ zero fill_ fill normal_ uniform_ random_ rand randn
    randint randperm rand_like randn_like randint_like bernoulli_ exponential_ tril_indices
    triu_indices resize_ resize_as_ set_
    """
)
COPIES = names_in(
    """
    copy_ copy _to_copy clone contiguous lift lift_fresh lift_fresh_copy _copy_from
    _copy_from_and_resize _unsafe_view _reshape_copy _reshape_alias view_copy expand_copy
    _local_scalar_dense is_nonzero pin_memory _pin_memory is_pinned record_stream detach_copy
    alias_copy as_strided_copy _conj_physical
    """
)
"""Operators that move elements unchanged, or convert their dtype."""
DESCRIPTIONS = names_in(
    """
    size stride sym_size sym_stride sym_numel sym_storage_offset numel dim is_contiguous
    is_same_size _has_same_storage_numel _is_zerotensor _nnz _assert_async _assert_scalar
    _has_compatible_shallow_copy_type
    """
)
"""Operators that read only the shape, strides or other metadata of a tensor."""
ALLOWED = PRODUCTS | CONVOLUTIONS | CREATIONS | COPIES | DESCRIPTIONS


LAZY = ("_neg_view",)
"""Views that make a later copy compute: a copy of a negated view negates the elements."""


def refuse_computing_operators() -> None:
    """Make every torch operator outside ALLOWED raise an error, for the rest of this process."""
    import torch

    dispatcher: Any = torch._C._dispatch_library
    names = list(_computing())
    for device in DEVICES:
        for namespace in NAMESPACES:
            library = dispatcher("IMPL", namespace, device, __file__, 0)
            for name in names:
                if name.startswith(f"{namespace}::"):
                    operator = name.partition("::")[2]
                    library.impl(operator, device, _refusal(name), False)
            # The object's destructor would restore the kernels, so it must never run.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
    _refuse_dynamo()


def _computing() -> Iterator[str]:
    """Yield the full names (`aten::relu`) of the operators that must be refused and have a kernel
    for a device."""
    import torch

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    known = set(torch._C._dispatch_get_all_op_names())
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, short = schema.name.partition("::")
        if namespace not in NAMESPACES or short in ALLOWED:
            continue
        if short not in LAZY and _is_view(schema):
            continue
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if name in known and any(has_kernel(name, key) for key in (*DEVICES, *KERNELS)):
            yield name


def _is_view(schema: Any) -> bool:
    """Return True if the operator returns a view and writes nothing."""
    aliases = [argument.alias_info for argument in schema.arguments]
    return any(a is not None and not a.is_write for a in aliases)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            f"rule kernels-only: the torch operator {name} computes; compute in a kernel of your "
            "own (only products and convolutions of torch are allowed; a bias that a convolution "
            "adds afterwards is not)"
        )

    return refused


def _refuse_dynamo() -> None:
    """Make torch.compile raise an error, because its generated code computes without torch's
    operators."""
    import torch

    def refused(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("rule kernels-only: torch.compile writes the kernels; write your own")

    def only_off(callback: Any) -> None:
        # torch itself switches the compiler off around some calls; it is always off here.
        if callback is not None:
            refused()

    bindings: Any = torch._C
    found = bindings._dynamo.eval_frame.set_eval_frame
    # torch._dynamo, if it is imported, holds the function under several names.
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is found:
                setattr(module, name, only_off)
    bindings._jit_set_texpr_fuser_enabled(False)
    bindings._jit_set_texpr_fuser_enabled = refused
