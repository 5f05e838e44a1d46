"""Console commands that belong to no other package."""
