"""Length, precision and diversity of answers, which BLEU does not tell apart or does not measure."""

from collections import Counter
from collections.abc import Sequence

from kerbs_fairseq.evaluation.scores import same_length


def words_of(lines: Sequence[str]) -> list[list[str]]:
    """Tokenise lines by sacrebleu's 13a, the tokeniser of BLEU."""
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    tokenise = Tokenizer13a()
    return [tokenise(line).split() for line in lines]


def length_ratio(outputs: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Return the number of tokens of the outputs divided by that of the references."""
    same_length(outputs, references)
    return sum(map(len, outputs)) / max(1, sum(map(len, references)))


def precision(outputs: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Return the unigram precision of BLEU in percent: BLEU-1 without its brevity penalty; 0 without any token."""
    same_length(outputs, references)
    matches = sum((Counter(ours) & Counter(theirs)).total() for ours, theirs in zip(outputs, references))
    return 100 * matches / max(1, sum(map(len, outputs)))


def distinct(outputs: Sequence[Sequence[str]], order: int) -> float:
    """Return the share of distinct n-grams among all n-grams of the outputs (Li et al., 2016); 0 if there is none."""
    ngrams = [tuple(line[i : i + order]) for line in outputs for i in range(len(line) - order + 1)]
    return len(set(ngrams)) / max(1, len(ngrams))


def share_of_most_frequent(outputs: Sequence[str]) -> float:
    """Return the share of the most frequent output."""
    return max(Counter(outputs).values(), default=0) / max(1, len(outputs))


def diversity(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return all these measures, under their names in scores.json."""
    words, wanted = words_of(outputs), words_of(references)
    return {
        "length_ratio": length_ratio(words, wanted),
        "precision_1": precision(words, wanted),
        "distinct_1": distinct(words, 1),
        "distinct_2": distinct(words, 2),
        "most_frequent": share_of_most_frequent(outputs),
    }
