"""Convert corpora as published to text for fairseq-preprocess: formats, splits, subwords."""
