"""Log-probabilities that fairseq does not normalize again.

fairseq's generator divides what a decoder returns by the temperature and takes its log-softmax: two passes over all
words, which change nothing where the decoder returns log-probabilities and the temperature is 1.
"""

from typing import Any, Optional

import torch
from torch import Tensor


class LogProbs(Tensor):
    """Log-probabilities (..., words) of a decoder in evaluation. Slices keep the class; all else is a plain tensor."""

    made_at: int  # version counter when it was marked: in-place changes increase it

    @classmethod
    def of(cls, log_probs: Tensor) -> Tensor:
        """Return ``log_probs`` as this class; as they are with gradients, or without a version counter."""
        if torch.is_grad_enabled() or log_probs.is_inference():
            return log_probs
        marked = log_probs.as_subclass(cls)
        marked.made_at = log_probs._version
        return marked

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Optional[dict[str, Any]] = None) -> Any:
        """Skip a division by the temperature 1, and keep the class for slices only."""
        if func is Tensor.div_ and not kwargs and len(args) == 2 and isinstance(args[1], (int, float)) and args[1] == 1:
            return args[0]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            plain = result.as_subclass(Tensor) if isinstance(result, cls) else result
        if func is Tensor.__getitem__ and isinstance(args[0], cls) and plain._base is not None:
            marked = plain.as_subclass(cls)
            marked.made_at = args[0].made_at
            return marked
        return plain


def normalized(scores: Tensor) -> Optional[Tensor]:
    """Return ``scores`` as a plain tensor if they are unchanged log-probabilities, else None."""
    if not isinstance(scores, LogProbs):
        return None
    plain = scores.as_subclass(Tensor)
    return plain if plain._version == scores.made_at else None
