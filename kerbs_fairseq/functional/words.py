"""From senses to words, Eqs. 4 and 5, in the log domain.

The map from words to senses is a table of slots (words, most senses of a word): row i holds the senses of word i, and
−1 where it has no more.
"""

import torch
from torch import Tensor


def slots_of(sense_to_word: Tensor, n_words: int, max_senses: int) -> Tensor:
    """The table of slots (words, max_senses) of a map ``sense_to_word`` (senses,); no host synchronisation."""
    by_word = torch.argsort(sense_to_word, stable=True)
    words = sense_to_word[by_word]
    position = torch.arange(len(words), device=words.device)
    first = torch.searchsorted(words, words)  # where the senses of the same word begin
    slots = words.new_full((n_words, max_senses), -1)
    slots[words, position - first] = by_word
    return slots


def pick(scores: Tensor, slots: Tensor) -> Tensor:
    """``scores`` (tokens, senses) at ``slots`` (words, k) → (tokens, words, k), −∞ where there is no sense."""
    picked = scores[:, slots.clamp_min(0).flatten()].unflatten(1, slots.shape)
    return picked.masked_fill(slots < 0, -torch.inf)


def pick_own(scores: Tensor, slots: Tensor) -> Tensor:
    """``scores`` (tokens, senses) at each token's own ``slots`` (tokens, k) → (tokens, k), −∞ where there is none."""
    return scores.gather(1, slots.clamp_min(0)).masked_fill(slots < 0, -torch.inf)


def from_the_top(scores: Tensor) -> Tensor:
    """``scores`` (tokens, senses) less the largest of each token: the difference of two large numbers loses digits."""
    return scores - scores.detach().amax(-1, keepdim=True)


def word_log_probs(scores: Tensor, slots: Tensor) -> Tensor:
    """log P(word), Eqs. 4 and 5: ``scores`` (tokens, senses), ``slots`` (words, k) → (tokens, words)."""
    scores = from_the_top(scores)
    return torch.logsumexp(pick(scores, slots), -1) - torch.logsumexp(scores, -1, keepdim=True)


def target_log_probs(scores: Tensor, slots: Tensor, target: Tensor) -> Tensor:
    """log P(target): ``scores`` (tokens, senses), ``slots`` (words, k), ``target`` (tokens,) → (tokens,)."""
    scores = from_the_top(scores)
    return torch.logsumexp(pick_own(scores, slots[target]), -1) - torch.logsumexp(scores, -1)
