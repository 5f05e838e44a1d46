"""From the files of a corpus's owner to text that fairseq-preprocess takes: formats, splits, subwords."""
