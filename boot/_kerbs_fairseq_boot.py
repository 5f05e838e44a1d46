"""Lets fairseq 0.12.2 be imported on Python 3.11 and newer.

Since Python 3.11 a dataclass refuses a default value that has no hash, and the configuration classes of fairseq (and
of hydra-core 1.0) have instances of other dataclasses as defaults. ``kerbs_fairseq.pth`` imports this module whenever
Python starts. It imports nothing itself; it waits for the first import of fairseq or hydra, steps out of the way, and
from then on gives the dataclasses of those two packages, and of no other, the identity hash that every ordinary
object has.
"""

import sys

PACKAGES = ("fairseq", "hydra")


class Watch:
    """A finder that finds nothing: it only notices that one of PACKAGES is about to be imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]  # typing is slow to import
        """Answer the import system; None means: ask the next finder."""
        if name in PACKAGES:
            # a new list: taking an item out of the one that is being gone through would skip the next finder
            sys.meta_path = [finder for finder in sys.meta_path if finder is not Watch]
            give_identity_hash()
        return None  # noqa: PLR1711  (the answer is the point)


def give_identity_hash():  # type: ignore[no-untyped-def]
    """Wrap the function behind ``@dataclass``, for the classes of PACKAGES only."""
    import dataclasses

    process = dataclasses._process_class  # type: ignore[attr-defined]

    def _process_class(cls, *args, **kwargs):  # type: ignore[no-untyped-def]
        made = process(cls, *args, **kwargs)
        if made.__hash__ is None and made.__module__.partition(".")[0] in PACKAGES:
            made.__hash__ = object.__hash__
        return made

    dataclasses._process_class = _process_class  # type: ignore[attr-defined]


if sys.version_info >= (3, 11) and not any(name in sys.modules for name in PACKAGES):
    sys.meta_path.insert(0, Watch)
