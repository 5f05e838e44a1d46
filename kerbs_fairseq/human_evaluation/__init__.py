"""``kerbs-rate``: human evaluation with blinded rating sheets, and its statistics."""
