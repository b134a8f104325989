CREATE TABLE `meta` (
  `name` STRING(64) NOT NULL,
  `value` BYTES(1024) NOT NULL,
) PRIMARY KEY (`name`);

CREATE TABLE `campaigns` (
  `campaign_id` STRING(256) NOT NULL,
  `kind` STRING(64) NOT NULL,
  `state` STRING(64) NOT NULL,
  `priority` STRING(64) NOT NULL,
  `sender` STRING(64) NOT NULL,
  `from_address` STRING(1024) NOT NULL,
  `template` STRING(64) NOT NULL,
  `template_hash` STRING(64) NOT NULL,
  `options` STRING(2621440) NOT NULL,
  `snapshot_hash` STRING(64) NOT NULL,
  `recipients` INT64 NOT NULL,
  `batches` INT64 NOT NULL,
  `created_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `created_by` STRING(256) NOT NULL,
  `changed_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `changed_by` STRING(256) NOT NULL,
  `seq` INT64,
  `state_reason` STRING(4096),
  `sealed_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  `started_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  `finished_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
) PRIMARY KEY (`campaign_id`);

CREATE INDEX `campaigns_by_state` ON `campaigns` (`state`, `campaign_id`);

CREATE TABLE `templates` (
  `template_hash` STRING(64) NOT NULL,
  `name` STRING(64) NOT NULL,
  `files` BYTES(10485760) NOT NULL,
  `pushed_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `pushed_by` STRING(256) NOT NULL,
  `sends_since` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
) PRIMARY KEY (`template_hash`);

CREATE INDEX `templates_by_name` ON `templates` (`name`, `pushed_at`);

CREATE NULL_FILTERED INDEX `templates_for_sends` ON `templates` (`name`, `sends_since`);

CREATE TABLE `campaign_recipients_snapshot` (
  `shard` INT64 NOT NULL,
  `campaign_id` STRING(256) NOT NULL,
  `batch_no` INT64 NOT NULL,
  `ordinal` INT64 NOT NULL,
  `recipient_id` STRING(256) NOT NULL,
  `email` STRING(320) NOT NULL,
  `address_key` STRING(64) NOT NULL,
  `locale` STRING(64) NOT NULL,
  `timezone` STRING(64) NOT NULL,
  `template_variables` STRING(2621440) NOT NULL,
) PRIMARY KEY (`shard`, `campaign_id`, `batch_no`, `ordinal`);

CREATE UNIQUE INDEX `snapshot_by_recipient` ON `campaign_recipients_snapshot` (`campaign_id`, `recipient_id`);

CREATE TABLE `campaign_batches` (
  `shard` INT64 NOT NULL,
  `campaign_id` STRING(256) NOT NULL,
  `batch_no` INT64 NOT NULL,
  `size` INT64 NOT NULL,
  `timezone` STRING(64) NOT NULL,
  `state` STRING(64) NOT NULL,
  `open_state` STRING(64),
  `due_at` TIMESTAMP NOT NULL,
  `outcomes` BYTES(65536) NOT NULL,
  `visible_at` TIMESTAMP,
  `plan_no` INT64 NOT NULL,
  `token` INT64 NOT NULL,
  `round` INT64 NOT NULL,
  `tries` INT64 NOT NULL,
  `worker_id` STRING(256),
  `claimed_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  `heartbeat_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  `lease_s` FLOAT64,
  `wait_reason` STRING(64),
  `template_hash` STRING(64),
  `expires_at` TIMESTAMP,
  `attempt_id` STRING(64),
  `intent_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  `intent_ordinals` BYTES(65536),
  `payload_hash` STRING(64),
  `provider` STRING(64),
  `provider_ref` STRING(256),
  `doubt_since` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  `n_open` INT64 NOT NULL,
  `n_in_doubt` INT64 NOT NULL,
  `n_accepted` INT64 NOT NULL,
  `n_refused` INT64 NOT NULL,
  `n_skipped` INT64 NOT NULL,
  `n_suppressed` INT64 NOT NULL,
  `n_cancelled` INT64 NOT NULL,
  `n_assumed` INT64 NOT NULL,
  `finished_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  `permit_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  `idempotency_key` STRING(256),
) PRIMARY KEY (`shard`, `campaign_id`, `batch_no`);

CREATE NULL_FILTERED INDEX `batches_open` ON `campaign_batches` (`shard`, `campaign_id`, `open_state`, `due_at`);

CREATE NULL_FILTERED INDEX `batches_expiring` ON `campaign_batches` (`shard`, `campaign_id`, `open_state`, `expires_at`);

CREATE TABLE `doubts_aside` (
  `shard` INT64 NOT NULL,
  `campaign_id` STRING(256) NOT NULL,
  `batch_no` INT64 NOT NULL,
  `attempt_id` STRING(64) NOT NULL,
  `state` STRING(64) NOT NULL,
  `ordinals` BYTES(65536) NOT NULL,
  `payload_hash` STRING(64) NOT NULL,
  `provider` STRING(64) NOT NULL,
  `intent_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `permit_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `doubt_since` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `provider_ref` STRING(256),
  `wait_reason` STRING(64),
) PRIMARY KEY (`shard`, `campaign_id`, `batch_no`, `attempt_id`);

CREATE TABLE `batch_attempts` (
  `shard` INT64 NOT NULL,
  `campaign_id` STRING(256) NOT NULL,
  `batch_no` INT64 NOT NULL,
  `attempt_id` STRING(64) NOT NULL,
  `ordinals` BYTES(65536) NOT NULL,
  `token` INT64 NOT NULL,
  `worker_id` STRING(256) NOT NULL,
  `provider` STRING(64) NOT NULL,
  `payload_hash` STRING(64) NOT NULL,
  `verdict` STRING(64) NOT NULL,
  `started_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `finished_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `evidence` BOOL NOT NULL,
  `reason` STRING(4096),
  `provider_ref` STRING(256),
  `outcomes` BYTES(65536),
) PRIMARY KEY (`shard`, `campaign_id`, `batch_no`, `attempt_id`);

CREATE TABLE `outbound_messages` (
  `message_id` STRING(64) NOT NULL,
  `campaign_id` STRING(256) NOT NULL,
  `batch_no` INT64 NOT NULL,
  `ordinal` INT64 NOT NULL,
  `outcome` INT64 NOT NULL,
  `at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `attempt_id` STRING(64),
  `provider` STRING(64),
  `provider_ref` STRING(256),
  `detail` STRING(4096),
) PRIMARY KEY (`message_id`);

