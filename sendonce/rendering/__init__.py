"""From a template and recipients to letters, packed as form letters where that is safe."""
