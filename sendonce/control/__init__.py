"""What people and triggers ask for: load, submit, pause, resume, cancel; one function each."""
