"""Subwords as readable text: the marks of sentencepiece and subword-nmt are converted to spaces."""

from collections.abc import Iterable, Sequence

START, CONTINUED = "▁", "@@"  # before the first piece of a word (sentencepiece), after all but the last (subword-nmt)


def mark_of(words: Iterable[str]) -> str:
    """Return the mark of the subwords of a dictionary; an empty text if its entries are words."""
    words = list(words)
    if any(word.startswith(START) for word in words):
        return START
    return CONTINUED if any(word.endswith(CONTINUED) for word in words) else ""


def spaced(piece: str, mark: str) -> str:
    """Return a piece with the space before or after it in a text."""
    if mark == START:
        return piece.replace(START, " ")
    return piece.removesuffix(CONTINUED) if mark and piece.endswith(CONTINUED) else f"{piece} "


def highlighted(sentence: Sequence[str], position: int, mark: str) -> str:
    """Return a sentence as text, with the piece at ``position`` between » and «."""
    texts = ["" if piece == "</s>" else spaced(piece, mark) for piece in sentence]
    word = texts[position].strip() or sentence[position]
    texts[position] = f" »{word}« " if not texts[position].strip() else texts[position].replace(word, f"»{word}«")
    return "".join(texts).strip()
