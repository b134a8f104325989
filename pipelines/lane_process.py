"""Some lanes of a live job in a process of their own, which the job starts, wakes, looks after and ends.

Python computes in one thread at a time, so what renders newsletters would hold up one-time codes in the same process,
and could use no second CPU. The process is one more owner on the store, like any other job: whatever happens to it, its
batches are found by their leases.

It reads orders on its standard input, one JSON value a line: first its spec, then `"wake"`, and at last
`["stop", SECONDS]`. It answers on its standard output, see `pipelines/lane_worker.py`. When the job dies, however it
dies, the input ends, and the process stops as it would when told to.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pipelines.private_topic import tick_topic
from sendonce.config import ConfigFault
from sendonce.control.faults import JobFault
from sendonce.failpoints import VARIABLE
from sendonce.stores.base import NoStore, StoreRefused, StoreUnavailable
from transforms.worker import WorkerSpec

_log = logging.getLogger(__name__)

# What the process may report as final, by name: a person must mend it, and the whole job ends with it.
FINAL_FAULTS = {kind.__name__: kind for kind in (ConfigFault, JobFault, StoreRefused)}
# The job had opened it before: nobody named a wrong store.
FINAL_FAULTS[NoStore.__name__] = StoreRefused
# What it may report as passing: it is started again, as after its death.
PASSING_FAULTS = (StoreUnavailable.__name__,)
# Signals that are for the job, which ends the process in its turn. From its first moment: whoever stops a service tells
# each of its processes, and one that Python has hardly begun to run would die of that.
FOR_THE_JOB = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How soon it is started again after its end, twice as late each time that it did not live long.
AGAIN_S = 1.0
AGAIN_MOST_S = 30.0
LIVED_S = 60.0
# Wake-ups travel at most so often.
WAKES_S = 0.02


class LaneProcess:
    """The process of some lanes of a live job, as often as it has to be started. Used as a `LiveGraph` is.

    on_fault: told, once, of what no new start mends. restarts counts new starts of the process, and of the graph in
    it. A process that dies is started again, without the failpoints of the job's environment: they are the first one's.
    """

    def __init__(self, spec: WorkerSpec, project: str, stop: threading.Event, on_fault: Callable[[Exception], None]):
        self.lanes = tuple(spec.lanes)
        self.topic = tick_topic(project, spec.job_id, spec.lanes)
        self.handed_back = 0
        self.all_ended = True
        self._name = " and ".join(self.lanes)
        self._first_line = json.dumps({"project": project, "spec": asdict(spec)})
        self._stop = stop
        self._on_fault = on_fault
        self._process: subprocess.Popen[str] | None = None
        self._writing = threading.Lock()
        self._asked = threading.Event()
        self._begun = self._over = False
        self._starts = 0
        self._restarts_before = self._restarts_now = 0
        self._thread = threading.Thread(target=self._run, name=f"process-{self.lanes[0]}", daemon=True)

    @property
    def restarts(self) -> int:
        return max(0, self._starts - 1) + self._restarts_before + self._restarts_now

    @property
    def pid(self) -> int | None:
        """Its process id; None when it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Begin. Returns at once."""
        self._thread.start()
        threading.Thread(target=self._pass_wakes_on, name=f"wakes-{self.lanes[0]}", daemon=True).start()

    def wake(self) -> None:
        """Something may be to be done. Cheap; from any thread."""
        self._asked.set()

    def end(self, patience_s: float) -> None:
        """After `stop` is set: let the process end what is in flight and hand back the rest, at most for so long.

        all_ended is False if requests were still in flight when the patience ended, or if nobody knows.
        """
        until_s = time.monotonic() + patience_s
        if self._thread.ident is None:
            return
        self.all_ended = not self._begun
        # One that does not read may have a full pipe, and then an order waits for as long as it lives.
        order = ["stop", max(1.0, patience_s - 1.0)]
        threading.Thread(target=self._order, args=(order,), name=f"stop-{self.lanes[0]}", daemon=True).start()
        self._thread.join(max(0.0, until_s - time.monotonic()))
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_JOB)  # of this thread alone; a new process inherits it
        again_s = AGAIN_S
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                ended = self._one_process()
            except OSError as fault:  # no memory, too many processes or files: that passes
                ended = f"could not be started ({fault.strerror or fault})"
            if self._stop.is_set() or self._over:
                return
            again_s = AGAIN_S if time.monotonic() - began_s > LIVED_S else min(AGAIN_MOST_S, 2 * again_s)
            _log.warning("the process of %s lanes %s; it is started again in %g s", self._name, ended, again_s)
            self._restarts_before += self._restarts_now
            self._restarts_now = 0
            self._stop.wait(again_s)

    def _one_process(self) -> str:
        """Run it to its end; says in words how it ended."""
        environment = dict(os.environ)
        if self._starts:
            environment.pop(VARIABLE, None)
        self._starts += 1
        self._begun = False
        process = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            process_group=0,  # Ctrl-C is for the job, which ends this one in its turn
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it has ended already
            process.stdin.write(self._first_line + "\n")
            process.stdin.flush()
        with self._writing:
            self._process = process
        if self._stop.is_set():  # `end` may have come just before there was anybody to tell
            self._order(["stop", 1.0])
        with process.stdout:
            for line in process.stdout:
                self._hear(line)
        code = process.wait()
        self._begun = False  # what it had in flight ended with it
        return _how(code)

    def _command(self) -> list[str]:
        return [sys.executable, *_safe_path(), "-m", "pipelines.lane_worker", *self.lanes]

    def _hear(self, line: str) -> None:
        try:
            said: Any = json.loads(line)
        except json.JSONDecodeError:
            return  # what some library prints is no answer
        if not isinstance(said, dict):
            return
        if "log" in said:
            level, words = said["log"]
            _log.log(level, "%s", words)
        elif "begun" in said:
            self._begun = True
        elif "restarts" in said:
            self._restarts_now = said["restarts"]
        elif "fault" in said:
            kind, words = said["fault"]
            if kind in PASSING_FAULTS:
                _log.warning("%s lanes: %s", self._name, words)
                return
            self._over = True
            self._on_fault(_fault(self._name, kind, words))
        elif "ended" in said:
            self.handed_back += said["ended"]["handed_back"]
            self.all_ended = said["ended"]["all_ended"]

    def _pass_wakes_on(self) -> None:
        """In a thread of its own: a process that does not read must not hold up who wakes it."""
        while not self._stop.is_set():
            if self._asked.wait(1.0):
                self._asked.clear()
                self._order("wake")  # before its graph is there it finds what is due by itself
                self._stop.wait(WAKES_S)

    def _order(self, order: Any) -> None:
        with self._writing:
            process = self._process
            if process is None or process.stdin is None:
                return
            with contextlib.suppress(OSError, ValueError):  # it has ended, or ends
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()


def _safe_path() -> list[str]:
    """Python's option not to look for modules in the working folder, unless the job itself does: a folder there that
    is called `pipelines`, as many are, would be taken for ours."""
    with contextlib.suppress(OSError):  # a folder that was removed
        if {"", os.getcwd()} & set(sys.path):
            return []
    return ["-P"]


def _fault(lanes: str, kind: str, words: str) -> Exception:
    if kind in FINAL_FAULTS:
        return FINAL_FAULTS[kind](words)
    return JobFault(f"the process of {lanes} lanes failed with {kind}; what it said stands above")


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
