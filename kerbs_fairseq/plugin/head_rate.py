"""``--kerbs-head-rate``: a separate learning rate for the sense vectors.

fairseq has one learning rate for all parameters, and with ``--fp16`` keeps them in one flat tensor, so the step itself
is scaled after it has been made.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kerbs_fairseq.allocation.parameter_rows import ParameterRows


@contextmanager
def scaled(decoder: Any, optimizer: Any) -> Iterator[None]:
    """Within this context the optimizer makes a step; the step of the sense vectors is multiplied by the rate."""
    rate: float = decoder.update_hook.head_rate
    vectors = decoder.head.senses.vectors
    if rate == 1 or not vectors.requires_grad:
        yield
        return
    before = ParameterRows(optimizer, vectors).master.clone()
    yield
    with torch.no_grad():
        master = ParameterRows(optimizer, vectors).master
        master.copy_(torch.lerp(before, master, rate))
        if master.data_ptr() != vectors.data_ptr():
            vectors.data.copy_(master)
