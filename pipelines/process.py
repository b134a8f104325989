"""What a process that is there to send asks of Python. No Beam."""

import gc

# New objects between two looks of the garbage collector: those of several batches.
COLLECT_AFTER = 50_000


def settle_process() -> None:
    """Once everything is imported: the garbage collector looks less often, and not at what the imports made.

    Beam and what it imports are some half a million objects; looking through them again and again took a twentieth of
    the time of a run. A batch of letters is some ten thousand objects, which are freed without the collector; at
    Python's own threshold of 700 it went through them dozens of times, for a sixth of the time of a job.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)
