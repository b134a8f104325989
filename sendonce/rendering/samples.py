"""Renders a template with its own examples, in a process of its own that cannot take the machine with it.

The allow-list and the limits of rendering should be enough; this is for what they miss, before anything is sent:
CPU time, memory, file size and time on the wall are bounded by the kernel, and what comes back by a cap.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from sendonce.rendering.catalogue import TemplateSource, source_of
from sendonce.rendering.faults import TemplateFault
from sendonce.rendering.manifest import Manifest, example_variables

if TYPE_CHECKING:
    from sendonce.rendering.render import Compiled

UNSUBSCRIBE_URL: Final = "https://unsubscribe.example/sample"
_OUTPUT_CAP: Final = 1 << 20
_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT")
_CHILD: Final = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from sendonce.rendering.samples import main; main()"
)


class Limits(NamedTuple):
    """What the process may use: CPU seconds, bytes of memory, seconds on the wall."""

    cpu_s: int = 20
    memory: int = 2 << 30
    wall_s: float = 60.0


USUAL: Final = Limits()


@dataclass(frozen=True)
class Sample:
    """One letter to try: a locale, all examples or only what a recipient must bring, and how it went.

    `problem` is "" when there is a letter; then the lengths are of its parts, and `links_out` names the parts
    that hold the link to unsubscribe.
    """

    locale: str
    barest: bool
    problem: str = ""
    subject: int = 0
    text: int = 0
    html: int = 0
    links_out: tuple[str, ...] = ()


def render_samples(source: TemplateSource, manifest: Manifest, limits: Limits = USUAL) -> list[Sample]:
    """Two letters for each locale of the manifest, in order: one with every example, one with the least there can be.

    A letter that ends the process has that as its `problem`; those after it are tried in a new one.
    """
    wanted = wanted_samples(manifest)
    done: list[Sample] = []
    while len(done) < len(wanted):
        came, ending = _run(source, wanted[len(done) :], limits)
        done += came
        if len(done) < len(wanted):
            failed = wanted[len(done)]
            done.append(Sample(failed.locale, failed.barest, ending))
    return done


def wanted_samples(manifest: Manifest) -> list[Sample]:
    """The letters to try, in order."""
    return [Sample(locale, barest) for locale in manifest.locales for barest in (False, True)]


def _run(source: TemplateSource, wanted: Sequence[Sample], limits: Limits) -> tuple[list[Sample], str]:
    job = {
        "name": source.name,
        "files": dict(source.files),
        "limits": list(limits),
        "wanted": [asdict(s) for s in wanted],
    }
    environment = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, json.dumps([os.path.abspath(path) for path in sys.path])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        try:
            out, _ = process.communicate(orjson.dumps(job), timeout=limits.wall_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            return _read(out), f"took longer than {limits.wall_s:g} s"
    if process.returncode:
        return _read(out), f"used more than {limits.cpu_s} s of computing or {limits.memory >> 20} MiB of memory"
    return _read(out), "ended without a letter"


def _read(out: bytes) -> list[Sample]:
    came = []
    for line in out[:_OUTPUT_CAP].splitlines():
        try:
            raw = orjson.loads(line)
            came.append(Sample(**{**raw, "links_out": tuple(raw["links_out"])}))
        except (orjson.JSONDecodeError, TypeError, KeyError):
            break
    return came


def main() -> None:
    """The process: reads a job, bounds itself, renders, writes one line of JSON for each sample."""
    job = orjson.loads(sys.stdin.buffer.read())
    # Imported here and before the bounds: the parent needs no environment, and imports are ours to trust.
    from sendonce.rendering.render import compile_template

    _bound(Limits(*job["limits"]))
    wanted = [Sample(raw["locale"], raw["barest"]) for raw in job["wanted"]]
    try:
        compiled = compile_template(source_of(job["name"], job["files"]))
    except TemplateFault as fault:
        for sample in wanted:
            _write(replace(sample, problem=str(fault)))
        return
    for sample in wanted:
        _write(try_sample(compiled, sample))


def _bound(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def try_sample(compiled: "Compiled", sample: Sample) -> Sample:
    """The sample with what came of it. For the process: it renders where it is called."""
    from sendonce.rendering.render import Addressee, render_batch

    variables = example_variables(compiled.manifest, required_only=sample.barest)
    addressee = Addressee(
        ordinal=0,
        message_id="sample",
        recipient_id="sample-1",
        to="sample@mailbox.example",
        locale=sample.locale,
        timezone=compiled.manifest.default_timezone,
        variables=orjson.dumps(variables).decode(),
        unsubscribe_url=UNSUBSCRIBE_URL,
    )
    letters = render_batch(compiled, [addressee], campaign_id="sample", from_address="sample@shop.example", reply_to="")
    if letters.refusals:
        return replace(sample, problem=letters.refusals[0].detail)
    subject, text, html = letters.texts(letters.letters[0])
    found = [part for part, body in (("text", text), ("html", html)) if UNSUBSCRIBE_URL in body]
    return replace(sample, subject=len(subject), text=len(text), html=len(html), links_out=tuple(found))


def _write(sample: Sample) -> None:
    sys.stdout.buffer.write(orjson.dumps(asdict(sample)) + b"\n")
    sys.stdout.buffer.flush()
