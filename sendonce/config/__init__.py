"""sendonce.yaml, environment and defaults, checked before anything runs."""
