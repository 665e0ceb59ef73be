"""The product with one rule broken each: what the simulator must catch.

Most are a change of a few words in one of the product's functions, made on its source while `broken` is entered: a rule
that was moved or put into other words makes `broken` fail rather than pass. Rules that live in the shells, of which the
simulator has its own, are switches of those.
"""

import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import CodeType
from typing import Any

from failover import activating, activation, lease, logs, serving
from failover.acknowledging import Acknowledging
from failover.detector import Detector
from failover.lease import Promises
from failover.replication import Replication
from journal.memory import MemoryLog
from ledger.pending import Pending
from simulation.fleet_mutants import FLEET_MUTANTS, FLEET_PROVOKED
from simulation.mutant import Mutant, Words
from simulation.world import Switches


class RuleMoved(Exception):
    """The words that a mutant changes are no longer in the function (just once): adapt the mutant to the product."""

    code = "rule_moved"
    definite = True


MUTANTS: dict[str, Mutant] = {
    "cut_on_hearsay": Mutant(
        "a Seal cuts what is not committed",
        (
            (
                MemoryLog.seal,
                ("self._incarnation = self._incarnation or", "self._cut(self._committed); self._incarnation = self._incarnation or"),
            ),
        ),
    ),
    "epoch_granted_twice": Mutant(
        "a Seal is granted to a second attempt of the same epoch",
        ((MemoryLog.seal, ("message.epoch <= self._fence", "message.epoch < self._fence")),),
    ),
    "late_append_cuts": Mutant(
        "a late, short Append cuts what lies behind it",
        ((MemoryLog.accept, ("if skip < len(entries):", "if keep < len(self._entries) or skip < len(entries):")),),
    ),
    "own_tail_held": Mutant(
        "the receiver answers its own tail as verified",
        ((MemoryLog.accept, ("return self._accepted(verified)", "return self._accepted(len(self._entries))")),),
    ),
    "committed_unclamped": Mutant(
        "`committed` is taken as it was sent",
        ((MemoryLog.accept, ("self._commit(min(message.committed, verified))", "self._commit(message.committed)")),),
    ),
    "committed_to_the_tail": Mutant(
        "`committed` is clamped to the own tail instead of what is verified",
        ((MemoryLog.accept, ("min(message.committed, verified)", "min(message.committed, len(self._entries))")),),
    ),
    "log_by_length": Mutant(
        "the longest log is adopted, not the one with the latest epoch",
        ((logs.most_advanced, ("(statuses[region].tail, region == prefer)", "(statuses[region].tail.offset, region == prefer)")),),
    ),
    "no_fence_check": Mutant(
        "stores take Appends of any epoch and attempt",
        (
            (MemoryLog._may_have, ("return epoch > self._fence or", "return True or")),
            (MemoryLog._not_granted, ("return None if", "return None if True or")),
        ),
    ),
    "no_start_record": Mutant(
        "an entry of an older epoch is committed by counting copies (Raft's figure 8)",
        (
            (Replication.advance, ("offset < self.start_offset or ", "")),
            (
                serving.replicate,
                ("if state.role is Role.STARTING:", "if state.role is Role.STARTING and moved >= replication.start_offset:"),
            ),
        ),
    ),
    "orphans_dropped": Mutant(
        "what is cut is not kept among the orphans",
        ((MemoryLog._cut, ("self._orphans.setdefault(entry.epoch, []).append(entry)", "pass")),),
    ),
    "readmission_drops_orphans": Mutant(
        "a readmitted store forgets what it held",
        ((MemoryLog.readmit, ("self._cut(0)", "self._cut(0)\n        self._orphans.clear()")),),
    ),
    "dedup_not_rebuilt": Mutant("a new authority begins without the identities of earlier epochs", switch="forget_identities"),
    "answer_before_pending": Mutant(
        "a duplicate is answered before the entry it rests on is committed",
        ((Pending.decide, ("known.epoch, known.offset, known.offset))", "known.epoch, known.offset, 0))")),),
    ),
    "folded_before_commit": Mutant("the ledger folds entries as soon as the own store has them", switch="fold_early"),
    "fence_not_persisted": Mutant("a store forgets its promise when it restarts", switch="forget_fence"),
    "amnesiac_votes": Mutant(
        "a store that lost data votes and counts like any other",
        (
            (logs.has_lost_data, ("if member_as is not None", "return False\n    if member_as is not None")),
            (MemoryLog._below, ("return (", "return False and (")),
            (MemoryLog._unfit, ('return "amnesiac" if self._amnesiac else None', "return None")),
        ),
    ),
    "no_from_in_seal": Mutant(
        "a Seal is granted whatever it means to depose",
        ((MemoryLog.seal, ("newest.epoch > message.from_epoch or", "False and")),),
    ),
    "forwarded_twice": Mutant("a forwarded request is forwarded again", switch="forward_again"),
    "frozen_before_commit": Mutant("a replica freezes generations that are not committed", switch="freeze_uncommitted"),
    "generation_twice": Mutant(
        "the next generation is counted from what is folded, not from what is pending",
        ((Pending.publish, ("running.generation + 1", "running.start.generation + 1")),),
    ),
    "epochs_as_strings": Mutant(
        'epochs are compared as text: "10" < "9"',
        (
            (MemoryLog._may_have, ("epoch > self._fence", "str(epoch) > str(self._fence)")),
            (MemoryLog._promise, ("epoch > self._fence", "str(epoch) > str(self._fence)")),
            (MemoryLog.seal, ("message.epoch <= self._fence", "str(message.epoch) <= str(self._fence)")),
        ),
    ),
    "half_of_the_votes": Mutant(
        "half of the members may seal",
        ((activation.evaluate, ("need = majority(len(newest.members))", "need = len(newest.members) // 2")),),
    ),
    "half_of_the_copies": Mutant(
        "half of the members make a commit",
        ((Replication.advance, ("need = majority(len(self.members))", "need = len(self.members) // 2")),),
    ),
    "deposed_answers": Mutant("a deposed authority acknowledges what waited for a commit", switch="answer_deposed"),
    "emptied_store_counts": Mutant("a store that is begun anew still counts in the epoch that orders it", switch="readmitted_counts"),
    "restart_takes_over": Mutant(
        "a restarted region activates although another owns the newest epoch",
        ((activation.evaluate, ('if cause in ("restart", "unstarted_seal")', 'if cause in ("unstarted_seal",)')),),
    ),
    "no_lease_wait": Mutant("a region seals although it has promised a lease", ((Promises.left_ms, ("return max(", "return 0 and max(")),)),
    "promise_without_drift": Mutant(
        "a promise is as long as the lease, as if all clocks went alike",
        ((lease.promise_ms, ("-int(-lease_ms * (1 + DRIFT) // (1 - DRIFT))", "lease_ms")),),
    ),
    "lease_from_answer": Mutant(
        "a holder counts its lease from the answer to the renewal",
        (
            (
                serving.renew_answered,
                (
                    "state.lease.granted(event.request)",
                    "state.lease.granted(event.request); state.lease._granted[event.region] = event.now_ms",
                ),
            ),
        ),
    ),
    "no_lease_check": Mutant(
        "a holder does not look at its lease when an answer leaves",
        ((Acknowledging.may_answer, (" and self.leased(now_ms)", "")),),
    ),
    "lease_checked_before_only": Mutant(
        "a holder looks at its lease before the append only",
        (
            (Acknowledging.may_answer, (" and self.leased(now_ms)", "")),
            (Acknowledging.hold, ("or not self.leased(now_ms) ", "")),
        ),
    ),
    "renew_unchecked": Mutant(
        "a lease is renewed whatever the fence",
        ((MemoryLog.renew, ("self._unfit() or self._not_granted(epoch, attempt)", "self._unfit()")),),
    ),
    "acceptor_forgets": Mutant(
        "a restarted acceptor does not honour what the last one promised",
        ((Promises.taken_over, ("if lease_ms and holder", "if False")),),
    ),
    "seal_past_the_acceptor": Mutant(
        "a store under a lease takes Seals of an acceptor that was superseded",
        ((MemoryLog.seal, ("if self._leased_ms() and", "if False and")),),
    ),
    "acceptor_stays_superseded": Mutant("an acceptor whose role an earlier process took does not take it again", switch="stay_superseded"),
    "local_orphans_dropped": Mutant(
        "what one store alone had acknowledged is cut without a trace",
        ((MemoryLog._cut, ("self._orphans.setdefault(entry.epoch, []).append(entry)", "pass")),),
        invariant="I5",
    ),
    "lease_not_carried": Mutant(
        "a lease is forgotten when the holder's own region seals again",
        ((MemoryLog._promise, ("if region and region == self._granted[0]", "if False")),),
    ),
    "no_seal_grace": Mutant(
        "the old owner's store is not waited for",
        ((activating._grace_ms, ("return max(timing.grace_ms, timing.seal_grace_ms)", "return timing.grace_ms")),),
    ),
    "no_turn_to_seal": Mutant(
        "an owner that is heard, and hears nobody, renews for ever",
        ((Promises.may_renew, ("(now_ms >= until or holder == target)", "True")),),
    ),
    "no_pause": Mutant(
        "one automatic failover follows the other",
        ((Detector.turn, ("or self.pause_ms(now_ms)", "or False")),),
    ),
    **FLEET_MUTANTS,
}


