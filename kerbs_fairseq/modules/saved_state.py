"""Validate the saved tensors of an output layer before anything is computed from them."""

from typing import Any, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional import state_names
from kerbs_fairseq.functional.kernel import KERNELS

# number of dimensions by name; floats are learned or counted, all others are integers
FLOATS = {
    state_names.VECTORS: 2,
    state_names.THETA: 1,
    state_names.BIAS: 1,
    state_names.USAGE: 1,
    state_names.DECAY: 0,
}
INTEGERS = {
    state_names.MAP: 1,
    state_names.KERNEL: 0,
    state_names.INITIAL: 1,
    state_names.VOCABULARY: 0,
    state_names.RATIO: 0,
    state_names.RATES: 1,
    state_names.CHECKSUM: 0,
}
OF_VECTORS = (state_names.THETA, state_names.BIAS, state_names.MAP)  # have one row per vector


def damage(state_dict: dict[str, Any], prefix: str = "") -> Optional[str]:
    """Return what is wrong with the tensors under ``prefix``, or None; missing tensors are not an error."""
    saved = {name: state_dict[prefix + name] for name in (*FLOATS, *INTEGERS) if prefix + name in state_dict}
    problems = (problem for name, value in saved.items() if (problem := misshapen(name, value)))
    problem = next(problems, None) or impossible(saved)
    return problem and f"the checkpoint is damaged: {problem}"


def misshapen(name: str, value: Any) -> Optional[str]:
    """Return why ``value`` is not a tensor of the expected shape and type, or None."""
    integer = name in INTEGERS
    dims = INTEGERS[name] if integer else FLOATS[name]
    if not torch.is_tensor(value):
        return f"{name} is not a tensor"
    if value.dim() != dims and not (dims == 0 and value.numel() == 1):
        return f"{name} has the shape {tuple(value.shape)}"
    if value.is_complex() or value.dtype == torch.bool or value.is_floating_point() == integer:
        return f"{name} has the type {value.dtype}"
    return None


def impossible(saved: dict[str, Tensor]) -> Optional[str]:
    """Return which values no training can produce, or None."""
    names = (state_names.KERNEL, state_names.MAP, state_names.RATES, state_names.VECTORS)
    kernel, words, rates, vectors = (saved.get(name) for name in names)
    if kernel is not None and not 0 <= int(kernel) < len(KERNELS):
        return f"there is no kernel {int(kernel)}"
    if words is not None and (not len(words) or int(words.min()) < 0):
        return "it has senses of no word"
    if rates is not None and (len(rates) != 2 or int(rates.min()) <= 0):
        return f"the rates of θ and bias are {rates.tolist()}"
    for name in OF_VECTORS if vectors is not None else ():
        if vectors is not None and name in saved and len(saved[name]) != len(vectors):
            return f"it has {len(vectors)} vectors, and {name} of {len(saved[name])} senses"
    return None
