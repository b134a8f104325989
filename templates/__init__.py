"""The templates that ship with Sendonce: one folder each. Data; nothing here is imported."""
