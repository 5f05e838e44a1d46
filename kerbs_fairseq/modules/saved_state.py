"""Validate the saved tensors of an output layer before anything is computed from them."""

from typing import Any, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.functional.types import MAP_NAME, PARAMETERS

# number of dimensions by name; floats are learned or counted, all others are integers
FLOATS = {**dict(zip(PARAMETERS, (2, 1, 1))), "usage": 1, "decay": 0}
INTEGERS = {
    MAP_NAME: 1,
    "kernel_id": 0,
    "initial_senses": 1,
    "vocabulary": 0,
    "ratio": 0,
    "rates": 1,
    "map_checksum": 0,
}
OF_SENSES = (*PARAMETERS[1:], MAP_NAME)  # have one row per vector


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
    kernel, words, rates, vectors = (saved.get(name) for name in ("kernel_id", MAP_NAME, "rates", PARAMETERS[0]))
    if kernel is not None and not 0 <= int(kernel) < len(KERNELS):
        return f"there is no kernel {int(kernel)}"
    if words is not None and (not len(words) or int(words.min()) < 0):
        return "it has senses of no word"
    if rates is not None and (len(rates) != 2 or int(rates.min()) <= 0):
        return f"the rates of θ and bias are {rates.tolist()}"
    for name in OF_SENSES if vectors is not None else ():
        if vectors is not None and name in saved and len(saved[name]) != len(vectors):
            return f"it has {len(vectors)} vectors, and {name} of {len(saved[name])} senses"
    return None
