"""The loss as the paper writes it, with autograd and no care for memory: what the fast one is tested against."""

from typing import Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.chunked_loss import Loss, epsilon_per_word
from kerbs_fairseq.functional.kernel import sense_scores
from kerbs_fairseq.functional.words import pick_own, word_log_probs


def reference_loss(
    features: Tensor,
    vectors: Tensor,
    theta: Optional[Tensor],
    slots: Tensor,
    target: Tensor,
    weight: Optional[Tensor] = None,
    kernel: str = "paper",
    smoothing: float = 0.0,
) -> Loss:
    """The same as :func:`kerbs_fairseq.functional.chunked_loss.fused_loss`."""
    scores = sense_scores(features, vectors, theta, kernel)  # (tokens, senses)
    log_probs = word_log_probs(scores, slots)  # (tokens, words)
    log_prob = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
    epsilon_i = epsilon_per_word(smoothing, slots.size(0))
    loss = -(1 - smoothing - epsilon_i) * log_prob - epsilon_i * log_probs.sum(1)
    sense_log_prob = pick_own(torch.log_softmax(scores.detach(), 1), slots[target])
    return Loss((loss if weight is None else loss * weight.detach()).sum(), log_prob, sense_log_prob)
