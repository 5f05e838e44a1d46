"""Names in the state dict of a model: what the modules save, and the tools read.

They are used as ``state_names.RATIO``. Changing a value breaks all saved checkpoints.
"""

# --- the parts of a KerBS layer, in the order of a name: decoder.head.senses.vectors
HEAD, SENSES, STATISTICS = "head.", "senses.", "statistics."

# --- the sense table
VECTORS, THETA, BIAS = PARAMETERS = ("vectors", "theta_raw", "bias_raw")  # one row per sense
MAP = "sense_to_word"
KERNEL = "kernel_id"
INITIAL = "initial_senses"
VOCABULARY = "vocabulary"
RATIO = "ratio"
RATES = "rates"
CHECKSUM = "map_checksum"
UNIT = 1_000_000  # RATIO and RATES are saved as integers in this unit: half precision would round floats

# --- the statistics
LOG_ACCURACY, USAGE = MOVING = ("log_accuracy", "usage")  # over all updates, with decay
TOKENS, PROB, NLL, SENSE_PROB = RECENT = ("tokens", "prob", "nll", "sense_prob")  # since the last event
DECAY, UPDATES, MOVES = "decay", "updates", "moves"

# --- the decoder's input, and what follows HEAD in a mixture of softmaxes
EMBEDDING = "embed_tokens."
CHOICE = "choice_id"
LATENT, PRIOR = "latent.weight", "prior."