CREATE INDEX `outbound_by_campaign` ON `outbound_messages` (`campaign_id`, `batch_no`, `ordinal`);

CREATE TABLE `limits` (
  `scope` STRING(256) NOT NULL,
  `name` STRING(64) NOT NULL,
  `kind` STRING(64) NOT NULL,
  `per_s` FLOAT64 NOT NULL,
  `burst` INT64 NOT NULL,
  `most` INT64 NOT NULL,
  `window_s` FLOAT64 NOT NULL,
  `level` FLOAT64,
  `level_at` TIMESTAMP,
  `slow` FLOAT64 NOT NULL,
  `slow_at` TIMESTAMP,
  `stripes` INT64 NOT NULL,
  `starts_at` TIMESTAMP,
  `plan` STRING(4096),
) PRIMARY KEY (`scope`, `name`);

CREATE TABLE `send_permits` (
  `scope` STRING(256) NOT NULL,
  `granted_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `attempt_id` STRING(64) NOT NULL,
  `n` INT64 NOT NULL,
  `used_by` TIMESTAMP NOT NULL,
) PRIMARY KEY (`scope`, `granted_at`, `attempt_id`);

CREATE INDEX `permits_by_use` ON `send_permits` (`scope`, `used_by`);

CREATE TABLE `idempotency_keys` (
  `key_hash` STRING(64) NOT NULL,
  `body_hash` STRING(64) NOT NULL,
  `campaign_id` STRING(256) NOT NULL,
  `batch_no` INT64 NOT NULL,
  `created_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `shard` INT64,
) PRIMARY KEY (`key_hash`);

CREATE INDEX `keys_by_time` ON `idempotency_keys` (`shard`, `created_at`);

CREATE TABLE `suppressions` (
  `address_key` STRING(64) NOT NULL,
  `list_name` STRING(64) NOT NULL,
  `outcome` INT64 NOT NULL,
  `created_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `created_by` STRING(256) NOT NULL,
  `source` STRING(64) NOT NULL,
  `campaign_id` STRING(256),
  `note` STRING(4096),
) PRIMARY KEY (`address_key`, `list_name`);

CREATE INDEX `suppressions_by_time` ON `suppressions` (`created_at`);

CREATE TABLE `delivery_events` (
  `event_id` STRING(256) NOT NULL,
  `provider` STRING(64) NOT NULL,
  `kind` STRING(64) NOT NULL,
  `at` TIMESTAMP NOT NULL,
  `received_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `body` STRING(2621440) NOT NULL,
  `message_id` STRING(64),
  `attempt_id` STRING(64),
  `provider_ref` STRING(256),
) PRIMARY KEY (`event_id`);

CREATE NULL_FILTERED INDEX `events_by_attempt` ON `delivery_events` (`attempt_id`);

