"""I1, the outcomes add up, and I11, everything ends."""

from collections import Counter
from collections.abc import Iterator

from schemas import ordinals
from schemas.outcomes import KIND_OF, KINDS, Outcome
from schemas.tables import Batch, Progress
from tests.checker.case import UNFINISHED, Case, Place, Violation, name_of

NOT_FINAL = (Outcome.OPEN, Outcome.IN_DOUBT)


def add_up(case: Case) -> Iterator[Violation]:
    for (campaign_id, batch_no), batch in case.batches.items():
        where = f"{campaign_id} batch {batch_no}"
        yield from _batch_adds_up(where, batch, case.sizes[campaign_id, batch_no])
        yield from _doubts_can_end(where, batch, case)
    yield from _campaigns_add_up(case)
    yield from _progress_adds_up(case)
    for message, row in case.messages.items():
        if row.campaign_id in case.campaigns and message not in case.place_of:
            yield Violation("I1", f"{row.campaign_id} message {message}", "a message row for nobody in the snapshot")


def _batch_adds_up(where: str, batch: Batch, in_snapshot: int) -> Iterator[Violation]:
    if not len(batch.outcomes) == batch.size == in_snapshot:
        yield Violation(
            "I1", where, f"size {batch.size}, {len(batch.outcomes)} outcomes, {in_snapshot} recipients in the snapshot"
        )
    counted = Counter(KIND_OF.get(code, "unknown") for code in batch.outcomes)
    stored = {kind: getattr(batch, f"n_{kind}") for kind in KINDS}
    if stored != {kind: counted[kind] for kind in KINDS}:
        yield Violation("I1", where, f"counts {stored} do not tally with outcomes {dict(counted)}")
    if batch.open_state != (batch.state if batch.state in UNFINISHED else None):
        yield Violation("I1", where, f"state {batch.state} with open_state {batch.open_state}")
    if batch.state not in UNFINISHED and counted["open"] + counted["in_doubt"]:
        yield Violation(
            "I1", where, f"{batch.state}, but {counted['open'] + counted['in_doubt']} outcomes are not final"
        )


def _doubts_can_end(where: str, batch: Batch, case: Case) -> Iterator[Violation]:
    """Whoever is in doubt is so by a request that could settle it; a request beside a batch has somebody in doubt."""
    key = (batch.campaign_id, batch.batch_no)
    doubted = {ordinal for ordinal, code in enumerate(batch.outcomes) if code == Outcome.IN_DOUBT}
    covered = {ordinal for intent in case.open_intents(key) for ordinal in ordinals.unpack(intent.ordinals)}
    if left := doubted - covered:
        yield Violation("I1", where, f"{len(left)} in doubt, but no request that could settle it")
    for row in case.aside.get(key, ()):
        if not doubted.intersection(ordinals.unpack(row.ordinals)):
            yield Violation("I1", where, f"attempt {row.attempt_id} stands beside it, but nobody is in doubt by it")
    if doubted and batch.state in ("in_doubt", "held") and batch.attempt_id is None:
        yield Violation("I1", where, f"{batch.state}, but no request that could settle it")


def _campaigns_add_up(case: Case) -> Iterator[Violation]:
    batches = Counter(campaign_id for campaign_id, _ in case.batches)
    recipients = Counter(place[0] for place in case.recipient)
    not_final = Counter(place[0] for place in case.recipient if case.outcome.get(place, Outcome.OPEN) in NOT_FINAL)
    for campaign_id, campaign in case.campaigns.items():
        found = (recipients[campaign_id], batches[campaign_id])
        if campaign.kind != "stream" and (campaign.recipients, campaign.batches) != found:
            yield Violation(
                "I1",
                campaign_id,
                f"says {campaign.recipients} recipients in {campaign.batches} batches, the snapshot has "
                f"{found[0]} in {found[1]}",
            )
        if campaign.state in ("completed", "cancelled") and not_final[campaign_id]:
            yield Violation(
                "I1", campaign_id, f"{campaign.state}, but {not_final[campaign_id]} recipients have no final outcome"
            )


def _progress_adds_up(case: Case) -> Iterator[Violation]:
    """Progress lags behind, by design, until its campaign has ended."""
    for progress in case.records.of(Progress):
        campaign = case.campaigns.get(progress.campaign_id)
        if campaign is None or campaign.state not in ("completed", "cancelled"):
            continue
        mine = [batch for batch in case.batches.values() if batch.campaign_id == progress.campaign_id]
        sums = {kind: sum(getattr(batch, f"n_{kind}") for batch in mine) for kind in KINDS}
        if {kind: getattr(progress, f"n_{kind}") for kind in KINDS} != sums:
            yield Violation("I1", progress.campaign_id, f"its progress is not the sum over its batches, {sums}")


def one_for_each_recipient(case: Case) -> Iterator[Violation]:
    """Each recipient has one outcome byte that means something, and one outbound row that says the same."""
    for place in case.recipient:
        if problem := _problem(case, place):
            yield Violation("I1", name_of(place), problem, "unaccounted")


def _problem(case: Case, place: Place) -> str:
    code = case.outcome.get(place)
    row = case.messages.get(case.message_id[place])
    if code is None:
        return "no batch holds an outcome for this recipient"
    if code not in KIND_OF:
        return f"outcome {code} means nothing"
    if code in NOT_FINAL:
        batch = case.batches[place[:2]]
        if batch.state not in UNFINISHED:
            return f"{KIND_OF[code]} in a batch that is over"
        if row:
            return f"{KIND_OF[code]}, but its message is final: {KIND_OF.get(row.outcome, row.outcome)}"
        return ""
    if row is None:
        return f"{KIND_OF[code]}, but no message row says so" if case.logs_rows(case.campaigns[place[0]]) else ""
    if (row.campaign_id, row.batch_no, row.ordinal) != place:
        return f"its message row stands for batch {row.batch_no} ordinal {row.ordinal}"
    return "" if row.outcome == code else f"outcome {code}, but its message row says {row.outcome}"


def everything_ended(case: Case) -> Iterator[Violation]:
    """For a run that says it is over: batches that still wait for something, campaigns that do not say so.

    A batch that is held waits for a person, and so does its campaign.
    """
    unfinished: set[str] = set()
    for (campaign_id, batch_no), batch in case.batches.items():
        if batch.state in UNFINISHED:
            unfinished.add(campaign_id)
            if batch.state != "held":
                yield Violation("I11", f"{campaign_id} batch {batch_no}", f"the run is over, but it is {batch.state}")
    for campaign_id, campaign in case.campaigns.items():
        if campaign.kind != "stream" and campaign.state in ("running", "cancelling") and campaign_id not in unfinished:
            yield Violation("I11", campaign_id, f"every batch is over, but the campaign is still {campaign.state}")
