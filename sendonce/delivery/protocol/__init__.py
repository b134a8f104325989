"""The delivery protocol: every transition of a batch, each one store transaction.

    step         from -> to
    plan         pending and due, or queued and lost -> queued            plan_no + 1: one live reference a batch
                 in doubt, provider de-duplicates    -> in doubt          plan_no + 1: the doubt may be asked again
    postpone     pending, waits for a mailbox group  -> pending           later due: others of the group come first
    keep         queued, my plan_no                  -> queued            later visible: the reference is only slow
    claim        queued, my plan_no                  -> sending           token + 1, the first intent and its permit
    reclaim      in doubt, my plan_no                -> sending           token + 1, the same intent, a new permit
    advance      sending, my token                   -> sending           outcomes, next intent and permit, new lease
                                                     -> done              nothing is open
                                                     -> in doubt | held   but one was set aside
                                                     -> pending | queued  paused, not begun, blocked, no permit,
                                                                          handed back
                                                     -> in doubt          the verdict is unknown
    release      queued, my plan_no                  -> pending           a held batch whose owner must stop
    expire       sending, lease over (store time)    -> in doubt          token + 1: the old owner is fenced
                                                     -> pending           no intent was open: nothing to doubt
    set aside    in doubt, held                      -> pending           others are open: the doubt is a row beside it
    settle       in doubt, held                      -> done | pending    by proof, or by a decision row
                                                     -> in doubt | held   by the next doubt that was set aside
                 a doubt that was set aside          -> as it was         its outcomes; whoever owns the batch goes on
    hold         in doubt                            -> held              a person decides; a decision row
    cancel       pending, queued                     -> cancelled
    end_expired  pending, queued                     -> done              its end, or its campaign's, is past
    refuse       queued, my plan_no                  -> done              a send whose letters nobody can make
    reopen       done, pending                       -> pending           refused ordinals, a new round, a decision row

Every function runs inside `Store.transact`: it reads first and writes afterwards, has no other effect, and may run
several times. A request is sent only after a transaction that answered GO has committed. A lost commit reply is
mended by calling again: each step knows its own traces (token, plan_no, the row of a finished attempt).

Where they are: `queueing` (plan, postpone, keep, release), `owning` (claim, reclaim, advance; with `finished_request`
and `next_request`, the two halves of an advance), `doubts` (expire, settle, hold), `aside` (set aside), `closing`
(cancel, end_expired, refuse), `opening_again` (reopen).
"""
