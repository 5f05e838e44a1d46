"""Fine-tune a causal language model of ``transformers`` with KerBS: ``python examples/finetune_huggingface.py``.

A small GPT-2, in place of one from ``from_pretrained``, is trained with its softmax. Then both output layers get equal
further updates. Each row of the softmax becomes n senses with a bias of −log n, which together predict what it did.
"""

import argparse
import copy

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from kerbs_fairseq import KernelizedBayesianSoftmax, Reallocator

WORDS, LENGTH = 200, 24


def batch(size: int, generator: torch.Generator) -> torch.Tensor:
    """Return synthetic text (size, LENGTH): a word depends on the one before it and on the first, the topic."""
    follow = (torch.rand(4, WORDS, 5, generator=torch.Generator().manual_seed(7)).pow(3) * WORDS).long()
    words = torch.randint(0, 4, (size, 1), generator=generator)
    for _ in range(LENGTH - 1):
        choice = torch.randint(0, 5, (size,), generator=generator)
        words = torch.cat([words, follow[words[:, 0], words[:, -1], choice][:, None]], 1)
    return words


def train(model: GPT2LMHeadModel, head: torch.nn.Module, updates: int, seed: int, rate: float) -> None:
    """Update the model and its output layer ``head``; senses move if there are any."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {id(p): p for p in [*model.transformer.parameters(), *head.parameters()]}  # a tied one only once
    optimizer = torch.optim.AdamW(parameters.values(), lr=rate)
    mover = None
    if isinstance(head, KernelizedBayesianSoftmax):
        mover = Reallocator(head, optimizer, every=20, after=20)
    for _ in range(updates):
        loss = loss_of(model, head, batch(16, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if mover is not None:
            mover.step()


def loss_of(model: GPT2LMHeadModel, head: torch.nn.Module, words: torch.Tensor) -> torch.Tensor:
    """Return the mean loss per word of ``words`` (sentences, length)."""
    features = model.transformer(words[:, :-1]).last_hidden_state.flatten(0, 1)
    target = words[:, 1:].flatten()
    if isinstance(head, KernelizedBayesianSoftmax):
        return head(features, target).loss
    return torch.nn.functional.cross_entropy(head(features), target)


def main() -> None:
    """Train a model, fine-tune it with both output layers, and compare the losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=300, help="of each of the three trainings")
    args = parser.parse_args()
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    train(model, model.lm_head, args.updates, seed=1, rate=3e-3)
    held_out = batch(200, torch.Generator().manual_seed(0))
    model.eval()
    with torch.no_grad():
        print(f"softmax, trained:             loss {loss_of(model, model.lm_head, held_out):.4f}")
    counts = torch.bincount(batch(2000, torch.Generator().manual_seed(1)).flatten(), minlength=WORDS)
    for name in ("softmax", "kerbs"):
        tuned = copy.deepcopy(model).train()
        head = tuned.lm_head
        if name == "kerbs":
            head = KernelizedBayesianSoftmax(64, WORDS, counts=counts, word_vectors=head.weight, bias="log")
        train(tuned, head, args.updates, seed=2, rate=1e-3)
        tuned.eval()
        with torch.no_grad():
            print(f"{name}, further updates:".ljust(30) + f"loss {loss_of(tuned, head, held_out):.4f}")


if __name__ == "__main__":
    main()
