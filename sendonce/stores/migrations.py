"""The steps from each schema version to the next, and what a release says to a store of another version."""

from pathlib import Path
from typing import Final, NamedTuple

from schemas.tables import SCHEMA_VERSION
from sendonce.stores.base import StoreRefused


class Migration(NamedTuple):
    """Brings a store to schema `version` from the one before. Statements run in order; on SQLite in one transaction,
    on Spanner each so that it may run again."""

    version: int
    sqlite: tuple[str, ...]
    spanner: tuple[str, ...] = ()


# A new step goes to the end; a released one never changes.
MIGRATIONS: Final[tuple[Migration, ...]] = (
    Migration(
        version=2,
        sqlite=(
            'ALTER TABLE "templates" ADD COLUMN "sends_since" INTEGER',
            'CREATE INDEX "templates_for_sends" ON "templates" ("name", "sends_since") WHERE "sends_since" IS NOT NULL',
            'ALTER TABLE "campaign_batches" ADD COLUMN "idempotency_key" TEXT',
            'CREATE INDEX "batches_expiring" ON "campaign_batches" ("shard", "campaign_id", "open_state", '
            '"expires_at") WHERE "open_state" IS NOT NULL AND "expires_at" IS NOT NULL',
            'ALTER TABLE "idempotency_keys" ADD COLUMN "shard" INTEGER',
            'CREATE INDEX "keys_by_time" ON "idempotency_keys" ("shard", "created_at")',
            'CREATE INDEX "dead_letters_by_end" ON "dead_letters" ("expires_at") WHERE "expires_at" IS NOT NULL',
            # Rows without a body had no end: 90 days from now on.
            """UPDATE "dead_letters" SET "expires_at" = (CAST(strftime('%s', 'now') AS INTEGER) + 7776000) * 1000000
            WHERE "expires_at" IS NULL""",
            'CREATE TABLE "notices" ("shard" INTEGER NOT NULL, "notice_id" TEXT NOT NULL, "kind" TEXT NOT NULL, '
            '"visible_at" INTEGER NOT NULL, "created_at" INTEGER NOT NULL, "attributes" TEXT NOT NULL, '
            '"body" TEXT NOT NULL, PRIMARY KEY ("shard", "notice_id")) WITHOUT ROWID',
            'CREATE INDEX "notices_due" ON "notices" ("shard", "kind", "visible_at")',
        ),
        spanner=(
            "ALTER TABLE `templates` ADD COLUMN IF NOT EXISTS `sends_since` TIMESTAMP "
            "OPTIONS (allow_commit_timestamp = true)",
            "CREATE NULL_FILTERED INDEX IF NOT EXISTS `templates_for_sends` ON `templates` (`name`, `sends_since`)",
            "ALTER TABLE `campaign_batches` ADD COLUMN IF NOT EXISTS `idempotency_key` STRING(256)",
            "CREATE NULL_FILTERED INDEX IF NOT EXISTS `batches_expiring` ON `campaign_batches` "
            "(`shard`, `campaign_id`, `open_state`, `expires_at`)",
            "ALTER TABLE `idempotency_keys` ADD COLUMN IF NOT EXISTS `shard` INT64",
            "CREATE INDEX IF NOT EXISTS `keys_by_time` ON `idempotency_keys` (`shard`, `created_at`)",
            "CREATE NULL_FILTERED INDEX IF NOT EXISTS `dead_letters_by_end` ON `dead_letters` (`expires_at`)",
            "CREATE TABLE IF NOT EXISTS `notices` (`shard` INT64 NOT NULL, `notice_id` STRING(64) NOT NULL, "
            "`kind` STRING(64) NOT NULL, `visible_at` TIMESTAMP NOT NULL, "
            "`created_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true), "
            "`body` STRING(2621440) NOT NULL, `attributes` STRING(4096) NOT NULL) PRIMARY KEY (`shard`, `notice_id`)",
            "CREATE INDEX IF NOT EXISTS `notices_due` ON `notices` (`shard`, `kind`, `visible_at`)",
        ),
    ),
    Migration(
        version=3,
        sqlite=(
            'CREATE TABLE "doubts_aside" ("shard" INTEGER NOT NULL, "campaign_id" TEXT NOT NULL, "batch_no" '
            'INTEGER NOT NULL, "attempt_id" TEXT NOT NULL, "state" TEXT NOT NULL, "payload_hash" TEXT NOT '
            'NULL, "provider" TEXT NOT NULL, "intent_at" INTEGER NOT NULL, "permit_at" INTEGER NOT NULL, '
            '"doubt_since" INTEGER NOT NULL, "provider_ref" TEXT, "wait_reason" TEXT, "ordinals" BLOB NOT '
            'NULL, PRIMARY KEY ("shard", "campaign_id", "batch_no", "attempt_id")) WITHOUT ROWID',
        ),
        spanner=(
            "CREATE TABLE IF NOT EXISTS `doubts_aside` (`shard` INT64 NOT NULL, `campaign_id` STRING(256) "
            "NOT NULL, `batch_no` INT64 NOT NULL, `attempt_id` STRING(64) NOT NULL, `state` STRING(64) NOT "
            "NULL, `ordinals` BYTES(65536) NOT NULL, `payload_hash` STRING(64) NOT NULL, `provider` "
            "STRING(64) NOT NULL, `intent_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true), "
            "`permit_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true), `doubt_since` TIMESTAMP "
            "NOT NULL OPTIONS (allow_commit_timestamp = true), `provider_ref` STRING(256), `wait_reason` "
            "STRING(64)) PRIMARY KEY (`shard`, `campaign_id`, `batch_no`, `attempt_id`)",
        ),
    ),
)


def fact_number(name: str, value: bytes | str | int, path: Path | str) -> int:
    """A whole number of the store's own, from `meta`. StoreRefused for one that is damaged."""
    try:
        return int(value)
    except (ValueError, TypeError):
        raise StoreRefused(f"store {path}: its {name} is damaged; restore the store from a backup") from None


def check_version(found: int, path: Path | str) -> None:
    """StoreRefused unless the store at `path` has the schema version that this release works with."""
    check_not_newer(found, path)
    if found < SCHEMA_VERSION:
        raise StoreRefused(
            f"store {path} has schema version {found}, but this release of sendonce works with {SCHEMA_VERSION}; "
            "stop the jobs that use the store, then run `sendonce migrate`"
        )


def check_not_newer(found: int, path: Path | str) -> None:
    """StoreRefused if a newer release has made or migrated the store at `path`."""
    if found > SCHEMA_VERSION:
        raise StoreRefused(
            f"store {path} has schema version {found}, but this release of sendonce knows versions up to "
            f"{SCHEMA_VERSION}; upgrade sendonce"
        )


def next_step(found: int) -> Migration | None:
    """The step that follows schema version `found`, or None if the store is up to date."""
    if found >= SCHEMA_VERSION:
        return None
    return next(step for step in MIGRATIONS if step.version == found + 1)
