"""``kerbs-report``: an HTML page with plots of a trained model."""
