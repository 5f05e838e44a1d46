"""``kerbs-inspect``: what a trained KerBS model has learned."""
