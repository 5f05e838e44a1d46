"""Models of fairseq that have no twin, each with the reason that users are given."""

import inspect
from typing import Any

from fairseq.models import FairseqDecoder
from torch import nn

from kerbs_fairseq.plugin.refusal import refuse

ENCODER_ONLY = "the model has an encoder only, and no decoder whose softmax could be replaced"
ALL_AT_ONCE = "the model predicts all words of a sentence at once, not one after the other"
NO_WORDS = "the model does not predict words"
SPEECH = "the model reads speech; KerBS has been fitted to models that read text"
PARALLEL = "the model's decoder is split over devices"
NEITHER = "the model's decoder is neither an LSTM nor a Transformer"

REASONS = {
    "camembert": ENCODER_ONLY,
    "gottbert": ENCODER_ONLY,
    "masked_lm": ENCODER_ONLY,
    "model_parallel_roberta": ENCODER_ONLY,
    "roberta": ENCODER_ONLY,
    "xlmr": ENCODER_ONLY,
    "xmod": ENCODER_ONLY,
    "cmlm_transformer": ALL_AT_ONCE,
    "insertion_transformer": ALL_AT_ONCE,
    "iterative_nonautoregressive_transformer": ALL_AT_ONCE,
    "levenshtein_transformer": ALL_AT_ONCE,
    "nacrf_transformer": ALL_AT_ONCE,
    "nonautoregressive_transformer": ALL_AT_ONCE,
    "fastspeech2": NO_WORDS,
    "hubert": NO_WORDS,
    "hubert_ctc": NO_WORDS,
    "s2spect_transformer": NO_WORDS,
    "tacotron_2": NO_WORDS,
    "tts_transformer": NO_WORDS,
    "wav2vec": NO_WORDS,
    "wav2vec2": NO_WORDS,
    "wav2vec_ctc": NO_WORDS,
    "convtransformer": SPEECH,
    "s2t_berard": SPEECH,
    "s2t_conformer": SPEECH,
    "s2t_transformer": SPEECH,
    "s2ut_conformer": SPEECH,
    "s2ut_transformer": SPEECH,
    "wav2vec_seq2seq": SPEECH,
    "xm_transformer": SPEECH,
    "model_parallel_transformer": PARALLEL,
    "model_parallel_transformer_lm": PARALLEL,
    "pipeline_parallel_transformer": PARALLEL,
    "fconv": NEITHER,
    "fconv_lm": NEITHER,
    "fconv_self_att": NEITHER,
    "lightconv": NEITHER,
    "lightconv_lm": NEITHER,
    "dummy_model": "the model is a stand-in for timing fairseq itself",
    "hf_gpt2": "the model's output layer belongs to the Hugging Face library",
    "multilingual_transformer": "the model has a decoder for every pair of languages; train a transformer for one pair",
    "roberta_enc_dec": "the model's output layer is that of a pretrained RoBERTa",
    "transformer_from_pretrained_xlm": "the model's output layer is that of a pretrained XLM",
    "transformer_ulm": "the model predicts several streams of units at once",
}


def check_quantization(args: Any) -> None:
    """Refuse scalar quantization noise: fairseq computes it on a GPU only, and would not apply it to sense tables."""
    if getattr(args, "quant_noise_scalar", None):
        refuse(
            "--quant-noise-scalar cannot be used with KerBS or MoS: fairseq quantizes Linear and Embedding "
            "layers, which a table of senses is not, and needs a GPU for it; leave it out, or use --quant-noise-pq"
        )


def check_output_layer(model: nn.Module) -> None:
    """Refuse a model unless it has a decoder whose output layer is one matrix applied to its features."""
    decoder = getattr(model, "decoder", None)
    if decoder is None:
        refuse(f"{type(model).__name__} has no decoder of its own: it has one for every pair of languages, or none")
    layer = getattr(type(decoder), "output_layer", None)
    if layer in (None, FairseqDecoder.output_layer):  # which only raises NotImplementedError
        refuse(
            f"{type(decoder).__name__} has no output_layer(features): its last matrix is part of its forward, and "
            "there is no place where another output layer could stand"
        )
    _, _, *others = inspect.signature(layer).parameters.values()
    needed = [other.name for other in others if other.default is other.empty and other.kind not in (2, 4)]
    if needed:
        refuse(
            f"the output layer of {type(decoder).__name__} also needs {', '.join(needed)}: it mixes its softmax with "
            "something else, such as copies of source words, and KerBS stands in for a plain softmax only"
        )
