"""What ``torch.compile`` leaves as it is, and ``torch.export`` is told that it cannot have.

Inductor computes expm1(1e-8) = 0 on a CPU, which makes the kernel wrong where θ is small, and there is nothing to gain:
the chunk kernels are compiled already.
"""

import functools
from typing import Any, Callable, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
NO_EXPORT = (
    "a KerBS layer cannot be exported (torch.export, torch.jit.trace): its index of senses is not a tensor program. "
    "kerbs-export makes a file that translates without fairseq; or export the rest, and call log_prob on its features"
)


def eager(function: Function) -> Function:
    """``function``, called as it is from a program that torch.compile compiles."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if _exporting():
            raise RuntimeError(NO_EXPORT)
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return _outside(function)(*args, **kwargs)

    return called  # type: ignore[return-value]


def _exporting() -> bool:
    """Whether torch.jit.trace or torch.export asks; of the latter older versions of torch do not say."""
    asks = getattr(torch.compiler, "is_exporting", None)
    return torch.jit.is_tracing() or (asks is not None and bool(asks()))


def _outside(function: Function) -> Function:
    """Imported here: torch._dynamo takes a second or two, and whoever compiles has it already."""
    import torch._dynamo

    return torch._dynamo.disable(function)
