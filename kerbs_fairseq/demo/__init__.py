"""The demo: a made-up world in which the senses of every word are known, and the commands that learn it."""
