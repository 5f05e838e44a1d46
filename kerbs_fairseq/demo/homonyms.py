"""Accuracy of the senses of a KerBS model on the homonyms of the demo corpus, whose true senses are known."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kerbs_fairseq.demo.truth import true_senses
from kerbs_fairseq.inspection.contexts import occurrences
from kerbs_fairseq.inspection.learned import Learned, load

SPLITS = ("valid", "test")  # not trained on


@dataclass
class Homonym:
    """A word with several true senses, and each of its uses as (the model's likely sense, the true one)."""

    word: str
    true: int
    has: int  # senses in the model
    uses: list[tuple[int, str]] = field(default_factory=list)

    @property
    def meant(self) -> int:
        """Number of senses of the model that are the likely one at least once."""
        return len({sense for sense, _ in self.uses})


def right(uses: Sequence[tuple[int, str]]) -> int:
    """Return how many uses are right if each sense of the model is mapped to its most frequent true sense."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for sense, true in uses:
        counts[sense][true] += 1
    return sum(max(of_true.values()) for of_true in counts.values())


def shuffled(uses: Sequence[tuple[int, str]], seed: int = 1, times: int = 20) -> float:
    """Return the mean of :func:`right` with the model's senses assigned to the uses at random."""
    generator, senses = random.Random(seed), [sense for sense, _ in uses]
    total = 0
    for _ in range(times):
        generator.shuffle(senses)
        total += right([(sense, true) for sense, (_, true) in zip(senses, uses)])
    return total / times


def homonyms(checkpoint: Path, data: Path, corpus: Path) -> list[Homonym]:
    """Return all homonyms, those with most true senses first, with their uses in sentences not trained on."""
    model: Learned = load(checkpoint, data)
    truth = {word: n for word, n in true_senses(corpus / "truth.tsv").items() if n > 1 and word in model.words}
    at = {model.find(word): word for word in truth}
    of_word = {word: Homonym(word, truth[word], int(model.numbers[i])) for i, word in at.items()}
    for split in SPLITS:
        lines = (corpus / "parallel" / f"{split}.senses").read_text(encoding="utf-8").splitlines()
        for use in occurrences(checkpoint, data, split, list(at)):
            of_word[at[use.word]].uses.append((use.sense, lines[use.line].split()[use.column]))
    return sorted(of_word.values(), key=lambda one: (-one.true, -len(one.uses), one.word))


def table(words: Sequence[Homonym], most: int = 8) -> str:
    """Return a table with a row for each of the first words, and one for all words."""
    head = f"{'word':<12}{'true senses':>12}{'has':>5}{'means':>7}{'times':>7}{'right':>7}{'by chance':>11}"
    lines = [head, "-" * len(head)]
    for one in words[:most]:
        n = max(1, len(one.uses))
        good, chance = right(one.uses) / n, shuffled(one.uses) / n
        lines.append(f"{one.word:<12}{one.true:12}{one.has:5}{one.meant:7}{n:7}{good:7.0%}{chance:11.0%}")
    total = max(1, sum(len(one.uses) for one in words))
    good = sum(right(one.uses) for one in words) / total
    chance = sum(shuffled(one.uses) for one in words) / total
    lines.append(f"{f'all {len(words)}':<12}{'':24}{total:7}{good:7.0%}{chance:11.0%}")
    return "\n".join(lines)
