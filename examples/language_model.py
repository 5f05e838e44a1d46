"""A GRU language model with KerBS in plain torch: ``python examples/language_model.py train.txt valid.txt``.

The files have a sentence per line, in words separated by spaces. It prints the perplexity of both output layers, a
softmax and KerBS, after the same updates, and the words that have the most senses.
"""

import argparse
import collections
import math
import pathlib

import torch
from torch import nn

from kerbs_fairseq import KernelizedBayesianSoftmax, Reallocator

UNKNOWN = 1


class Softmax(nn.Module):
    """The usual output layer, with the interface of KerBS."""

    def __init__(self, in_features: int, n_words: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, n_words)

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log P(target) (rows,), and the mean loss."""
        log_prob = self.linear(input).log_softmax(-1).gather(1, target[:, None])[:, 0]
        return log_prob, -log_prob.mean()


def batches(path: pathlib.Path, ids: dict[str, int], size: int) -> list[torch.Tensor]:
    """Return the text as batches of token ids (size, at most 33), from a stream of sentences that end in </s>."""
    lines = path.read_text(encoding="utf-8").splitlines()
    tokens = [ids.get(word, UNKNOWN) for line in lines for word in [*line.split(), "</s>"]]
    streams = torch.tensor(tokens[: len(tokens) // size * size]).view(size, -1)
    return [streams[:, i : i + 33] for i in range(0, streams.size(1) - 1, 32)]


def main() -> None:
    """Train and evaluate a model with each output layer, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=pathlib.Path)
    parser.add_argument("valid", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--size", type=int, default=128, help="of embeddings and features")
    args = parser.parse_args()
    count = collections.Counter(args.train.read_text(encoding="utf-8").split())
    words = ["</s>", "<unk>", *(word for word, n in count.most_common() if n > 1)]
    ids = {word: i for i, word in enumerate(words)}
    train, valid = batches(args.train, ids, 16), batches(args.valid, ids, 4)
    counts = torch.bincount(torch.cat([batch.flatten() for batch in train]), minlength=len(words))
    for name in ("softmax", "kerbs"):
        torch.manual_seed(1)
        embed, gru = nn.Embedding(len(words), args.size), nn.GRU(args.size, args.size, batch_first=True)
        layer = Softmax(args.size, len(words))
        if name == "kerbs":
            layer = KernelizedBayesianSoftmax(args.size, len(words), senses=1.5, counts=counts, single=[UNKNOWN])
        optimizer = torch.optim.Adam(nn.ModuleList([embed, gru, layer]).parameters(), lr=3e-3)
        mover = Reallocator(layer, optimizer, every=50, after=100) if name == "kerbs" else None
        for _ in range(args.epochs):
            for batch in train:
                features, _ = gru(embed(batch[:, :-1]))
                _, loss = layer(features.flatten(0, 1), batch[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if mover is not None:
                    mover.step()
        with torch.no_grad():
            log_prob = [layer(gru(embed(b[:, :-1]))[0].flatten(0, 1), b[:, 1:].flatten())[0] for b in valid]
        print(f"{name}: validation perplexity {math.exp(-torch.cat(log_prob).mean()):.2f}")
    senses = layer.senses.senses_per_word()
    print("most senses:", ", ".join(f"{words[i]} {senses[i]}" for i in senses.argsort(descending=True)[:10]))
    print(f"{int(layer.statistics.moves)} senses moved")


if __name__ == "__main__":
    main()
