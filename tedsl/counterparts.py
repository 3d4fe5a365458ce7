"""Names of other tensor languages, TVM's first: where those that mean the same are, and what to
write instead of the others.

`tedsl.slips` says so where they are asked for.  Imports nothing.
"""

from __future__ import annotations

PLACES = {
    **{name: f"tedsl.tvm.{name}" for name in ("nd", "tir", "testing", "topi", "transform")},
    **{name: f"tedsl.tvm.devices:{name}" for name in ("cpu", "cuda", "gpu", "device", "context")},
    **{f"{name}Op": f"tedsl.tensor.tensor:{name}Op" for name in ("Compute", "Extern", "Scan")},
    "PlaceholderOp": "tedsl.tensor.tensor:PlaceholderOp",
    "error": "tedsl.tvm.error",
    "TVMError": "tedsl.errors:TedslError",
    "convert": "tedsl.runtime.like_module:convert",
    "IRModule": "tedsl.ir.nodes:Module",
    "container": "tedsl.tvm.container",
    "module": "tedsl.tvm.runtime",
    "ndarray": "tedsl.tvm.nd",
    "operation": "tedsl.tensor.tensor",
    "tag": "tedsl.tvm.topi.tag",
    "te": "tedsl",
    "tvm": "tedsl.tvm",
}
"""Names of TVM that `tedsl` answers too: where each is."""
PACKAGE = {
    "arith": "te.structural_equal compares; tedsl.index simplifies and proves, inside",
    "autotvm": "te.autotune(outputs) searches; s.knob(name, choices) leaves a choice open",
    "auto_scheduler": "te.autotune(outputs) searches over the rules of tedsl.schedules",
    "meta_schedule": "te.autotune(outputs) searches over the rules of tedsl.schedules",
    "SpecializedCondition": "s[T].specialize(condition) makes a version of a kernel for some sizes",
    "call_extern": "te.extern(shape, inputs, fcompute), or te.c_function",
    "call_pure_extern": "te.exp and its like; te.llvm_function and te.triton_snippet for others",
    "call_intrin": "te.exp and its like; te.decl_tensor_intrin for whole loops",
    "call_packed": "te.extern(shape, inputs, fcompute) with a Python function; tvm.tir has it",
    "load_module": "te.replay(outputs, trace) and te.build make the kernel again",
    "logaddexp": "write te.maximum(a, b) + te.log1p(te.exp(-te.abs(a - b)))",
    "trace": "write te.sum(A[k, k], axis=k) over k = te.reduce_axis((0, n))",
    "get_global_func": "call Python directly; kernels are objects that te.build returns",
    "register_func": "kernels are objects that te.build returns: nothing is registered",
    **dict.fromkeys(
        ("contrib", "rpc", "micro", "runtime_ctypes"),
        "there is none: call other code with te.extern; kernels run where they are built",
    ),
    **dict.fromkeys(
        ("relay", "relax", "parser", "script", "ir_pass", "make", "driver", "instrument"),
        "there is none: te.compute defines, te.lower and te.build compile; models of PyTorch come "
        'by torch.compile(backend="tedsl")',
    ),
    **dict.fromkeys(
        ("opencl", "rocm", "metal", "vulkan", "mali", "arm_cpu", "intel_graphics", "hexagon"),
        'there are two kinds of devices: "cpu" (LLVM) and "cuda" (NVIDIA, by Triton)',
    ),
    **dict.fromkeys(
        ("register_intrin_lowering", "register_op_attr", "register_extension", "register_object"),
        "nothing is registered: te.llvm_function and te.triton_snippet are passed as they are",
    ),
    "from_dlpack": "kernels take anything that has DLPack as it is",
    "numpyasarray": "kernels take NumPy arrays as they are",
    **dict.fromkeys(
        ("check_numerical_grads", "parameters"),
        "tests here are pytest's; te.gradient is compared with differences by NumPy",
    ),
    "save_json": "s.trace.to_json() keeps a schedule; te.replay makes it again",
    "Buffer": "te.placeholder(shape, dtype, name=)",
    "load_json": "te.Trace.from_json(text), then te.replay(outputs, trace)",
}
"""By name in `te`."""

KERNEL = {
    "run": "call the kernel itself: kernel(a, b), or kernel(x=a, w=b)",
    "launch": "call the kernel itself; s[T].launch(num_warps=) belongs to the schedule",
}
"""By attribute of a kernel."""
SCHEDULE = {
    "get_block": "s[T], or s['name'], is a stage",
    "get_loops": "s[T].leaf_iter_vars are the loops, s[T].op.axis those of the definition",
    "get_sref": "s[T], or s['name'], is a stage",
    "mod": "te.lower(s) is the loop IR",
    "show": "print(s)",
    "work_on": "s[T], or s['name'], is a stage of the one function that there is",
}
"""By attribute of a schedule."""
STAGE = {
    "inline": "s[T].compute_inline()",
    "at": "s[T].compute_at(s[consumer], axis)",
    "compute_at_root": "s[T].compute_root()",
    "decompose_reduction": "a reduction's start is placed by itself; s.rfactor(T, axis) splits it",
    "annotate": "s[T].pragma(axis, name, value)",
}
"""By attribute of a stage."""
LOWERED = {
    "body": "print it: the loops of each kernel are in .funcs, nodes of tedsl.ir.nodes",
    "script": "print it",
    "show": "print it",
    "functions": "the kernels are .funcs",
    "get_global_vars": "the kernels are .funcs",
    "params": "the arguments are .inputs and .outputs",
}
"""By attribute of what `te.lower` gives."""
