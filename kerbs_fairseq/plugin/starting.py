"""The start of a model from a softmax: the senses of a word are equal, and would always get equal gradients.

So they are moved apart before the first update, by noise or towards clusters of the contexts of their word, and the log
reports how much that raises the validation loss.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional

import torch
from fairseq import utils
from torch import Tensor, nn

from kerbs_fairseq.functional import from_softmax
from kerbs_fairseq.plugin import pretrained
from kerbs_fairseq.plugin.decoders import features_of
from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.plugin.update_hook import is_first_worker, sum_over_workers, workers

logger = logging.getLogger(__name__)

MOST = 0.005  # largest relative increase of the validation loss by noise that is chosen automatically
TRIED = tuple(0.5 * 0.7**i for i in range(16))  # amounts of noise, in standard deviations of the softmax's weights
UNMEASURED = 0.1  # noise if there are no validation data
VALIDATION_TOKENS, CONTEXT_TOKENS, BATCH = 20_000, 200_000, 4000


def batches(task: Any, model: Any, split: str, shuffle: bool) -> Iterator[dict[str, Any]]:
    """Yield the batches of a split that has been loaded, on the model's device."""
    device = next(model.parameters()).device
    iterator = task.get_batch_iterator(
        task.dataset(split),
        max_tokens=BATCH,
        max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions(), BATCH),
        ignore_invalid_inputs=True,
        disable_iterator_cache=True,  # the trainer's iterators have other batch sizes
    )
    for sample in iterator.next_epoch_itr(shuffle=shuffle):
        if sample:
            yield utils.move_to_cuda(sample, device) if device.type == "cuda" else sample


class Corpus:
    """A split that a task has loaded, read by a model without gradients; every worker reads the same batches."""

    def __init__(self, task: Any, model: Any, split: str, tokens: int) -> None:
        self.task, self.model, self.split, self.most = task, model, split, tokens
        self.tokens = 0
        self._read: Optional[tuple[Tensor, Tensor]] = None

    @torch.no_grad()
    def contexts(self) -> tuple[Tensor, Tensor]:
        """Return features (n, d) and targets (n,) of at least ``most`` tokens, or of all if there are fewer."""
        tied = self.model.decoder.input_choice != "untied"  # then the features depend on the senses
        if self._read is not None and not tied:
            return self._read
        model, task, was_training = self.model, self.task, self.model.training
        of_batches: list[tuple[Tensor, Tensor]] = []
        self.tokens = 0
        model.eval()
        for sample in batches(task, model, self.split, shuffle=True):
            with features_of(model.decoder):
                output = model(**sample["net_input"])
            target = model.get_targets(sample, output).reshape(-1)
            real = target.ne(task.target_dictionary.pad())
            of_batches.append((output[0].reshape(-1, output[0].size(-1))[real], target[real]))
            self.tokens += len(of_batches[-1][1])
            if self.tokens >= self.most:
                break
        model.train(was_training)
        features, targets = (torch.cat(parts) for parts in zip(*of_batches))
        self._read = features, targets
        return self._read

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss in bits per token, the same number on all workers."""
        features, targets = self.contexts()
        head = self.model.decoder.head
        total = -sum(head.loss(*part)[1].sum() for part in zip(features.split(BATCH), targets.split(BATCH)))
        total = torch.as_tensor(total, dtype=torch.float64).reshape(1)
        if workers() > 1:
            sum_over_workers(total)
        return float(total) / workers() / len(targets) / float(torch.tensor(2.0).log())


class Data(NamedTuple):
    """The data to measure the loss on, and the data to find contexts in; None if there are none."""

    validation: Optional[Corpus]
    training: Optional[Callable[[], Corpus]]

    @classmethod
    def of(cls, task: Any, model: Any, dataset: Any) -> "Data":
        """Choose the splits by the ``dataset`` part of fairseq's settings."""
        split = str(dataset.valid_subset).split(",")[0]
        validation = Corpus(task, model, split, VALIDATION_TOKENS) if split in task.datasets else None

        def training() -> Corpus:
            if dataset.train_subset not in task.datasets:
                task.load_dataset(dataset.train_subset, combine=True, epoch=1)
            return Corpus(task, model, dataset.train_subset, CONTEXT_TOKENS)

        return cls(validation, training)


