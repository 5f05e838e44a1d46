"""Exclude functions from ``torch.compile``, and raise an error under ``torch.export`` and ``torch.jit.trace``.

Inductor computes expm1(1e-8) = 0 on a CPU, which makes the kernel wrong for small θ. Compiling would not be faster
either: the chunk kernels are compiled already.
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
    """Decorate ``function`` to run eagerly when it is called from a program that torch.compile compiles."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if _exporting():
            raise RuntimeError(NO_EXPORT)
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return _outside(function)(*args, **kwargs)

    return called  # type: ignore[return-value]


def _exporting() -> bool:
    """Return whether torch.jit.trace or torch.export is running; older versions of torch do not report the latter."""
    asks = getattr(torch.compiler, "is_exporting", None)
    return torch.jit.is_tracing() or (asks is not None and bool(asks()))


def _outside(function: Function) -> Function:
    """Return ``function`` excluded from compilation; importing torch._dynamo at the top would take a second or two."""
    import torch._dynamo

    return torch._dynamo.disable(function)
