"""Names of TVM that have no counterpart of the same name, and what stands for each here.

`tedsl.slips` says so where they are asked for.  Imports nothing.
"""

from __future__ import annotations

PACKAGE = {
    "nd": "kernels take NumPy arrays, PyTorch tensors, and anything with DLPack: nothing to wrap",
    "cpu": 'devices follow from the target: te.build(s, target="cpu")',
    "cuda": 'devices follow from the target: te.build(s, target="cuda")',
    "device": "devices follow from the target of te.build and the arrays of the call",
    "tir": "its functions are here: te.if_then_else, te.const, te.all, te.any, te.select",
    "topi": "operators are in te.nn",
    "testing": "use numpy.testing.assert_allclose, or te.checked() for every step of a schedule",
    "autotvm": "te.autotune(outputs) searches; s.knob(name, choices) leaves a choice open",
    "auto_scheduler": "te.autotune(outputs) searches over the rules of tedsl.schedules",
    "meta_schedule": "te.autotune(outputs) searches over the rules of tedsl.schedules",
    "SpecializedCondition": "s[T].specialize(condition) makes a version of a kernel for some sizes",
    "call_extern": "te.extern(shape, inputs, fcompute), or te.c_function",
    "call_pure_extern": "te.exp and its like; te.llvm_function and te.triton_snippet for others",
    "call_intrin": "te.exp and its like; te.decl_tensor_intrin for whole loops",
    "call_packed": "te.extern(shape, inputs, fcompute) with a Python function",
    "transform": "te.build chooses its passes; te.lower(s, dump=print) shows each",
    "load_module": "te.replay(outputs, trace) and te.build make the kernel again",
    "logaddexp": "write te.maximum(a, b) + te.log1p(te.exp(-te.abs(a - b)))",
    "trace": "write te.sum(A[k, k], axis=k) over k = te.reduce_axis((0, n))",
    "get_global_func": "call Python directly; kernels are objects that te.build returns",
    "register_func": "kernels are objects that te.build returns: nothing is registered",
    "save_json": "s.trace.to_json() keeps a schedule; te.replay makes it again",
    "Buffer": "te.placeholder(shape, dtype, name=)",
    "decl_buffer": "te.placeholder(shape, dtype, name=); storage follows from the schedule",
    "load_json": "te.Trace.from_json(text), then te.replay(outputs, trace)",
}
"""By name in `te`."""

KERNEL = {
    "time_evaluator": "te.runtime.measure(lambda: kernel(...)), on the GPU te.runtime.measure_cuda",
    "get_source": "kernel.source; kernel.asm for what the target's compiler made of it",
    "imported_modules": "kernel.source has the code of all targets",
    "entry_name": "call the kernel itself",
    "export_library": "keep s.trace.to_json(): te.replay and te.build make the kernel again",
}
"""By attribute of a kernel."""
