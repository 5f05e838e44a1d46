"""Detect, before training, that no sense can ever move."""

from typing import Callable, Optional

from kerbs_fairseq.modules.sense_table import SenseTable


def first_event(every: int, after: int) -> int:
    """Return the first update after which senses move: the first multiple of ``every`` that is at least ``after``."""
    return every * max(1, -(-after // every))


def obstacle(
    table: SenseTable,
    every: int,
    after: int = 0,
    until: int = 0,
    threshold: Optional[float] = None,
    max_update: float = 0,
    name: Callable[[str], str] = str,
) -> Optional[str]:
    """Return why no sense can move although senses are to move every ``every`` updates, or None.

    ``threshold`` is None if the strategy has none, ``max_update`` is the end of training, 0 if unknown. ``name`` maps
    an argument to the name under which the user gave it.
    """
    first = first_event(every, after)
    if until and first > until:
        return f"the first event would be after update {first}, and {name('until')} is {until}"
    if 0 < max_update < first:
        return f"the first event would be after update {first}, and training ends after {max_update:g}"
    if threshold == float("-inf"):
        return f"no log P is below {name('threshold')} -inf"
    senses = table.senses_per_word()
    senses = senses[[word for word in range(table.n_words) if word not in set(table.single)]]
    if not bool((senses < table.max_senses).any()):
        return f"all words have the most senses that they may have, {table.max_senses}"
    if not bool((senses > table.min_senses).any()):
        return f"no word has more than the {table.min_senses} that it keeps"
    return None
