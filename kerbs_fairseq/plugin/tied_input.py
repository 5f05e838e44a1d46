"""The decoder's input tied to its senses, Eqs. 6 and 7, for recurrent decoders, Transformers and incremental decoding.

The input of step t needs the context h of step t − 1. A recurrent decoder computes step by step, so it has it. A
Transformer under teacher forcing computes all steps at once, so it repeats them: each pass gives contexts, which give
the sense weights of the next pass. After p repetitions the first p + 1 steps are exact. Incremental decoding keeps the
context of the last step for every beam, and is exact.
"""

import functools
from typing import Any, Callable, Optional

import torch
from fairseq.models.lstm import LSTMDecoder
from torch import Tensor, nn

from kerbs_fairseq.modules.input_embedding import SenseInput
from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax
from kerbs_fairseq.plugin.gru_lm import GruDecoder
from kerbs_fairseq.plugin.refusal import refuse

RECURRENT = (LSTMDecoder, GruDecoder)
STANDS_STILL = 1e-6  # weights that change by less have converged to those of the step-by-step result
STATE = "kerbs_context"

Features = tuple[Tensor, Any]
Extract = Callable[..., Features]


class TiedInput:
    """Mixin for a decoder that computes its features, with inputs made of senses if ``input_choice`` says so."""

    head: KernelizedBayesianSoftmax
    embed_tokens: Any
    training: bool
    input_choice = "untied"
    input_passes = 1

    def tie_input(self, args: Any) -> None:
        """Replace the input embedding as the options say; refuse options that cannot be combined."""
        self.input_choice, self.input_passes = str(args.kerbs_input), args.kerbs_input_passes
        if self.input_passes < 1:
            refuse(f"--kerbs-input-passes {self.input_passes}: at least 1 (--kerbs-input usage needs none)")
        if self.input_passes > 1 and (self.input_choice != "posterior" or isinstance(self, RECURRENT)):
            refuse(
                "--kerbs-input-passes has no effect but for Transformers with --kerbs-input posterior: "
                "recurrent decoders are exact as they are. Leave it out"
            )
        if self.input_choice == "untied":
            return
        asked = f"--kerbs-input {self.input_choice}"
        table = self.embed_tokens
        if not isinstance(table, nn.Embedding):
            refuse(
                f"{asked} makes the decoder's input of its senses, and --adaptive-input or --character-embeddings make "
                "it of something else: choose one"
            )
        from_table = getattr(self, "share_input_output_embed", False) and str(args.kerbs_init_vectors) != "random"
        if getattr(args, "decoder_embed_path", None) and not from_table:
            refuse(
                f"--decoder-embed-path has no effect with {asked}, which has no table of words to load; with "
                "--share-decoder-input-output-embed and --kerbs-init-vectors clone or near the senses start from it"
            )
        if getattr(args, "decoder_freeze_embed", False):
            refuse(f"--decoder-freeze-embed has no effect with {asked}, which has no table of words to freeze")
        if table.embedding_dim != self.head.in_features:
            refuse(
                f"{asked} needs input and output vectors of one size, and they have {table.embedding_dim} and "
                f"{self.head.in_features}: make --decoder-embed-dim (or --decoder-input-dim) equal to "
                "--decoder-out-embed-dim (or --decoder-output-dim), or use --kerbs-input untied"
            )
        if table.num_embeddings != self.head.n_words:
            refuse(
                f"{asked} needs one dictionary for input and output, and they have {table.num_embeddings} and "
                f"{self.head.n_words} words: leave out --output-dictionary-size, or use --kerbs-input untied"
            )
        self.embed_tokens = SenseInput(self.head, table.padding_idx, self.input_choice)

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out: Any = None, incremental_state: Any = None, **kwargs: Any
    ) -> Features:
        """Return features (batch, length, d) of tokens (batch, length), and the other output of the decoder."""
        extract = functools.partial(super().extract_features, encoder_out=encoder_out, **kwargs)  # type: ignore[misc]
        if self.input_choice != "posterior":
            return extract(prev_output_tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            return self.next_step(extract, prev_output_tokens, incremental_state)
        if isinstance(self, RECURRENT):
            return self.step_by_step(extract, prev_output_tokens, {})
        return self.in_passes(extract, prev_output_tokens)

    def step_by_step(self, extract: Extract, tokens: Tensor, state: dict[str, Any]) -> Features:
        """Compute each step with the context of the one before, using fairseq's incremental state."""
        contexts: Optional[Tensor] = None
        steps: list[Tensor] = []
        extras: list[Any] = []
        for token, words in zip(tokens.split(1, 1), self.embed_tokens.gather(tokens).steps()):
            with self.embed_tokens.given(words, contexts=contexts):
                contexts, extra = extract(token, incremental_state=state)
            steps.append(contexts)
            extras.append(extra)
        return torch.cat(steps, 1), None if extras[0] is None else torch.cat(extras, 1)

    def in_passes(self, extract: Extract, tokens: Tensor) -> Features:
        """Compute all steps at once, in several passes; outside training until the weights converge (no gradient)."""
        embed = self.embed_tokens
        words = embed.gather(tokens)
        with torch.no_grad():
            fixed = words.detached()
            weights = embed.prior(fixed)
            for _ in range(min(self.input_passes, tokens.size(1) - 1) if self.training else tokens.size(1) - 1):
                with embed.given(fixed, weights):
                    contexts, _ = extract(tokens, incremental_state=None)
                posterior = embed.posterior(contexts[:, :-1], fixed.without_first())
                change = (posterior - weights[:, 1:]).abs().max() if not self.training else None
                weights = torch.cat([weights[:, :1], posterior], 1)
                if change is not None and float(change) < STANDS_STILL:
                    break
        with embed.given(words, weights):
            return extract(tokens, incremental_state=None)

    def next_step(self, extract: Extract, tokens: Tensor, state: dict[str, Any]) -> Features:
        """Compute the last of ``tokens`` (batch, length), given the state of those before it."""
        saved = self.get_incremental_state(state, STATE)  # type: ignore[attr-defined]
        if saved is None and isinstance(self, RECURRENT):
            features, extra = self.step_by_step(extract, tokens, state)
        else:
            with self.embed_tokens.given(contexts=None if saved is None else saved["features"]):
                features, extra = extract(tokens, incremental_state=state)
        self.set_incremental_state(state, STATE, {"features": features[:, -1:]})  # type: ignore[attr-defined]
        return features, extra

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor) -> None:
        """Reorder the saved contexts with the beams."""
        super().reorder_incremental_state(incremental_state, new_order)  # type: ignore[misc]
        saved = self.get_incremental_state(incremental_state, STATE)  # type: ignore[attr-defined]
        if saved is not None:
            features = saved["features"].index_select(0, new_order)
            self.set_incremental_state(incremental_state, STATE, {"features": features})  # type: ignore[attr-defined]
