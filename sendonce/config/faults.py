"""What is wrong with a configuration, where, and how to mend it."""


class ConfigFault(Exception):
    """A configuration that cannot be used. Each problem is one line: place, problem, mend."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