#: The compound fault that provokes a mutant soonest; the others show themselves in what every seed draws.
PROVOKED: dict[str, str] = {
    "acceptor_forgets": "acceptors_restart",
    "acceptor_stays_superseded": "old_acceptor",
    "amnesiac_votes": "lost_minority",
    "committed_to_the_tail": "late_suffix",
    "emptied_store_counts": "hasty_readmission",
    "epoch_granted_twice": "double_failover",
    "fence_not_persisted": "forgotten_promise",
    "lease_checked_before_only": "holder_sleeps",
    "lease_from_answer": "lease_runs_out",
    "local_orphans_dropped": "writes_while_deposed",
    "log_by_length": "longer_but_older",
    "no_fence_check": "ping_pong",
    "no_lease_check": "holder_sleeps",
    "no_lease_wait": "writes_while_deposed",
    "no_pause": "lost_again",
    "no_seal_grace": "old_store_reachable",
    "no_start_record": "figure_eight",
    "no_turn_to_seal": "region_lost",
    "lease_not_carried": "restart_that_fails",
    "own_tail_held": "late_suffix",
    "promise_without_drift": "writes_while_deposed",
    "readmission_drops_orphans": "needless_readmission",
    "renew_unchecked": "writes_while_deposed",
    "seal_past_the_acceptor": "old_acceptor",
    **FLEET_PROVOKED,
}


