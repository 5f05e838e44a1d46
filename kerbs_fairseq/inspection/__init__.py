"""Tools: the commands that a person runs beside fairseq's own."""
