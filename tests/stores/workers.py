"""What other processes do with a store in a test; each function is started in a process of its own, by spawn."""

import os
import threading
from dataclasses import replace
from multiprocessing.connection import Connection

from schemas.tables import Batch, Meta
from sendonce.stores.base import ANY_SHARD, Tx
from sendonce.stores.opening import init_store, open_store, store_key
from tests.stores.made import message


def claim_rounds(url: str, worker: str, rounds: int, report: Connection) -> None:
    """Claims one pending batch a round, reading first and then writing; reports the numbers it claimed."""
    store = open_store(url)

    def claim(tx: Tx) -> int | None:
        found = tx.scan(Batch, ANY_SHARD, "spring", "pending", index="batches_open", limit=1)
        if not found:
            return None
        tx.put(replace(found[0], state="sending", open_state="sending", worker_id=worker, token=found[0].token + 1))
        return found[0].batch_no

    report.send("ready")
    report.recv()
    report.send([store.transact(claim, tag="claim") for _ in range(rounds)])


def write_for_ever(url: str, first: int, rows: int, report: Connection) -> None:
    """Writes a batch's `rows` messages in each transaction, from batch `first` on, until it is killed."""
    store = open_store(url)
    report.send("ready")
    number = first
    while True:
        messages = [message(number * rows + ordinal, batch_no=number) for ordinal in range(rows)]
        store.transact(lambda tx, found=messages: tx.insert(*found), tag="write")
        number += 1


def hold_lock(url: str, report: Connection) -> None:
    """Keeps a write transaction open until it is told to go on or killed; then commits one message."""
    store = open_store(url)

    def work(tx: Tx) -> None:
        tx.insert(message(1))
        report.send(os.getpid())
        report.recv()

    store.transact(work, tag="hold")
    report.send("committed")


def init_and_tell_key(url: str, report: Connection) -> None:
    report.send("ready")
    report.recv()
    report.send(store_key(init_store(url)))


def count_in_threads(url: str, threads: int, times: int, report: Connection) -> None:
    """Adds one to the row `counter` of `meta`, `times` in each thread; reports what each commit made of it."""
    store = open_store(url)
    numbers: list[int] = []

    def add(tx: Tx) -> int:
        found = tx.get(Meta, "counter")
        number = 1 if found is None else int(found.value) + 1
        tx.put(Meta("counter", str(number).encode()))
        return number

    def work() -> None:
        for _ in range(times):
            numbers.append(store.transact(add, tag="count"))

    report.send("ready")
    report.recv()
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    report.send(numbers)
