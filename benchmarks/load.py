"""How fast a list becomes a sealed snapshot, and in how much memory: `python -m benchmarks.load --rows 1000000`.

Everything that `sendonce load` does, in one process, into a new SQLite store in a temporary folder; the list is the
demo's. Prints one JSON object: rows, file_mb, seconds (wall), cpu_seconds, rows_per_s, rows_per_cpu_s, peak_mb.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from sendonce.control.load import LoadOptions, load
from sendonce.control.sample import write_sample
from sendonce.rendering.catalogue import find_template
from sendonce.stores.opening import init_store


def measure(rows: int, folder: Path) -> dict[str, float]:
    path = folder / "list.csv"
    write_sample(path, rows)
    store = init_store(f"sqlite:///{folder}/store.db")
    options = LoadOptions(from_address="Shop <news@shop.example>", rejects_folder=folder)
    wall, cpu = time.perf_counter(), time.process_time()
    report = load(
        store, campaign_id="bench", path=path, template=find_template("newsletter"), options=options, by="benchmark"
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "rows": report.rows_read,
        "file_mb": round(path.stat().st_size / 1e6, 1),
        "seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 2),
        "rows_per_s": round(report.rows_read / wall),
        "rows_per_cpu_s": round(report.rows_read / cpu),
        "peak_mb": round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(parser.parse_args().rows, Path(folder))))


if __name__ == "__main__":
    main()
