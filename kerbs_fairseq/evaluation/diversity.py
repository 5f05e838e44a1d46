"""What BLEU does not say of answers: how long they are, how varied, and how often the same one is given."""

from collections import Counter
from collections.abc import Sequence

from kerbs_fairseq.evaluation.scores import same_length


def words_of(lines: Sequence[str]) -> list[list[str]]:
    """The lines in sacrebleu's tokens 13a, those of BLEU."""
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    tokenise = Tokenizer13a()
    return [tokenise(line).split() for line in lines]


def length_ratio(outputs: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Tokens of the outputs per token of the references."""
    same_length(outputs, references)
    return sum(map(len, outputs)) / max(1, sum(map(len, references)))


def distinct(outputs: Sequence[Sequence[str]], order: int) -> float:
    """Different n-grams of the outputs per n-gram (Li et al., 2016); 0 if there is none."""
    ngrams = [tuple(line[i : i + order]) for line in outputs for i in range(len(line) - order + 1)]
    return len(set(ngrams)) / max(1, len(ngrams))


def share_of_most_frequent(outputs: Sequence[str]) -> float:
    """How many of the outputs are the same one, the most frequent."""
    return max(Counter(outputs).values(), default=0) / max(1, len(outputs))


def diversity(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """All of it, as it stands in scores.json."""
    words = words_of(outputs)
    return {
        "length_ratio": length_ratio(words, words_of(references)),
        "distinct_1": distinct(words, 1),
        "distinct_2": distinct(words, 2),
        "most_frequent": share_of_most_frequent(outputs),
    }
