"""Patch that makes fairseq write checkpoints completely or not at all, whatever happens meanwhile."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Callable

from kerbs_fairseq.runs.files import renaming


@contextlib.contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """Yield an open temporary file that replaces ``path`` when all of it is on the disk.

    It has the name that fairseq uses, so the next process overwrites what a killed one has left; as in fairseq, a link
    is replaced, not followed.
    """
    with renaming(Path(f"{path}.tmp"), Path(path), Path(path)) as beside, beside.open("wb") as file:
        yield file


def _write_whole_checkpoints() -> None:
    import torch
    from fairseq import checkpoint_utils

    save, manager = checkpoint_utils.torch_persistent_save, checkpoint_utils.PathManager

    def torch_persistent_save(obj: Any, filename: Any, async_write: bool = False) -> None:
        if async_write or not isinstance(filename, str) or manager.path_requires_pathmanager(filename):
            save(obj, filename, async_write)
            return
        with replacing(filename) as file:
            torch.save(obj, file)

    class WholeFiles(manager):  # type: ignore[valid-type, misc]
        @staticmethod
        def copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
            if not overwrite or any(map(manager.path_requires_pathmanager, (src_path, dst_path))):
                return bool(manager.copy(src_path, dst_path, overwrite=overwrite))
            with open(src_path, "rb") as source, replacing(dst_path) as file:
                shutil.copyfileobj(source, file)
            return True

    checkpoint_utils.torch_persistent_save, checkpoint_utils.PathManager = torch_persistent_save, WholeFiles


PATCHES: tuple[tuple[str, str, Callable[[], bool], Callable[[], None]], ...] = (
    (
        "whole-checkpoints",
        "fairseq copies a new checkpoint over checkpoint_last.pt: a training that is killed then, or a full disk, "
        "leaves half a file in the place of a whole one. Files are written beside it, and renamed when complete",
        lambda: True,
        _write_whole_checkpoints,
    ),
)