@contextmanager
def broken(name: str) -> Iterator[Switches]:
    """Break one rule in this process while entered; the switches are for the worlds that run meanwhile.

    Raises `RuleMoved`, or KeyError for a mutant that there is not.
    """
    mutant = MUTANTS[name]
    with ExitStack() as stack:
        together: dict[Callable[..., Any], list[Words]] = {}
        for function, words in mutant.changes:
            together.setdefault(function, []).append(words)
        for function, changes in together.items():
            stack.enter_context(_changed(function, changes))
        yield replace(Switches(), **{mutant.switch: True}) if mutant.switch else Switches()


@contextmanager
def _changed(function: Callable[..., Any], changes: list[Words]) -> Iterator[None]:
    """Exchange the code of a function, wherever it is known under whichever name."""
    whole: Any = function
    before = whole.__code__
    whole.__code__ = _code(function, *changes)
    try:
        yield
    finally:
        whole.__code__ = before


def _code(function: Callable[..., Any], *changes: Words) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if source.count(old) != 1:
            raise RuleMoved(f"{function.__qualname__} has {old!r} {source.count(old)} times")
        source = source.replace(old, new)
    whole: Any = function
    names: dict[str, Any] = dict(whole.__globals__)
    flags = __future__.annotations.compiler_flag
    exec(compile(source, whole.__code__.co_filename, "exec", flags, dont_inherit=True), names)
    code: CodeType = names[function.__name__].__code__
    return code
