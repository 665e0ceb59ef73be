"""The product with one rule of marks, manifests and generations broken each; see `simulation.mutants`."""

from actors import board_changes, exporting, generations_view, relocation_changes
from actors.coordinating import Coordinating
from actors.importing import Filling
from actors.relocating import Relocation
from failover.generations import Rounds
from ledger.running import RunningBoard
from simulation.mutant import Mutant

FLEET_MUTANTS: dict[str, Mutant] = {
    "mark_answered_uncommitted": Mutant(
        "a slice answers for a mark that is not committed yet",
        ((board_changes._answer, ("waiters.wait(result.depends,", "waiters.wait(0 if change.last else result.depends,")),),
    ),
    "shard_missing_from_manifest": Mutant(
        "a manifest is made without a shard that does not answer",
        (
            (Rounds.complete, ("self._asking or len(self._gathered) < self.slices", "not self._gathered")),
            (Rounds.complete, ("for s in range(self.slices))", "for s in range(self.slices) if s in self._gathered)")),
        ),
    ),
    "old_mark_for_missing_shard": Mutant(
        "a manifest names the old mark of a shard that does not answer",
        (
            (
                Rounds.complete,
                (
                    "self._asking or len(self._gathered) < self.slices",
                    "not self._gathered or (not self.marks and len(self._gathered) < self.slices)",
                ),
            ),
            (Rounds.complete, ("tuple(self._gathered[s] for", "tuple(self._gathered.get(s) or self.marks[s] for")),
        ),
    ),
    "player_in_two_shards": Mutant(
        "the gateways of one region spread players by another modulo, and nobody looks",
        ((board_changes.refuse_strangers, ("if layout is None or", "if True or")),),
        switch="other_modulo",
    ),
    "count_of_another_generation": Mutant(
        "an answer takes one slice's newest view instead of the one that the manifest names",
        (
            (
                generations_view._named,
                ("frozen = fold.frozen.get(mark.offset)", "frozen = fold.frozen.get(max(fold.frozen, default=0))"),
            ),
            (generations_view._named, ("if frozen.mark != mark:", "if False:")),
        ),
    ),
    "partial_generation": Mutant(
        "a generation is shown before all of its slices are here",
        ((generations_view._named, ("return None\n", "return found or None\n")),),
    ),
    "asked_again": Mutant(
        "a slice that has answered is asked again in the same round",
        ((Rounds.ask, ("if s not in self._gathered and s not in self._asking", "if s not in self._asking")),),
    ),
    "keeps_the_newest": Mutant(
        "a mark lets go of all views but the newest, whatever the newest manifest names",
        ((board_changes.mark, ("keeps=keeps,", "keeps=state.mark.offset if state.mark else 0,")),),
    ),
    "deposed_lead_marks": Mutant(
        "a slice marks for a lead that was deposed",
        (
            (board_changes.mark, ("if lead_epoch < state.lead_epoch:", "if False:")),
            (RunningBoard._take_lead, ("if epoch < self.lead_epoch:", "if False:")),
        ),
    ),
    "published_at_the_end": Mutant(
        "a generation's time is when its round ended",
        ((Coordinating._publish, ("rounds.asked_at_ms", "self._wall_ms()")),),
    ),
    "moved_before_replayed": Mutant(
        "a board moves before its new slices have all that was decided up to the boundary",
        (
            (Filling.reached, ("return all(", "return True or all(")),
            (Relocation._close_and_switch, ("if totals(closed) != totals(filled):", "if False:")),
        ),
    ),
    "opened_before_switched": Mutant(
        "the new slices take events before it is decided that the board lives there",
        (
            (
                Relocation._close_and_switch,
                (
                    'self.phase = "switching"',
                    'self.phase = "switching"; await _each(self._open_target(state, i) for i in range(len(self.target.shards)))',
                ),
            ),
        ),
    ),
    "reopened_after_switched": Mutant(
        "the old slices take events again although the board lives elsewhere",
        (
            (
                Relocation._arrive,
                (
                    'self.phase = "opening"',
                    'self.phase = "opening"; await _each(self._open_source(state, i) for i in range(1, len(self.layout.shards)))',
                ),
            ),
        ),
    ),
    "identities_left_behind": Mutant(
        "players move without the identities of their events",
        ((relocation_changes.bring, ("new_events = [", "new_events = [] and [")),),
    ),
    "imported_as_increments": Mutant(
        "a row that comes in is added to the one that is there",
        (
            (
                relocation_changes.bring,
                (
                    "new_rows.append((player_id, row))",
                    "new_rows.append((player_id, msgspec.structs.replace(row, value=row.value + (known.value if known else 0))))",
                ),
            ),
        ),
    ),
    "copied_from_an_older_ledger": Mutant(
        "a chunk is copied from a ledger that stands before the place where the replay begins",
        ((exporting.copy, ("if upto < at_least:", "if False:")),),
    ),
    "late_order_opens": Mutant(
        "a late order opens what was closed again since",
        (
            (
                relocation_changes.open_again,
                ('state.phase == "open" or state.closed_offset != closed_at', 'state.phase == "open" or not closed_at'),
            ),
        ),
    ),
}

#: The compound fault that provokes a mutant soonest.
FLEET_PROVOKED: dict[str, str] = {
    "mark_answered_uncommitted": "mark_then_lost",
    "shard_missing_from_manifest": "slice_missing",
    "old_mark_for_missing_shard": "slice_missing",
    "asked_again": "slice_missing",
    "keeps_the_newest": "slice_missing",
    "deposed_lead_marks": "lead_sleeps",
    "published_at_the_end": "slice_missing",
    "moved_before_replayed": "moved_under_load",
    "opened_before_switched": "moved_and_killed",
    "reopened_after_switched": "moved_under_load",
    "identities_left_behind": "moved_under_load",
    "imported_as_increments": "moved",
    "copied_from_an_older_ledger": "moved_source_changes",
    "late_order_opens": "moved_late_opening",
}
