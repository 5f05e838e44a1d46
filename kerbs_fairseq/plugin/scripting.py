"""``torch.jit.script`` of a twin: a stock model with the prepared tables of its head in the place of the last matrix.

torch.jit.script calls ``__prepare_scriptable__`` of every module before it compiles it. The tables are those of that
moment, and what was left out of them by ``--kerbs-prune`` is left out.
"""

from typing import Any

import torch
from torch import nn

from kerbs_fairseq.modules.prepared import PreparedSoftmax
from kerbs_fairseq.plugin.refusal import refuse


def copied(module: nn.Module, base: type) -> Any:
    """``module`` as one of the class ``base``, with the same parts: the copy may lose some."""
    made: Any = object.__new__(base)
    made.__dict__.update(module.__dict__)
    for name in ("_modules", "_parameters", "_buffers"):
        made.__dict__[name] = dict(module.__dict__[name])
    return made


def prepared_head(head: Any) -> PreparedSoftmax:
    """A head's tables as they are now."""
    with torch.no_grad():
        return PreparedSoftmax(head.senses.senses(), head.used_senses(head.prune) if head.prune else None)


def prepared_decoder(decoder: Any) -> Any:
    """A decoder of the stock class that gives the same log-probabilities."""
    _, base = type(decoder).__bases__
    if decoder.input_choice == "posterior":
        refuse(
            "a model with --kerbs-input posterior cannot be compiled by TorchScript: its input depends on the senses "
            "that were meant. Train with --kerbs-input usage or untied"
        )
    stock = copied(decoder, base)
    for name in ("update_hook", "start_options", "head"):
        stock.__dict__.pop(name, None)
        stock._modules.pop(name, None)
    if decoder.input_choice == "usage":
        with torch.no_grad():
            words = torch.arange(decoder.head.n_words, device=decoder.head.senses.vectors.device)
            table = decoder.embed_tokens(words)
        stock._modules["embed_tokens"] = nn.Embedding.from_pretrained(
            table, padding_idx=decoder.embed_tokens.padding_idx
        )
    stock.share_input_output_embed = False
    setattr(stock, decoder.replaced, prepared_head(decoder.head))
    return stock
