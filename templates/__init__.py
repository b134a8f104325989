"""Email templates that ship with Sendonce: data, read through importlib.resources.

A package, so that a bare folder of the same name elsewhere on the path cannot mix with it.
"""
