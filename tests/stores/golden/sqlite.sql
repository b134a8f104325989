CREATE TABLE "meta" (
  "name" TEXT NOT NULL,
  "value" BLOB NOT NULL,
  PRIMARY KEY ("name")
) WITHOUT ROWID;

CREATE TABLE "campaigns" (
  "campaign_id" TEXT NOT NULL,
  "kind" TEXT NOT NULL,
  "state" TEXT NOT NULL,
  "priority" TEXT NOT NULL,
  "sender" TEXT NOT NULL,
  "from_address" TEXT NOT NULL,
  "template" TEXT NOT NULL,
  "template_hash" TEXT NOT NULL,
  "snapshot_hash" TEXT NOT NULL,
  "recipients" INTEGER NOT NULL,
  "batches" INTEGER NOT NULL,
  "created_at" INTEGER NOT NULL,
  "created_by" TEXT NOT NULL,
  "changed_at" INTEGER NOT NULL,
  "changed_by" TEXT NOT NULL,
  "seq" INTEGER,
  "state_reason" TEXT,
  "sealed_at" INTEGER,
  "started_at" INTEGER,
  "finished_at" INTEGER,
  "options" TEXT NOT NULL,
  PRIMARY KEY ("campaign_id")
) WITHOUT ROWID;

CREATE INDEX "campaigns_by_state" ON "campaigns" ("state", "campaign_id");

CREATE TABLE "templates" (
  "template_hash" TEXT NOT NULL,
  "name" TEXT NOT NULL,
  "pushed_at" INTEGER NOT NULL,
  "pushed_by" TEXT NOT NULL,
  "sends_since" INTEGER,
  "files" BLOB NOT NULL,
  PRIMARY KEY ("template_hash")
) WITHOUT ROWID;

CREATE INDEX "templates_by_name" ON "templates" ("name", "pushed_at");

CREATE INDEX "templates_for_sends" ON "templates" ("name", "sends_since") WHERE "sends_since" IS NOT NULL;

CREATE TABLE "campaign_recipients_snapshot" (
  "shard" INTEGER NOT NULL,
  "campaign_id" TEXT NOT NULL,
  "batch_no" INTEGER NOT NULL,
  "ordinal" INTEGER NOT NULL,
  "recipient_id" TEXT NOT NULL,
  "email" TEXT NOT NULL,
  "address_key" TEXT NOT NULL,
  "locale" TEXT NOT NULL,
  "timezone" TEXT NOT NULL,
  "template_variables" TEXT NOT NULL,
  PRIMARY KEY ("shard", "campaign_id", "batch_no", "ordinal")
) WITHOUT ROWID;

CREATE UNIQUE INDEX "snapshot_by_recipient" ON "campaign_recipients_snapshot" ("campaign_id", "recipient_id");

CREATE TABLE "campaign_batches" (
  "shard" INTEGER NOT NULL,
  "campaign_id" TEXT NOT NULL,
  "batch_no" INTEGER NOT NULL,
  "size" INTEGER NOT NULL,
  "timezone" TEXT NOT NULL,
  "state" TEXT NOT NULL,
  "open_state" TEXT,
  "due_at" INTEGER NOT NULL,
  "visible_at" INTEGER,
  "plan_no" INTEGER NOT NULL,
  "token" INTEGER NOT NULL,
  "round" INTEGER NOT NULL,
  "tries" INTEGER NOT NULL,
  "worker_id" TEXT,
  "claimed_at" INTEGER,
  "heartbeat_at" INTEGER,
  "lease_s" REAL,
  "wait_reason" TEXT,
  "template_hash" TEXT,
  "expires_at" INTEGER,
  "attempt_id" TEXT,
  "intent_at" INTEGER,
  "payload_hash" TEXT,
  "provider" TEXT,
  "provider_ref" TEXT,
  "doubt_since" INTEGER,
  "n_open" INTEGER NOT NULL,
  "n_in_doubt" INTEGER NOT NULL,
  "n_accepted" INTEGER NOT NULL,
  "n_refused" INTEGER NOT NULL,
  "n_skipped" INTEGER NOT NULL,
  "n_suppressed" INTEGER NOT NULL,
  "n_cancelled" INTEGER NOT NULL,
  "n_assumed" INTEGER NOT NULL,
  "finished_at" INTEGER,
  "permit_at" INTEGER,
  "idempotency_key" TEXT,
  "outcomes" BLOB NOT NULL,
  "intent_ordinals" BLOB,
  PRIMARY KEY ("shard", "campaign_id", "batch_no")
) WITHOUT ROWID;

CREATE INDEX "batches_open" ON "campaign_batches" ("shard", "campaign_id", "open_state", "due_at") WHERE "open_state" IS NOT NULL;

CREATE INDEX "batches_expiring" ON "campaign_batches" ("shard", "campaign_id", "open_state", "expires_at") WHERE "open_state" IS NOT NULL AND "expires_at" IS NOT NULL;

