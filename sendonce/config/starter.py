"""The settings file that `sendonce init` writes: every setting with its default, explained."""

from typing import Final

STARTER: Final = """\
# Settings of Sendonce. After a change to lanes, senders, guards or topics: sendonce config apply
# A command's option wins over the environment (SENDONCE_STORE, SENDONCE_CONFIG, SENDONCE_SUBSCRIPTION), that over
# this file.

store: sqlite:///.sendonce/sendonce.db

# Where a live job takes its triggers from; without it `sendonce run` ends when nothing is left.
# subscription: projects/PROJECT/subscriptions/NAME

# Topics on which jobs tell what became of each recipient of a `send`, and what could not be processed
# (also SENDONCE_OUTCOMES_TOPIC, SENDONCE_DEAD_LETTERS_TOPIC).
# outcomes_topic: projects/PROJECT/topics/NAME
# dead_letters_topic: projects/PROJECT/topics/NAME

# The address that letters come from, unless the template names another.
from: "Example Shop <news@shop.example>"

# Folders with your templates, one folder each. Those that ship (otp, receipt, newsletter) are found too.
templates: [templates]

# Unsubscribe links are this address and a token. https, or http on this machine. `sendonce web --unsubscribe` answers
# them, behind a proxy that speaks TLS.
unsubscribe:
  base_url: https://shop.example/u

# The outbox writes every letter into a folder (one mbox file per request) and sends nothing.
senders:
  outbox:
    adapter: outbox
    path: .sendonce/outbox
    limits: []
# A SendGrid account (install sendonce[sendgrid]); the key stays where it is, env:NAME or file:/path:
#  mail: {adapter: sendgrid, api_key: env:SENDGRID_API_KEY, limits: [{rate: 500/s, burst: 1000}]}
# Also: sandbox, categories, asm_group, ip_pool, click_tracking, open_tracking, send_after_s, batch_id, parallel.
# A Resend account (sendonce[resend]), asked again under the same key when a reply is lost; also: recipients, parallel.
#  mail: {adapter: resend, api_key: env:RESEND_API_KEY, limits: [{rate: 200/s}]}
# Your own https endpoint (sendonce[webhook]); docs/webhook.md says what it gets and answers.
#  hook: {adapter: webhook, url: https://hooks.shop.example/letters, secret: env:WEBHOOK_SECRET}
# Also: recipients, idempotency_window_s, http_503, max_request_bytes, parallel, allow_private (for tests).
# An Amazon SES account (install sendonce[ses]); the machine's own role or profile signs, unless keys are named:
#  mail: {adapter: ses, region: eu-west-1, limits: [{rate: 14/s}]}
# Also: profile, access_key_id and secret_access_key (env:NAME or file:/path), configuration_set, endpoint_url,
# click_tracking, open_tracking, http_503, parallel.
# A mail server (install sendonce[smtp]); tls: required (STARTTLS), implicit, if_offered or never:
#  post: {adapter: smtp, host: smtp.provider.example, user: env:SMTP_USER, password: env:SMTP_PASSWORD}
# Also: port, envelope_from, ehlo_name, parallel, letters_per_connection. bulk waits 10 minutes for
# the answer to a letter (RFC 5321), critical and high 5 seconds, then it is in doubt: times: {answer_s: 600} in a lane.

# A real sender works only from a store for production (`sendonce init --environment production`), or under a guard:
#environment: production                               # the store must have been made for this
#recipients_allowed: [qa@shop.example, "@test.example"] # nobody else gets a letter
#redirect_all_to: qa@shop.example                      # every letter goes there

# One lane per priority. Limits count recipients: {rate: 500/s, burst: 500}, {cap: 100000/day}, {cap: 10/5s}.
# in_doubt, when nobody can tell whether a request was accepted: hold (for a person), assume (that it was, after
# 24 hours, counted apart), resend (once; somebody may get two letters).
# fallback: another sender, by which what certainly was not taken goes while the lane's own cannot send.
lanes:
  critical: {sender: outbox, in_doubt: hold, batch_size: 100, limits: []}
  high: {sender: outbox, in_doubt: hold, batch_size: 100, limits: []}
  bulk: {sender: outbox, in_doubt: assume, batch_size: 5000, limits: []}

# Limits for mailboxes of one operator, over all lanes and senders. Known by name: google, microsoft, yahoo, apple, gmx,
# mailru, orange, qq; others list their domains: shop.example, yahoo.* (any ending), *.corp.example (all below).
#domains:
#  google: {limits: [{rate: 50/s}, {cap: 200000/day}]}
#  partner: {domains: [partner.example, "*.partner.example"], limits: [{rate: 5/s}]}
# A new account warms up: no more than these in any 24 hours of the 1st, 2nd, 3rd … day; no limit of its kind after.
#  (under a sender)  warm_up: {start: 2026-12-01, per_day: [50, 100, 500, 1000, 5000, 10000]}
"""
