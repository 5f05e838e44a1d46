"""The loss as the paper writes it, with autograd and all scores in memory. The chunked loss is tested against it."""

from typing import Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.eager import eager
from kerbs_fairseq.functional.kernel import sense_scores
from kerbs_fairseq.functional.types import Loss, Senses


@eager
def reference_loss(
    features: Tensor,
    senses: Senses,
    target: Tensor,
    weight: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
) -> Loss:
    """Compute the same as :func:`kerbs_fairseq.functional.chunked_loss.chunked_loss`, in plain torch."""
    index = senses.index
    scores = sense_scores(features, senses.vectors, senses.theta, senses.kernel, senses.bias)  # (tokens, senses)
    scores = scores - scores.detach().amax(1, keepdim=True)
    # log Σ e^score over the senses of each word, relative to the largest score of that word
    word = index.sense_to_word.expand_as(scores)
    top = torch.full_like(scores[:, :1], -torch.inf).repeat(1, index.n_words)
    top = top.scatter_reduce(1, word, scores.detach(), "amax")
    total = torch.zeros_like(top).scatter_add(1, word, torch.exp(scores - top.gather(1, word)))
    log_probs = total.log() + top - torch.logsumexp(scores, 1, keepdim=True)  # (tokens, words)
    log_prob = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
    loss = -log_prob
    if label_smoothing:  # as fairseq defines it: the mass is spread over the other words
        of_word = label_smoothing / max(index.n_words - 1, 1)
        loss = (1 - label_smoothing - of_word) * loss - of_word * log_probs.sum(1)
    target_senses = index.rows(target)
    of_senses = torch.log_softmax(scores.detach(), 1).gather(1, target_senses.clamp_min(0))
    of_senses = of_senses.masked_fill(target_senses < 0, -torch.inf)
    return Loss((loss if weight is None else loss * weight.detach()).sum(), log_prob, of_senses)