CREATE TABLE "doubts_aside" (
  "shard" INTEGER NOT NULL,
  "campaign_id" TEXT NOT NULL,
  "batch_no" INTEGER NOT NULL,
  "attempt_id" TEXT NOT NULL,
  "state" TEXT NOT NULL,
  "payload_hash" TEXT NOT NULL,
  "provider" TEXT NOT NULL,
  "intent_at" INTEGER NOT NULL,
  "permit_at" INTEGER NOT NULL,
  "doubt_since" INTEGER NOT NULL,
  "provider_ref" TEXT,
  "wait_reason" TEXT,
  "ordinals" BLOB NOT NULL,
  PRIMARY KEY ("shard", "campaign_id", "batch_no", "attempt_id")
) WITHOUT ROWID;

CREATE TABLE "batch_attempts" (
  "shard" INTEGER NOT NULL,
  "campaign_id" TEXT NOT NULL,
  "batch_no" INTEGER NOT NULL,
  "attempt_id" TEXT NOT NULL,
  "token" INTEGER NOT NULL,
  "worker_id" TEXT NOT NULL,
  "provider" TEXT NOT NULL,
  "payload_hash" TEXT NOT NULL,
  "verdict" TEXT NOT NULL,
  "started_at" INTEGER NOT NULL,
  "finished_at" INTEGER NOT NULL,
  "evidence" INTEGER NOT NULL,
  "reason" TEXT,
  "provider_ref" TEXT,
  "ordinals" BLOB NOT NULL,
  "outcomes" BLOB,
  PRIMARY KEY ("shard", "campaign_id", "batch_no", "attempt_id")
) WITHOUT ROWID;

CREATE TABLE "outbound_messages" (
  "message_id" TEXT NOT NULL,
  "campaign_id" TEXT NOT NULL,
  "batch_no" INTEGER NOT NULL,
  "ordinal" INTEGER NOT NULL,
  "outcome" INTEGER NOT NULL,
  "at" INTEGER NOT NULL,
  "attempt_id" TEXT,
  "provider" TEXT,
  "provider_ref" TEXT,
  "detail" TEXT,
  PRIMARY KEY ("message_id")
) WITHOUT ROWID;

CREATE INDEX "outbound_by_campaign" ON "outbound_messages" ("campaign_id", "batch_no", "ordinal");

CREATE TABLE "limits" (
  "scope" TEXT NOT NULL,
  "name" TEXT NOT NULL,
  "kind" TEXT NOT NULL,
  "per_s" REAL NOT NULL,
  "burst" INTEGER NOT NULL,
  "most" INTEGER NOT NULL,
  "window_s" REAL NOT NULL,
  "level" REAL,
  "level_at" INTEGER,
  "slow" REAL NOT NULL,
  "slow_at" INTEGER,
  "stripes" INTEGER NOT NULL,
  "starts_at" INTEGER,
  "plan" TEXT,
  PRIMARY KEY ("scope", "name")
) WITHOUT ROWID;

CREATE TABLE "send_permits" (
  "scope" TEXT NOT NULL,
  "granted_at" INTEGER NOT NULL,
  "attempt_id" TEXT NOT NULL,
  "n" INTEGER NOT NULL,
  "used_by" INTEGER NOT NULL,
  PRIMARY KEY ("scope", "granted_at", "attempt_id")
) WITHOUT ROWID;

CREATE INDEX "permits_by_use" ON "send_permits" ("scope", "used_by");

CREATE TABLE "idempotency_keys" (
  "key_hash" TEXT NOT NULL,
  "body_hash" TEXT NOT NULL,
  "campaign_id" TEXT NOT NULL,
  "batch_no" INTEGER NOT NULL,
  "created_at" INTEGER NOT NULL,
  "shard" INTEGER,
  PRIMARY KEY ("key_hash")
) WITHOUT ROWID;

CREATE INDEX "keys_by_time" ON "idempotency_keys" ("shard", "created_at");

CREATE TABLE "suppressions" (
  "address_key" TEXT NOT NULL,
  "list_name" TEXT NOT NULL,
  "outcome" INTEGER NOT NULL,
  "created_at" INTEGER NOT NULL,
  "created_by" TEXT NOT NULL,
  "source" TEXT NOT NULL,
  "campaign_id" TEXT,
  "note" TEXT,
  PRIMARY KEY ("address_key", "list_name")
) WITHOUT ROWID;

CREATE INDEX "suppressions_by_time" ON "suppressions" ("created_at");

CREATE TABLE "delivery_events" (
  "event_id" TEXT NOT NULL,
  "provider" TEXT NOT NULL,
  "kind" TEXT NOT NULL,
  "at" INTEGER NOT NULL,
  "received_at" INTEGER NOT NULL,
  "message_id" TEXT,
  "attempt_id" TEXT,
  "provider_ref" TEXT,
  "body" TEXT NOT NULL,
  PRIMARY KEY ("event_id")
) WITHOUT ROWID;

CREATE INDEX "events_by_attempt" ON "delivery_events" ("attempt_id") WHERE "attempt_id" IS NOT NULL;

