"""Compiles the Triton kernels for GPUs that need not be there; prints registers, spilled bytes, shared memory as JSON.

A program of its own: where kernels are interpreted, none can be compiled.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kerbs_fairseq.functional.backends import triton as backend
from kerbs_fairseq.functional.backends import triton_kernels as kernels

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
INTEGERS = ("target", "sense_to_word", "order", "offsets", "words")
SIZES = ("n", "S", "V", "width", "most", "n_parts", "n_pairs", "constants_width", "columns_per_part", "rows_per_part")
STRIDES = ("D_stride", "dD_stride", "word_stride", "out_stride", "scores_stride")
MULTIPLES_OF_16 = ("width", "constants_width", "columns_per_part", "D_stride", "dD_stride")
CUDA_TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def compiled(name: str, block: str, dtypes: tuple[str, str], target: str, ones: tuple[str, ...], **flags: Any) -> Any:
    """A kernel with the block of the table, D and dD of ``dtypes``; sizes in ``ones`` are 1, a constant then."""
    kernel, size = getattr(kernels, name), backend.BLOCKS[block]
    tiles = [x for x in kernel.arg_names if x in ("ROWS", "PAIRS", "COLS", "WORDS", "SENSES")]
    shape = (size.rows, size.cols) if len(tiles) == 2 else (size.cols,)
    constants = {**flags, **dict(zip(tiles, shape)), **dict.fromkeys(ones, 1)}
    own = {"D": f"*{dtypes[0]}", "dD": f"*{dtypes[1]}"}
    own |= dict.fromkeys(INTEGERS, "*i32") | dict.fromkeys(SIZES + STRIDES, "i32")
    types = {x: "constexpr" if x in constants else own.get(x, "*fp32") for x in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, x in enumerate(kernel.arg_names)
        if types[x].startswith("*") or (x in MULTIPLES_OF_16 and x not in ones)
    }
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=TARGETS[target], options=size.launch)


def usage(made: Any, target: str) -> dict[str, int]:
    """What a compiled kernel takes."""
    if target.startswith("gfx"):
        text, form, registers = made.asm["amdgcn"], r"\.{}:\s*(\d+)", "vgpr_count"
        spilled = ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
    else:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            command = [str(CUDA_TOOL), "-res-usage", file.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        form, registers, spilled = r"{}:(\d+)", "REG", ("STACK", "LOCAL")

    def value(name: str) -> int:
        found: Optional[re.Match[str]] = re.search(form.format(name), text)
        assert found is not None, f"{name} is not in {text[:2000]}"
        return int(found[1])

    return {"registers": value(registers), "spilled": sum(map(value, spilled)), "shared": made.metadata.shared}


Case = tuple[str, str, tuple[str, str], tuple[str, ...], dict[str, Any]]  # kernel, block, dtypes, sizes of 1, settings
F32, MIXED, F16, BF16 = ("fp32", "fp32"), ("fp32", "bf16"), ("fp16", "fp16"), ("bf16", "bf16")
PAPER, DOT, RELEASED = 0, 1, 2
WORDS = {"LOG_PROBS": False, "SUMS": True}
PAIRS = {"LISTED": False, "LOG_PROBS": False, "MEAN": True, "SCORES": True}
NONE: tuple[str, ...] = ()
EVERYWHERE: list[Case] = [
    ("forward_kernel", "forward", F32, NONE, {"KERNEL": PAPER, "MEAN": True}),
    ("forward_kernel", "forward, half", BF16, NONE, {"KERNEL": RELEASED, "MEAN": True}),
    ("backward_kernel", "backward", MIXED, NONE, {"KERNEL": PAPER, "SMOOTH": False, "BIAS": True}),
    ("backward_kernel", "backward, smoothing", BF16, NONE, {"KERNEL": RELEASED, "SMOOTH": True, "BIAS": True}),
    ("words_kernel", "words", BF16, NONE, {"KERNEL": RELEASED, **WORDS}),
    ("pairs_kernel", "targets", F32, NONE, {"KERNEL": PAPER, **PAIRS}),
]
ONCE: list[Case] = [
    ("forward_kernel", "forward, half", F16, ("S",), {"KERNEL": DOT, "MEAN": False}),
    ("backward_kernel", "backward, smoothing", F16, ("S",), {"KERNEL": DOT, "SMOOTH": True, "BIAS": False}),
    ("backward_kernel", "backward", F32, NONE, {"KERNEL": PAPER, "SMOOTH": False, "BIAS": False}),
    ("words_kernel", "words", F16, ("V", "out_stride"), {"KERNEL": DOT, "LOG_PROBS": True, "SUMS": False}),
    ("pairs_kernel", "many", F16, NONE, {"KERNEL": DOT, **PAIRS, "LISTED": True, "SCORES": False}),
    ("pairs_kernel", "targets", F16, ("scores_stride",), {"KERNEL": DOT, **PAIRS}),
    ("combine_parts_kernel", "vector", F32, NONE, {"MEAN": True}),
    ("add_sums_kernel", "vector", F32, ("S",), {"WANTED": 0b1011}),
]


def main() -> None:
    """Compile for the targets named."""
    for target in sys.argv[1:]:
        for name, block, dtypes, ones, flags in EVERYWHERE + (ONCE if target == "sm_80" else []):
            found = usage(compiled(name, block, dtypes, target, ones, **flags), target)
            settings = " ".join(f"{key}={value:d}" for key, value in flags.items()) + "".join(f" {x}=1" for x in ones)
            row = {"target": target, "kernel": name, "dtypes": "/".join(dtypes), "settings": settings}
            print(json.dumps({**row, "block": list(backend.BLOCKS[block]), **found}), flush=True)


if __name__ == "__main__":
    main()
