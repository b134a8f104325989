"""What crosses a boundary: outcomes, tables, element types, triggers. No Beam here, and nothing of ours is imported."""
