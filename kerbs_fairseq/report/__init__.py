"""``kerbs-report``: a page with plots of what a trained model has learned."""
