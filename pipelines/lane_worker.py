"""The process of some lanes of a live job: a graph of theirs, under orders (`pipelines/lane_process.py`).

    python -m pipelines.lane_worker LANE…        started by a job, not by hand

It answers one JSON object a line: `{"log": [LEVEL, TEXT]}`, `{"begun": true}` before anything may be sent,
`{"restarts": N}` of its graph, `{"fault": [KIND, TEXT]}` for what a person must mend, and
`{"ended": {"handed_back": N, "all_ended": BOOL}}`. It ends when it is told to, or when its input ends: then the job is
gone.
"""

import json
import logging
import os
import signal
import sys
import threading
import traceback
from typing import Any

from pipelines.lane_process import FINAL_FAULTS, FOR_THE_JOB, PASSING_FAULTS
from pipelines.process import settle_process
from pipelines.quiet import errors_kept_back, loading_quietly
from transforms.worker import WorkerSpec

with loading_quietly():
    from pipelines.live_graph import TURN_S, LiveGraph
    from pipelines.local import quiet_beam

LOOK_S = 0.1
_speaking = threading.Lock()
# When the job is gone, nobody says how long to wait for requests in flight.
ALONE_S = 20.0


class _Orders:
    """What the job says, read in a thread of its own."""

    def __init__(self, graph: LiveGraph) -> None:
        self._graph = graph
        self.stop = threading.Event()
        self.patience_s = ALONE_S
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def _read(self) -> None:
        try:
            for line in sys.stdin:
                order = json.loads(line)
                if order == "wake":
                    self._graph.wake()
                    continue
                _, self.patience_s = order
                break
        finally:
            self.stop.set()


class _Told(logging.Handler):
    """Log lines go to the job, whose log they are part of."""

    def emit(self, record: logging.LogRecord) -> None:
        _tell({"log": [record.levelno, self.format(record)]})


def main() -> int:
    """Run the graph until the job says stop. Exit codes: 0 it was stopped, 1 it failed."""
    for number in FOR_THE_JOB:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_JOB)
    said: dict[str, Any] = json.loads(sys.stdin.readline() or "null") or {}
    if not said:
        return 1
    sys.setswitchinterval(TURN_S)
    logging.getLogger().addHandler(_Told())
    quiet_beam()
    settle_process()
    spec = WorkerSpec(**{**said["spec"], "lanes": tuple(said["spec"]["lanes"])})
    try:
        return _run(spec, said["project"])
    except Exception as fault:
        if type(fault).__name__ not in (*FINAL_FAULTS, *PASSING_FAULTS):
            traceback.print_exc()
        _tell({"fault": [type(fault).__name__, str(fault)]})
        return 1


def _run(spec: WorkerSpec, project: str) -> int:
    stop, faults = threading.Event(), list[Exception]()
    graph = LiveGraph(spec, project, stop, faults.append, alone=True)
    orders = _Orders(graph)
    told = 0
    with errors_kept_back() as beams_words:
        try:
            _tell({"begun": True})
            graph.start()
            while not orders.stop.wait(LOOK_S) and not faults:
                if graph.restarts != told:
                    told = graph.restarts
                    _tell({"restarts": told})
        finally:
            stop.set()
            graph.end(orders.patience_s)
        beams_words.clear()
    _tell({"ended": {"handed_back": graph.handed_back, "all_ended": graph.all_ended}})
    if faults:
        raise faults[0]
    return 0


def _tell(answer: dict[str, Any]) -> None:
    """Say it, if anybody hears it: when the job is gone, the work goes on to its end all the same.

    Threads that log speak one after another: two answers on one line would be none.
    """
    try:
        with _speaking:
            print(json.dumps(answer), flush=True)
    except OSError:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Threads that wait for a provider or the store do not keep the process: its patience is over.
    os._exit(code)
