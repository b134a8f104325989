"""For tools that still look for it (Beam's --setup_file): everything real is in pyproject.toml."""

from setuptools import setup

setup()
