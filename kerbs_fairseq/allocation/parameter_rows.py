"""Read and write rows of a parameter in all places: in the model, in a float32 master copy, in the optimizer's moments.

This works with any torch optimizer and with fairseq's. ``--fp16`` and ``--bf16`` train a float32 copy of the parameters
and copy it to the model after each update, so that a change of the model alone would be lost. The copy is one flat
tensor, or one tensor per parameter; the memory-efficient variants and ``--amp`` have none.
"""

from collections.abc import Iterator
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn


def torch_optimizers(optimizer: Any) -> Iterator[torch.optim.Optimizer]:
    """Yield the torch optimizers inside a fairseq optimizer (``composite`` has several), or the optimizer itself."""
    inner = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer.optimizer
    if hasattr(inner, "optimizers"):
        for part in inner.optimizers.values():
            yield from torch_optimizers(part)
    else:
        yield inner


class ParameterRows:
    """The rows of ``parameter`` (rows, ...) and of its copies and moments in ``optimizer``."""

    def __init__(self, optimizer: Any, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        owner, self._cut = self._owner(optimizer, parameter)
        inner = list(torch_optimizers(optimizer))
        held = any(p is owner for one in inner for group in one.param_groups for p in group["params"])
        if parameter.requires_grad and not held:
            raise ValueError(
                f"the optimizer does not hold a parameter of the layer, of shape {tuple(parameter.shape)}: make the "
                "optimizer from the parameters of the model that has the layer in it"
            )
        self.master = self._part(owner.data)  # in the shape of the parameter
        self.moments: list[Tensor] = []
        for one in inner:
            for value in one.state.get(owner, {}).values():
                if not torch.is_tensor(value):
                    continue
                if value.shape == owner.shape:
                    self.moments.append(self._part(value))
                elif value.dim() and value.numel() == len(value) == len(parameter) > 1:  # Adafactor: one number per row
                    self.moments.append(value)

    @staticmethod
    def _owner(optimizer: Any, parameter: nn.Parameter) -> tuple[Tensor, Optional[slice]]:
        """Return the tensor that the optimizer updates for ``parameter``, and the slice of it if it is flat."""
        copies = getattr(optimizer, "fp32_params", None)
        if copies is None:
            return parameter, None
        if not optimizer.has_flat_params:
            pairs = zip(optimizer.fp16_params, copies)
            return next((copy for p, copy in pairs if p is parameter), parameter), None
        flat = copies if torch.is_tensor(copies) else copies[parameter.device.index]
        begin = 0
        for p in optimizer.fp16_params:
            if p is parameter:
                break
            begin += p.numel() if p.device == parameter.device else 0
        else:
            return parameter, None  # frozen, and so not copied
        return flat, slice(begin, begin + parameter.numel())

    def _part(self, tensor: Tensor) -> Tensor:
        return tensor if self._cut is None else tensor[self._cut].view_as(self.parameter)

    def read(self, rows: Tensor) -> Tensor:
        """Return ``rows`` (n,) as (n, ...), from the float32 master copy if there is one."""
        return self.master[rows]

    @torch.no_grad()
    def write(self, rows: Tensor, values: Union[Tensor, float]) -> None:
        """Set ``rows`` (n,) of the master copy and of the model to ``values`` (n, ...)."""
        for tensor in (self.master, self.parameter.data):
            tensor[rows] = values.to(tensor) if isinstance(values, Tensor) else values

    @torch.no_grad()
    def forget(self, rows: Tensor) -> None:
        """Set the moments of ``rows`` (n,) to zero: they belong to the previous values."""
        for moment in self.moments:
            moment[rows] = 0
