"""Python imports this first in every process that finds this folder on its path: those which the kill test starts with
`--bug`. So a `sendonce` process, and whatever it starts, has the bug; nothing that ships knows of it.
"""

import os
from contextlib import ExitStack

from tests.bugs import bug

_FOR_EVER = ExitStack()
_FOR_EVER.enter_context(bug(os.environ["CHAOS_BUG"]))