CREATE NULL_FILTERED INDEX `events_by_message` ON `delivery_events` (`message_id`);

CREATE TABLE `campaign_progress` (
  `campaign_id` STRING(256) NOT NULL,
  `at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `total` INT64 NOT NULL,
  `n_open` INT64 NOT NULL,
  `n_in_doubt` INT64 NOT NULL,
  `n_accepted` INT64 NOT NULL,
  `n_refused` INT64 NOT NULL,
  `n_skipped` INT64 NOT NULL,
  `n_suppressed` INT64 NOT NULL,
  `n_cancelled` INT64 NOT NULL,
  `n_assumed` INT64 NOT NULL,
  `batches_pending` INT64 NOT NULL,
  `batches_queued` INT64 NOT NULL,
  `batches_sending` INT64 NOT NULL,
  `batches_in_doubt` INT64 NOT NULL,
  `batches_held` INT64 NOT NULL,
  `batches_done` INT64 NOT NULL,
  `active_s` FLOAT64 NOT NULL,
  `rate_per_s` FLOAT64,
  `delivered` INT64,
) PRIMARY KEY (`campaign_id`);

CREATE TABLE `dead_letters` (
  `dead_letter_id` STRING(64) NOT NULL,
  `stage` STRING(64) NOT NULL,
  `reason` STRING(64) NOT NULL,
  `at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `detail` STRING(4096) NOT NULL,
  `campaign_id` STRING(256),
  `batch_no` INT64,
  `ordinal` INT64,
  `message_id` STRING(64),
  `body` BYTES(10485760),
  `expires_at` TIMESTAMP,
  `state` STRING(64) NOT NULL,
  `settled_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
  `settled_by` STRING(256),
) PRIMARY KEY (`dead_letter_id`);

CREATE INDEX `dead_letters_by_campaign` ON `dead_letters` (`campaign_id`, `stage`, `at`);

CREATE NULL_FILTERED INDEX `dead_letters_by_end` ON `dead_letters` (`expires_at`);

CREATE TABLE `notices` (
  `shard` INT64 NOT NULL,
  `notice_id` STRING(64) NOT NULL,
  `kind` STRING(64) NOT NULL,
  `visible_at` TIMESTAMP NOT NULL,
  `created_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `body` STRING(2621440) NOT NULL,
  `attributes` STRING(4096) NOT NULL,
) PRIMARY KEY (`shard`, `notice_id`);

CREATE INDEX `notices_due` ON `notices` (`shard`, `kind`, `visible_at`);

CREATE TABLE `triggers` (
  `trigger_id` STRING(64) NOT NULL,
  `received_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `body` BYTES(10485760) NOT NULL,
  `attributes` STRING(2621440) NOT NULL,
  `open_state` STRING(64),
  `result` STRING(64),
  `applied_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true),
) PRIMARY KEY (`trigger_id`);

CREATE NULL_FILTERED INDEX `triggers_open` ON `triggers` (`open_state`, `received_at`);

CREATE TABLE `decisions` (
  `decision_id` STRING(64) NOT NULL,
  `campaign_id` STRING(256) NOT NULL,
  `kind` STRING(64) NOT NULL,
  `at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `by` STRING(256) NOT NULL,
  `batch_no` INT64,
  `attempt_id` STRING(64),
  `ordinals` BYTES(65536),
  `reason` STRING(4096),
) PRIMARY KEY (`decision_id`);

CREATE INDEX `decisions_by_campaign` ON `decisions` (`campaign_id`, `at`);

CREATE TABLE `jobs` (
  `job_id` STRING(256) NOT NULL,
  `host` STRING(256) NOT NULL,
  `pid` INT64 NOT NULL,
  `lanes` STRING(64) NOT NULL,
  `version` STRING(64) NOT NULL,
  `started_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `heartbeat_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `state` STRING(64) NOT NULL,
  `detail` STRING(2621440) NOT NULL,
) PRIMARY KEY (`job_id`);

CREATE TABLE `settings` (
  `kind` STRING(64) NOT NULL,
  `name` STRING(64) NOT NULL,
  `value` STRING(2621440) NOT NULL,
  `changed_at` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `changed_by` STRING(256) NOT NULL,
) PRIMARY KEY (`kind`, `name`);

CREATE TABLE `switches` (
  `scope` STRING(256) NOT NULL,
  `kind` STRING(64) NOT NULL,
  `since` TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  `by` STRING(256) NOT NULL,
  `reason` STRING(4096) NOT NULL,
  `until_at` TIMESTAMP,
  `detail` STRING(2621440) NOT NULL,
) PRIMARY KEY (`scope`);
