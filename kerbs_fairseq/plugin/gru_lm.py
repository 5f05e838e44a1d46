"""``--arch gru_lm``: the GRU language model of the paper, as a fairseq architecture."""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqIncrementalDecoder, FairseqLanguageModel, register_model
from omegaconf import II
from torch import Tensor, nn

from kerbs_fairseq.plugin.refusal import refuse

State = Optional[dict[str, dict[str, Optional[Tensor]]]]


@dataclass
class GruLanguageModelConfig(FairseqDataclass):
    """Options of the model."""

    dropout: float = field(default=0.1, metadata={"help": "dropout of embeddings, between layers and of the output"})
    decoder_embed_dim: int = field(default=512, metadata={"help": "size of the input embeddings"})
    decoder_hidden_size: int = field(default=512, metadata={"help": "size of the hidden state"})
    decoder_layers: int = field(default=1, metadata={"help": "number of layers"})
    decoder_out_embed_dim: int = field(default=512, metadata={"help": "size of the features that predict a word"})
    share_decoder_input_output_embed: bool = field(
        default=False, metadata={"help": "one table for the input and the output of words"}
    )
    tokens_per_sample: int = II("task.tokens_per_sample")
    max_target_positions: Optional[int] = II("task.max_target_positions")


class GruDecoder(FairseqIncrementalDecoder):
    """Embedding, GRU, and a projection to features if their size differs from the hidden state's."""

    def __init__(self, cfg: Any, source: Any, dictionary: Any) -> None:
        super().__init__(dictionary)
        self.share_input_output_embed = cfg.share_decoder_input_output_embed
        self.max_target_positions = cfg.max_target_positions or cfg.tokens_per_sample
        self.dropout = nn.Dropout(cfg.dropout)
        self.embed_tokens = nn.Embedding(len(source), cfg.decoder_embed_dim, source.pad())
        nn.init.uniform_(self.embed_tokens.weight, -0.1, 0.1)
        nn.init.zeros_(self.embed_tokens.weight[source.pad()])
        between = cfg.dropout if cfg.decoder_layers > 1 else 0.0
        self.gru = nn.GRU(
            cfg.decoder_embed_dim, cfg.decoder_hidden_size, cfg.decoder_layers, batch_first=True, dropout=between
        )
        self.project = None
        if cfg.decoder_hidden_size != cfg.decoder_out_embed_dim:
            self.project = nn.Linear(cfg.decoder_hidden_size, cfg.decoder_out_embed_dim)
        self.output_projection = nn.Linear(cfg.decoder_out_embed_dim, len(dictionary), bias=False)
        nn.init.normal_(self.output_projection.weight, std=cfg.decoder_out_embed_dim**-0.5)
        if self.share_input_output_embed:
            self.output_projection.weight = self.embed_tokens.weight

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: None = None, incremental_state: State = None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Return logits (batch, length, words) of tokens (batch, length); only of the last in incremental decoding."""
        features, extra = self.extract_features(prev_output_tokens, incremental_state=incremental_state)
        return self.output_layer(features), extra

    def extract_features(
        self, prev_output_tokens: Tensor, encoder_out: None = None, incremental_state: State = None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Return features (batch, length, d) of tokens (batch, length)."""
        hidden = None
        if incremental_state is not None:
            saved = self.get_incremental_state(incremental_state, "hidden")
            if saved is not None:
                hidden = saved["hidden"].transpose(0, 1).contiguous()
            prev_output_tokens = prev_output_tokens[:, -1:]
        x, hidden = self.gru(self.dropout(self.embed_tokens(prev_output_tokens)), hidden)
        if incremental_state is not None:
            self.set_incremental_state(incremental_state, "hidden", {"hidden": hidden.transpose(0, 1)})
        x = self.dropout(x)
        return (x if self.project is None else self.dropout(self.project(x))), None

    def output_layer(self, features: Tensor, **kwargs: Any) -> Tensor:
        """Return logits (..., words) of features (..., d)."""
        return self.output_projection(features)

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor) -> None:
        """Reorder the hidden state (batch, layers, d) with the beams."""
        saved = self.get_incremental_state(incremental_state, "hidden")
        if saved is not None:
            hidden = saved["hidden"].index_select(0, new_order)
            self.set_incremental_state(incremental_state, "hidden", {"hidden": hidden})

    def max_positions(self) -> int:
        """Return the maximum length of a text, in tokens."""
        return self.max_target_positions


@register_model("gru_lm", dataclass=GruLanguageModelConfig)
class GruLanguageModel(FairseqLanguageModel):
    """The GRU language model of the paper."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "GruLanguageModel":
        """Build a new model."""
        if cfg.share_decoder_input_output_embed and cfg.decoder_embed_dim != cfg.decoder_out_embed_dim:
            refuse("--share-decoder-input-output-embed needs --decoder-embed-dim equal to --decoder-out-embed-dim")
        if cfg.share_decoder_input_output_embed and len(task.source_dictionary) != len(task.target_dictionary):
            refuse("--share-decoder-input-output-embed needs one dictionary (no --output-dictionary-size)")
        return cls(GruDecoder(cfg, task.source_dictionary, task.target_dictionary))
