"""From senses to words, Eqs. 4 and 5, in the log domain, and the index from words to their senses.

A word may have any number of senses, so the index is a list in compressed rows, not a padded table: memory and time of
all word sums are proportional to the number of senses, whatever the largest number that one word has.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

FEW_SENSES = 16  # on a GPU a word with more is summed by several lanes


class Group(NamedTuple):
    """Words with about as many senses: ``words`` (n,), and ``senses`` (n, k), −1 where a word has fewer than k."""

    words: Tensor
    senses: Tensor


class Jagged(NamedTuple):
    """Senses by rounds: the first sense of every word, then the second of those that have two, and so on.

    ``first`` (words,) has the first senses in the order of the words, 0 for the words of ``empty``, which have none.
    ``several`` are the words with more senses, most first, so that each further round is about the first of them:
    round r about ``starts[r + 1] − starts[r]``. ``others`` are these rounds one behind the other.
    """

    first: Tensor
    several: Tensor
    others: Tensor
    starts: tuple[int, ...]
    empty: Tensor
    order: Tensor  # (senses,): the first round, without empty words, and the others: word sums read it fastest


class CompressedRows(NamedTuple):
    """The senses of word i are order[offsets[i] : offsets[i + 1]], as the Triton kernels read them; int32."""

    order: Tensor  # (senses,)
    offsets: Tensor  # (words + 1,)
    many: Tensor  # the words with more senses than ``few``: these are summed by several lanes each
    few: int
    sense_to_word: Tensor  # (senses,)


class SenseIndex:
    """The senses of each word, for a map ``sense_to_word`` (senses,) of ``n_words`` words.

    The senses of word i are ``order[offsets[i] : offsets[i + 1]]``. ``largest`` is the largest number of senses of a
    word. Building it waits for the device; it is built once for a map, and using it does not wait.
    """

    def __init__(self, sense_to_word: Tensor, n_words: int) -> None:
        self.sense_to_word, self.n_words = sense_to_word, n_words
        self.order = torch.argsort(sense_to_word, stable=True)
        self.counts = torch.bincount(sense_to_word, minlength=n_words)
        self.offsets = torch.cat([self.counts.new_zeros(1), self.counts.cumsum(0)])
        self.largest = max(1, int(self.counts.max())) if n_words else 1

    def rows(self, words: Tensor) -> Tensor:
        """The senses of ``words`` (...): (..., largest), −1 where a word has no more."""
        return self._rows(words, self.largest)

    def _rows(self, words: Tensor, width: int) -> Tensor:
        at = self.offsets[words].unsqueeze(-1) + torch.arange(width, device=words.device)
        there = at < self.offsets[words + 1].unsqueeze(-1)
        return torch.where(there, self.order[at.clamp_max(len(self.order) - 1)], -1)

    @functools.cached_property
    def groups(self) -> list[Group]:
        """All words, by numbers of senses up to 1, 2, 4, 8, …: padded to that, at most half of a group is empty."""
        groups, low, high = [], -1, 1
        while low < self.largest:
            words = ((self.counts > low) & (self.counts <= high)).nonzero().squeeze(1)
            if len(words):
                groups.append(Group(words, self._rows(words, high)))
            low, high = high, 2 * high
        return groups

    @functools.cached_property
    def position(self) -> Tensor:
        """Where each word (words,) stands when the groups are put one behind the other."""
        return torch.argsort(torch.cat([group.words for group in self.groups]))

    def compressed_rows(self, few: int = FEW_SENSES) -> CompressedRows:
        """With words of more than ``few`` senses listed apart."""
        many = (self.counts > few).nonzero().squeeze(1)
        return CompressedRows(self.order.int(), self.offsets.int(), many.int(), few, self.sense_to_word.int())

    @functools.cached_property
    def compressed(self) -> CompressedRows:
        """Made once for a map."""
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
    """``scores`` (tokens, senses) at ``senses`` (words, k) → (tokens, words, k), −∞ where there is no sense."""
    picked = scores[:, senses.clamp_min(0).flatten()].unflatten(1, senses.shape)
    return picked.masked_fill(senses < 0, -torch.inf)


def pick_targets(scores: Tensor, senses: Tensor) -> Tensor:
    """``scores`` (tokens, senses) at each token's own ``senses`` (tokens, k) → (tokens, k), −∞ where there is none."""
    return scores.gather(1, senses.clamp_min(0)).masked_fill(senses < 0, -torch.inf)


def minus_max(scores: Tensor) -> Tensor:
    """``scores`` (tokens, senses) less the largest of each token: the difference of two large numbers loses digits."""
    return scores - scores.detach().amax(-1, keepdim=True)


def word_logsumexp(scores: Tensor, index: SenseIndex) -> Tensor:
    """Log-sum-exp over the senses of each word: ``scores`` (tokens, senses) → (tokens, words)."""
    parts = [torch.logsumexp(pick(scores, group.senses), -1) for group in index.groups]
    return torch.cat(parts, 1)[:, index.position]


def word_log_probs(scores: Tensor, index: SenseIndex) -> Tensor:
    """log P(word), Eqs. 4 and 5: ``scores`` (tokens, senses) → (tokens, words)."""
    scores = minus_max(scores)
    return word_logsumexp(scores, index) - torch.logsumexp(scores, -1, keepdim=True)


def target_log_probs(scores: Tensor, index: SenseIndex, target: Tensor) -> Tensor:
    """log P(target): ``scores`` (tokens, senses), ``target`` (tokens,) → (tokens,)."""
    scores = minus_max(scores)
    return torch.logsumexp(pick_targets(scores, index.rows(target)), -1) - torch.logsumexp(scores, -1)
