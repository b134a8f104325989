"""Beam transforms: thin, the rules live in `sendonce`."""
