"""Patch for finished trainings: if they are started again, they end at once."""

import functools
import logging
import sys
from typing import Any, Callable

logger = logging.getLogger(__name__)
PROGRAMS = ("fairseq_cli.train", "__main__")  # modules that may be fairseq-train, the second with python -m


def ending_at_once(train: Any) -> Any:
    """Wrap fairseq-train's ``train``, which trains for an epoch: it ends at once if all updates have been made."""

    @functools.wraps(train)
    def train_if_any_is_left(cfg: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        made, most = trainer.get_num_updates(), cfg.optimization.max_update
        if not 0 < most <= made:
            return train(cfg, trainer, *args, **kwargs)
        logger.info(f"the checkpoint has {made} updates and --max-update is {most}: nothing is left to train")
        return [None], True  # no validation losses, and stop

    train_if_any_is_left.ends_at_once = True  # type: ignore[attr-defined]
    return train_if_any_is_left


def _end_finished_trainings() -> None:
    from fairseq.trainer import Trainer

    build = Trainer.__init__

    @functools.wraps(build)
    def trainer(self: Any, *args: Any, **kwargs: Any) -> None:
        # the program is known only now; importing it would change the logging of other programs
        for name in PROGRAMS:
            program: Any = sys.modules.get(name)
            is_it = all(hasattr(program, function) for function in ("cli_main", "validate_and_save", "train"))
            if is_it and not hasattr(program.train, "ends_at_once"):
                program.train = ending_at_once(program.train)
        build(self, *args, **kwargs)

    Trainer.__init__ = trainer


PATCHES: tuple[tuple[str, str, Callable[[], bool], Callable[[], None]], ...] = (
    (
        "finished-trainings",
        "fairseq compares with --max-update after an update: a finished training that is started again makes one more, "
        "and saves it. It ends at once",
        lambda: True,
        _end_finished_trainings,
    ),
)
