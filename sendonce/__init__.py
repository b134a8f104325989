"""Sendonce: email campaigns to millions, every recipient in exactly one recorded outcome."""

__version__ = "0.1.0"
