"""Models built in this process as fairseq-train builds them, from a command line, and small enough to be quick."""

import functools
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import models, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from kerbs_fairseq.plugin.models import HEADS, SUPPORTED

SEQ2SEQ = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 "
    "--encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 --encoder-attention-heads 2 --decoder-attention-heads 2"
)
SMALL = {
    "transformer": SEQ2SEQ,
    "transformer_align": SEQ2SEQ + " --alignment-layer 0 --alignment-heads 1",
    "bart": SEQ2SEQ,
    "lstm": (
        "--encoder-embed-dim 16 --decoder-embed-dim 16 --decoder-out-embed-dim 16 --encoder-hidden-size 16 "
        "--decoder-hidden-size 16"
    ),
    "transformer_lm": (
        "--decoder-layers 1 --decoder-embed-dim 16 --decoder-input-dim 16 --decoder-output-dim 16 "
        "--decoder-ffn-embed-dim 16 --decoder-attention-heads 2"
    ),
    "lstm_lm": "--decoder-embed-dim 16 --decoder-hidden-size 16 --decoder-out-embed-dim 16",
    "gru_lm": "--decoder-embed-dim 16 --decoder-hidden-size 24 --decoder-out-embed-dim 16",
}
LANGUAGE_MODELS = ("transformer_lm", "lstm_lm", "gru_lm")
ARCHITECTURES = {base: sorted(models.ARCH_MODEL_INV_REGISTRY.get(base, [base])) for base in SUPPORTED}
FAMILIES = {base: base if base in archs else "bart_base" for base, archs in ARCHITECTURES.items()}
TWINS = [(base, f"{prefix}_{arch}") for prefix in HEADS for base, archs in ARCHITECTURES.items() for arch in archs]


def parse(data: object, base: str, command: str, seed: int = 1) -> Namespace:
    """The options of a small model, as fairseq-train reads them."""
    task = "language_modeling --sample-break-mode eos" if base in LANGUAGE_MODELS else "translation"
    arguments = f"{data} --task {task} {SMALL[base]} --dropout 0 {command} --seed {seed}"
    return options.parse_args_and_arch(options.get_training_parser(), arguments.split())


@functools.cache
def settings_of(base: str, arch: str) -> dict[str, Any]:
    """What makes a small model of this architecture, but for rates of dropout: :data:`SMALL` sets the sizes."""
    settings = vars(parse("data", base, f"--arch {arch}"))
    settings["arch"] = models.ARCH_MODEL_NAME_REGISTRY[arch]
    return {name: value for name, value in settings.items() if "dropout" not in name}


def representative(base: str, arch: str) -> str:
    """The first twin that is the same small model as ``arch``."""
    return next(a for b, a in TWINS if b == base and settings_of(b, a) == settings_of(base, arch))


def kinds() -> list[tuple[str, str]]:
    """The twins that differ in more than sizes and rates of dropout."""
    return [(base, arch) for base, arch in TWINS if representative(base, arch) == arch]


class Run(NamedTuple):
    """What fairseq-train has before its first update."""

    cfg: Any
    task: Any
    model: Any
    criterion: Any


def prepare(data: Path, base: str, command: str, seed: int = 1) -> Run:
    """Parse a command line of fairseq-train and build task, model and criterion."""
    cfg = convert_namespace_to_omegaconf(parse(data, base, command, seed))
    torch.manual_seed(seed)
    built = tasks.setup_task(cfg.task)
    built.load_dataset("valid")
    return Run(cfg, built, built.build_model(cfg.model), built.build_criterion(cfg.criterion))


@torch.no_grad()
def decided(run: Run) -> Run:
    """The same model, with longer output vectors if they are short: a new LSTM finds all words about as likely.

    Beams would be ties, which fall one way or the other by the last bit of a sum, different on every kind of machine.
    """
    decoder = run.model.decoder
    layer = getattr(decoder, "fc_out", None) or getattr(decoder, "output_projection", None) or decoder.embed_tokens
    if float(layer.weight.std()) < 0.1:
        layer.weight.mul_(10)
    return run


def batch(run: Run, sentences: int = 6, first: int = 0) -> dict[str, Any]:
    """Some sentences of the validation set, longest and shortest padded together."""
    data = run.task.dataset("valid")
    return data.collater([data[i] for i in range(first, first + sentences)])


def trainer(run: Run) -> Trainer:
    """What updates the model, as fairseq-train does: ``trainer.train_step([batch, ...])``."""
    built = Trainer(run.cfg, run.task, run.model, run.criterion)
    built.begin_epoch(1)
    return built


def log_probs(run: Run, sample: dict[str, Any]) -> torch.Tensor:
    """Log P of every word at every position (sentences, length, words)."""
    return run.model.get_normalized_probs(run.model(**sample["net_input"]), log_probs=True)


def search(run: Run, sample: dict[str, Any], beam: int = 3) -> list[list[tuple[list[int], float]]]:
    """Beam search: (tokens, score) of every hypothesis of every sentence."""
    run.model.eval()
    generator = run.task.build_generator([run.model], generator_options(beam))
    beams = run.task.inference_step(generator, [run.model], sample)
    return [[(h["tokens"].tolist(), float(h["score"])) for h in sentence] for sentence in beams]


@functools.cache
def generator_options(beam: int) -> Any:
    """What --beam and a limit of length mean to a task."""
    args = options.parse_args_and_arch(
        options.get_generation_parser(), f"unused --path unused --beam {beam} --max-len-b 12".split()
    )
    return convert_namespace_to_omegaconf(args).generation