def finish(model: Any) -> None:
    """Move the senses apart if the checkpoint that ``model`` has just loaded was of a softmax."""
    decoder = model.decoder
    if decoder.__dict__.pop("started_from_softmax", False):
        trainer = pretrained.loading[-1].trainer if pretrained.loading else None
        start(decoder, Data(None, None) if trainer is None else Data.of(trainer.task, model, trainer.cfg.dataset))


def start(decoder: Any, data: Data) -> None:
    """Move the senses of a converted model apart as its options say, and log the change of the validation loss."""
    options, table = decoder.start_options, decoder.head.senses
    line = f"started from a softmax: {table.n_words} words became {len(table.vectors)} senses"
    if len(table.vectors) == table.n_words or options.noise == 0:
        logger.info("%s, which predict the same as the softmax", line)
        return
    base = table.vectors.detach().clone()
    before = data.validation.loss() if data.validation is not None else None
    directions = directions_for(decoder, base, data)

    def apart(noise: float) -> Optional[float]:
        put(table.vectors, base + noise * directions)
        return None if data.validation is None else data.validation.loss()

    amount = options.noise
    if amount is None:
        amount = UNMEASURED if before is None else tuned(apart, before)
    after = apart(amount)
    cost = "; there are no validation data to say what that costs"
    if before is not None and after is not None and data.validation is not None:
        cost = (f": the validation loss goes from {before:.4f} to {after:.4f} bits per token "
                f"({100 * (after / before - 1):+.2f} %), on {data.validation.tokens} tokens")  # fmt: skip
    logger.info("%s, moved apart by %.3g standard deviations%s", line, amount, cost)


def directions_for(decoder: Any, base: Tensor, data: Data) -> Tensor:
    """Return the directions (S, d) in which senses move apart; add log shares of contexts to the biases."""
    options, table = decoder.start_options, decoder.head.senses
    words = table.sense_to_word.cpu()
    weight = torch.zeros(table.n_words, base.size(1))
    weight[words] = base.float().cpu()
    training = None
    if options.split != "noise" and data.training is not None:
        with contextlib.suppress(FileNotFoundError):  # a folder without a training set
            training = data.training()
    if training is None and options.split == "contexts":
        refuse("--kerbs-start-split contexts needs a training set: give the data folder")
    if training is None:
        return from_softmax.noise(weight, words, options.seed).to(base)
    features, targets = training.contexts()
    parts = from_softmax.along_contexts(weight, words, features.float().cpu(), targets.cpu(), options.seed)
    n = torch.bincount(words, minlength=table.n_words)[words]
    change = (parts.share * n).log() / table.bias_rate  # relative to equal shares
    put(table.bias_raw, table.bias_raw.detach() + change.to(table.bias_raw))
    logger.info("the senses are moved apart along %d contexts of the training set", len(targets))
    return parts.directions.to(base)


@torch.no_grad()
def put(parameter: nn.Parameter, values: Tensor) -> None:
    """Set ``parameter`` to the first worker's ``values``, on all workers."""
    if workers() > 1:
        values = values if is_first_worker() else torch.zeros_like(values)
        sum_over_workers(values)
    parameter.copy_(values)


def tuned(apart: Callable[[float], Optional[float]], before: float) -> float:
    """Return the largest noise of :data:`TRIED` that raises the loss ``before`` by at most :data:`MOST`; 0 if none."""
    for noise in TRIED:
        after = apart(noise)
        if after is not None and after <= before * (1 + MOST):
            return noise
    return 0.0
