"""Split corpora into training, validation and test, with a seed, and without sentences in two parts."""

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from kerbs_fairseq.corpora.lines import read_lines
from kerbs_fairseq.corpora.pairs import Pair, Splits
from kerbs_fairseq.runs.errors import UserError


def families(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Group the pairs that share a sentence on either side, directly or through other pairs."""
    parent: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for source, target in pairs:
        parent[root((0, source))] = root((1, target))
    groups: dict[tuple[int, str], list[Pair]] = defaultdict(list)
    for pair in dict.fromkeys(pairs):
        groups[root((0, pair[0]))].append(pair)
    return list(groups.values())


def split_by_sentence(pairs: Sequence[Pair], valid: int, test: int, seed: int) -> Splits:
    """Split pairs at random so that no sentence of either side is in two parts.

    Validation and test take one pair from a family each; the other pairs of such a family are left out.
    """
    groups = families(pairs)
    if len(groups) <= valid + test:
        raise UserError(
            f"{valid} pairs for validation and {test} for test are asked for, and there are {len(groups):,} groups of "
            "pairs that share no sentence with another: ask for fewer (--valid, --test)"
        )
    random.Random(seed).shuffle(groups)
    chosen, rest = groups[: valid + test], groups[valid + test :]
    first = [group[0] for group in chosen]
    train = [pair for group in rest for pair in group]
    random.Random(seed + 1).shuffle(train)
    dropped = sum(len(group) - 1 for group in chosen)
    return Splits(train, first[test:], first[:test], {"translations of a sentence held out": dropped})


def tidy(splits: Splits, max_words: int, most: int = 0) -> Splits:
    """Drop pairs with an empty side; in training also those over ``max_words`` words, and all after ``most``."""
    left_out = dict(splits.left_out)
    parts = {}
    for name, pairs in splits.parts().items():
        kept = [pair for pair in pairs if all(pair)]
        left_out[f"{name}: empty on one side"] = len(pairs) - len(kept)
        parts[name] = kept
    short = [pair for pair in parts["train"] if max(len(side.split()) for side in pair) <= max_words]
    left_out[f"train: over {max_words} words"] = len(parts["train"]) - len(short)
    parts["train"] = short[:most] if most else short
    for name, pairs in parts.items():
        if not pairs:
            raise UserError(f"nothing is left for {name}")
    return Splits(**parts, left_out={what: n for what, n in left_out.items() if n})


def without_overlap(splits: Splits) -> Splits:
    """Drop the pairs of validation and test that are also in training, ignoring case.

    Of DailyDialog's 6,740 test pairs these are 1,395.
    """

    def lower(pair: Pair) -> Pair:
        return pair[0].lower(), pair[1].lower()

    known = {lower(pair) for pair in splits.train}
    left_out = dict(splits.left_out)
    kept = {}
    for name in ("valid", "test"):
        pairs = splits.parts()[name]
        kept[name] = [pair for pair in pairs if lower(pair) not in known]
        left_out[f"{name}: stands in train"] = len(pairs) - len(kept[name])
    return Splits(splits.train, **kept, left_out=left_out)


def cut_sentences(files: Sequence[Path], sizes: Sequence[int], seed: int, max_words: int = 80) -> list[list[str]]:
    """Draw three parts of ``sizes`` from shards at random; a sentence is in one part only.

    The first part, for training, has no sentence of over ``max_words`` words. Only as many shards are read as are
    needed: their sentences are shuffled already.
    """
    wanted, (train, valid, _) = sum(sizes), sizes
    order = sorted(files)
    random.Random(seed).shuffle(order)
    distinct: dict[str, None] = {}  # a set that keeps its order
    short = 0
    for path in order:
        new = [line for line in dict.fromkeys(read_lines(path)) if line and line not in distinct]
        distinct.update(dict.fromkeys(new))
        short += sum(len(line.split()) <= max_words for line in new)
        if short >= wanted:
            break
    sentences = list(distinct)
    random.Random(seed + 1).shuffle(sentences)
    held_out = sentences[train:wanted]
    to_train = [line for line in sentences[:train] + sentences[wanted:] if len(line.split()) <= max_words][:train]
    if len(to_train) + len(held_out) < wanted:
        raise UserError(
            f"{wanted:,} sentences are asked for ({' + '.join(f'{n:,}' for n in sizes)}), "
            f"and there are {len(distinct):,}, {short:,} of up to {max_words} words: ask for fewer"
        )
    return [to_train, held_out[:valid], held_out[valid:]]
