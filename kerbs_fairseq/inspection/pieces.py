"""Subwords as readable text: the marks of sentencepiece and of subword-nmt become spaces between words."""

from collections.abc import Iterable, Sequence

START, CONTINUED = "▁", "@@"  # before the first piece of a word (sentencepiece), behind all but the last (subword-nmt)


def mark_of(words: Iterable[str]) -> str:
    """The mark that the subwords of a dictionary carry; nothing if its entries are words."""
    words = list(words)
    if any(word.startswith(START) for word in words):
        return START
    return CONTINUED if any(word.endswith(CONTINUED) for word in words) else ""


def spaced(piece: str, mark: str) -> str:
    """A piece with the space that stands before or behind it in a text."""
    if mark == START:
        return piece.replace(START, " ")
    return piece.removesuffix(CONTINUED) if mark and piece.endswith(CONTINUED) else f"{piece} "


def highlighted(sentence: Sequence[str], position: int, mark: str) -> str:
    """A sentence as text, with the piece in question between » and «."""
    texts = ["" if piece == "</s>" else spaced(piece, mark) for piece in sentence]
    word = texts[position].strip() or sentence[position]
    texts[position] = f" »{word}« " if not texts[position].strip() else texts[position].replace(word, f"»{word}«")
    return "".join(texts).strip()
