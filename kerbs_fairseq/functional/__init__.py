"""Mathematics: pure functions of tensors. No state, no options object, no fairseq."""

from kerbs_fairseq import requirements

requirements.require("torch")
