"""The demo: a synthetic corpus in which the senses of every word are known, and commands that train on it."""
