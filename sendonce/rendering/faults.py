"""What rendering raises when a template, not a recipient, is at fault."""


class TemplateFault(Exception):
    """A template cannot be used: names the template, the place and the mend. Holds nobody's data.

    `path` is relative to the template's folder ("" for the whole template); `line` counts from 1, 0 if there is none.
    """

    def __init__(self, template: str, path: str, line: int, problem: str, mend: str) -> None:
        super().__init__(template, path, line, problem, mend)
        self.template = template
        self.path = path
        self.line = line
        self.problem = problem
        self.mend = mend

    def __str__(self) -> str:
        place = f", {self.path}" if self.path else ""
        if self.line:
            place += f", line {self.line}"
        return f"template {self.template}{place}: {self.problem}; {self.mend}"