CREATE INDEX "events_by_message" ON "delivery_events" ("message_id") WHERE "message_id" IS NOT NULL;

CREATE TABLE "campaign_progress" (
  "campaign_id" TEXT NOT NULL,
  "at" INTEGER NOT NULL,
  "total" INTEGER NOT NULL,
  "n_open" INTEGER NOT NULL,
  "n_in_doubt" INTEGER NOT NULL,
  "n_accepted" INTEGER NOT NULL,
  "n_refused" INTEGER NOT NULL,
  "n_skipped" INTEGER NOT NULL,
  "n_suppressed" INTEGER NOT NULL,
  "n_cancelled" INTEGER NOT NULL,
  "n_assumed" INTEGER NOT NULL,
  "batches_pending" INTEGER NOT NULL,
  "batches_queued" INTEGER NOT NULL,
  "batches_sending" INTEGER NOT NULL,
  "batches_in_doubt" INTEGER NOT NULL,
  "batches_held" INTEGER NOT NULL,
  "batches_done" INTEGER NOT NULL,
  "active_s" REAL NOT NULL,
  "rate_per_s" REAL,
  "delivered" INTEGER,
  PRIMARY KEY ("campaign_id")
) WITHOUT ROWID;

CREATE TABLE "dead_letters" (
  "dead_letter_id" TEXT NOT NULL,
  "stage" TEXT NOT NULL,
  "reason" TEXT NOT NULL,
  "at" INTEGER NOT NULL,
  "detail" TEXT NOT NULL,
  "campaign_id" TEXT,
  "batch_no" INTEGER,
  "ordinal" INTEGER,
  "message_id" TEXT,
  "expires_at" INTEGER,
  "state" TEXT NOT NULL,
  "settled_at" INTEGER,
  "settled_by" TEXT,
  "body" BLOB,
  PRIMARY KEY ("dead_letter_id")
) WITHOUT ROWID;

CREATE INDEX "dead_letters_by_campaign" ON "dead_letters" ("campaign_id", "stage", "at");

CREATE INDEX "dead_letters_by_end" ON "dead_letters" ("expires_at") WHERE "expires_at" IS NOT NULL;

CREATE TABLE "notices" (
  "shard" INTEGER NOT NULL,
  "notice_id" TEXT NOT NULL,
  "kind" TEXT NOT NULL,
  "visible_at" INTEGER NOT NULL,
  "created_at" INTEGER NOT NULL,
  "attributes" TEXT NOT NULL,
  "body" TEXT NOT NULL,
  PRIMARY KEY ("shard", "notice_id")
) WITHOUT ROWID;

CREATE INDEX "notices_due" ON "notices" ("shard", "kind", "visible_at");

CREATE TABLE "triggers" (
  "trigger_id" TEXT NOT NULL,
  "received_at" INTEGER NOT NULL,
  "open_state" TEXT,
  "result" TEXT,
  "applied_at" INTEGER,
  "body" BLOB NOT NULL,
  "attributes" TEXT NOT NULL,
  PRIMARY KEY ("trigger_id")
) WITHOUT ROWID;

CREATE INDEX "triggers_open" ON "triggers" ("open_state", "received_at") WHERE "open_state" IS NOT NULL;

CREATE TABLE "decisions" (
  "decision_id" TEXT NOT NULL,
  "campaign_id" TEXT NOT NULL,
  "kind" TEXT NOT NULL,
  "at" INTEGER NOT NULL,
  "by" TEXT NOT NULL,
  "batch_no" INTEGER,
  "attempt_id" TEXT,
  "reason" TEXT,
  "ordinals" BLOB,
  PRIMARY KEY ("decision_id")
) WITHOUT ROWID;

CREATE INDEX "decisions_by_campaign" ON "decisions" ("campaign_id", "at");

CREATE TABLE "jobs" (
  "job_id" TEXT NOT NULL,
  "host" TEXT NOT NULL,
  "pid" INTEGER NOT NULL,
  "lanes" TEXT NOT NULL,
  "version" TEXT NOT NULL,
  "started_at" INTEGER NOT NULL,
  "heartbeat_at" INTEGER NOT NULL,
  "state" TEXT NOT NULL,
  "detail" TEXT NOT NULL,
  PRIMARY KEY ("job_id")
) WITHOUT ROWID;

CREATE TABLE "settings" (
  "kind" TEXT NOT NULL,
  "name" TEXT NOT NULL,
  "changed_at" INTEGER NOT NULL,
  "changed_by" TEXT NOT NULL,
  "value" TEXT NOT NULL,
  PRIMARY KEY ("kind", "name")
) WITHOUT ROWID;

CREATE TABLE "switches" (
  "scope" TEXT NOT NULL,
  "kind" TEXT NOT NULL,
  "since" INTEGER NOT NULL,
  "by" TEXT NOT NULL,
  "reason" TEXT NOT NULL,
  "until_at" INTEGER,
  "detail" TEXT NOT NULL,
  PRIMARY KEY ("scope")
) WITHOUT ROWID;
