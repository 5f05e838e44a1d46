"""From senses to words, Eqs. 4 and 5, in the log domain, and the index from words to their senses.

A word may have any number of senses, so the index is stored in compressed rows, not as a padded table: memory and time
of all sums over words are proportional to the number of senses, not to the largest number of senses of a word.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

FEW_SENSES = 16  # on a GPU, a word with more senses is summed by several lanes


class Group(NamedTuple):
    """Words with similar numbers of senses: ``words`` (n,), ``senses`` (n, k), −1 where a word has fewer than k."""

    words: Tensor
    senses: Tensor


class Jagged(NamedTuple):
    """Senses by rounds: the first sense of every word, then the second sense of words with at least two, and so on.

    ``first`` (words,) holds the first sense of each word, 0 for the words in ``empty``, which have none. ``several``
    holds the words with at least two senses, sorted by decreasing number of senses, so that round r of the further
    senses covers its first ``starts[r + 1] − starts[r]`` words. ``others`` is the concatenation of these rounds.
    """

    first: Tensor
    several: Tensor
    others: Tensor
    starts: tuple[int, ...]
    empty: Tensor
    order: Tensor  # (senses,): the first round without empty words, then the others; the fastest order for word sums


class CompressedRows(NamedTuple):
    """The senses of word i are order[offsets[i] : offsets[i + 1]], as the Triton kernels read them; int32."""

    order: Tensor  # (senses,)
    offsets: Tensor  # (words + 1,)
    many: Tensor  # the words with more than ``few`` senses, each of which is summed by several lanes
    few: int
    sense_to_word: Tensor  # (senses,)


class SenseIndex:
    """The senses of each word, for a map ``sense_to_word`` (senses,) of ``n_words`` words.

    The senses of word i are ``order[offsets[i] : offsets[i + 1]]``. ``largest`` is the largest number of senses of a
    word. Building the index and its cached properties synchronizes with the device, so it is done once per map.
    """

    def __init__(self, sense_to_word: Tensor, n_words: int) -> None:
        self.sense_to_word, self.n_words = sense_to_word, n_words
        self.order = torch.argsort(sense_to_word, stable=True)
        self.counts = torch.bincount(sense_to_word, minlength=n_words)
        self.offsets = torch.cat([self.counts.new_zeros(1), self.counts.cumsum(0)])
        self.largest = max(1, int(self.counts.max())) if n_words else 1

    def rows(self, words: Tensor) -> Tensor:
        """Return the senses of ``words`` (...) as (..., largest), padded with −1."""
        return self._rows(words, self.largest)

    def _rows(self, words: Tensor, width: int) -> Tensor:
        at = self.offsets[words].unsqueeze(-1) + torch.arange(width, device=words.device)
        mask = at < self.offsets[words + 1].unsqueeze(-1)
        return torch.where(mask, self.order[at.clamp_max(len(self.order) - 1)], -1)

    @functools.cached_property
    def groups(self) -> list[Group]:
        """All words, grouped by numbers of senses up to 1, 2, 4, 8, … and padded to these: at most half is padding."""
        groups, low, high = [], -1, 1
        while low < self.largest:
            words = ((self.counts > low) & (self.counts <= high)).nonzero().squeeze(1)
            if len(words):
                groups.append(Group(words, self._rows(words, high)))
            low, high = high, 2 * high
        return groups

    @functools.cached_property
    def position(self) -> Tensor:
        """Position (words,) of each word in the concatenation of the groups."""
        return torch.argsort(torch.cat([group.words for group in self.groups]))

    def compressed_rows(self, few: int = FEW_SENSES) -> CompressedRows:
        """Return the index in int32, with the words of more than ``few`` senses listed separately."""
        many = (self.counts > few).nonzero().squeeze(1)
        return CompressedRows(self.order.int(), self.offsets.int(), many.int(), few, self.sense_to_word.int())

    @functools.cached_property
    def compressed(self) -> CompressedRows:
        """The result of :meth:`compressed_rows`, computed once per map."""
        return self.compressed_rows()

    @functools.cached_property
    def jagged(self) -> Jagged:
        """The senses by rounds."""
        words = torch.argsort(self.counts, descending=True, stable=True)
        rank = torch.argsort(words)
        of_word = self.sense_to_word[self.order]
        number = torch.arange(len(self.order), device=self.order.device) - self.offsets[of_word]  # within its word
        first, empty = torch.zeros_like(self.counts), (self.counts == 0).nonzero().squeeze(1)
        first[of_word[number == 0]] = self.order[number == 0]
        further = number > 0
        of_word, number, senses = of_word[further], number[further] - 1, self.order[further]
        sizes = torch.bincount(number, minlength=1)
        starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        others = torch.empty_like(senses)
        others[starts[number] + rank[of_word]] = senses
        order = torch.cat([first[self.counts > 0], others])
        return Jagged(first, words[: int((self.counts > 1).sum())], others, tuple(starts.tolist()), empty, order)


def pick(scores: Tensor, senses: Tensor) -> Tensor:
    """Gather ``scores`` (tokens, senses) at ``senses`` (words, k) → (tokens, words, k), −∞ where there is no sense."""
    picked = scores[:, senses.clamp_min(0).flatten()].unflatten(1, senses.shape)
    return picked.masked_fill(senses < 0, -torch.inf)


def pick_targets(scores: Tensor, senses: Tensor) -> Tensor:
    """Gather ``scores`` (tokens, senses) at the ``senses`` (tokens, k) of each token → (tokens, k), −∞ for none."""
    return scores.gather(1, senses.clamp_min(0)).masked_fill(senses < 0, -torch.inf)


def minus_max(scores: Tensor) -> Tensor:
    """Subtract the maximum of each token from ``scores`` (tokens, senses): differences of large numbers lose digits."""
    return scores - scores.detach().amax(-1, keepdim=True)


def word_logsumexp(scores: Tensor, index: SenseIndex) -> Tensor:
    """Compute the log-sum-exp over the senses of each word: ``scores`` (tokens, senses) → (tokens, words)."""
    parts = [torch.logsumexp(pick(scores, group.senses), -1) for group in index.groups]
    return torch.cat(parts, 1)[:, index.position]


def word_log_probs(scores: Tensor, index: SenseIndex) -> Tensor:
    """Compute log P(word), Eqs. 4 and 5: ``scores`` (tokens, senses) → (tokens, words)."""
    scores = minus_max(scores)
    return word_logsumexp(scores, index) - torch.logsumexp(scores, -1, keepdim=True)


def target_log_probs(scores: Tensor, index: SenseIndex, target: Tensor) -> Tensor:
    """Compute log P(target): ``scores`` (tokens, senses), ``target`` (tokens,) → (tokens,)."""
    scores = minus_max(scores)
    return torch.logsumexp(pick_targets(scores, index.rows(target)), -1) - torch.logsumexp(scores, -1)
