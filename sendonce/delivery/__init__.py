"""The delivery protocol: plan, claim, send, settle; pure over a clock, a store and a sender."""
