"""``torch.jit.script`` of a twin: a stock model with the prepared tables of its head as the output projection.

torch.jit.script calls ``__prepare_scriptable__`` of every module before it compiles it. The tables are made at that
time, without the senses that ``--kerbs-prune`` leaves out.
"""

from typing import Any

import torch
from torch import nn

from kerbs_fairseq.modules.prepared import PreparedSoftmax
from kerbs_fairseq.plugin.refusal import refuse


def copied(module: nn.Module, base: type) -> Any:
    """Return a shallow copy of ``module`` with the class ``base``; parts can be removed from the copy alone."""
    made: Any = object.__new__(base)
    made.__dict__.update(module.__dict__)
    for name in ("_modules", "_parameters", "_buffers"):
        made.__dict__[name] = dict(module.__dict__[name])
    return made


def prepared_head(head: Any) -> PreparedSoftmax:
    """Return the tables of a head with its current parameters."""
    with torch.no_grad():
        return PreparedSoftmax(head.senses.senses(), head.used_senses(head.prune) if head.prune else None)


def prepared_decoder(decoder: Any) -> Any:
    """Return a decoder of the stock class that gives the same log-probabilities."""
    _, base = type(decoder).__bases__
    if decoder.input_choice == "posterior":
        refuse(
            "a model with --kerbs-input posterior cannot be compiled by TorchScript: its input depends on the senses "
            "that were meant. Train with --kerbs-input usage or untied"
        )
    stock = copied(decoder, base)
    for name in ("update_hook", "start_options", "counted_split", "head"):
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


def prepared_model(model: Any) -> Any:
    """Return a KerBS twin as a stock model with prepared tables, for torch.jit.script; any other model as it is."""
    if not hasattr(model.decoder, "__prepare_scriptable__"):
        return model
    stock = model.__prepare_scriptable__()
    stock._modules["decoder"] = prepared_decoder(model.decoder)
    return stock
