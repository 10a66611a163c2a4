"""Names that scripts, old runs and other programs depend on.

All other tests write and read with the same code, so they would not notice a changed name.
"""

from enum import StrEnum
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from plimsoll.agents.layer.layer import BakedComponent
from plimsoll.cli.main import COMMANDS
from plimsoll.cli.views import lint as lint_view
from plimsoll.cli.views import trial as trial_view
from plimsoll.cli.views.inventory import as_object
from plimsoll.core.endings import Ending
from plimsoll.core.ids import Labels, Owner
from plimsoll.core.versions import Version
from plimsoll.ledger import checkpoints, events, report, settings, task_history
from plimsoll.ledger.books import group, tally
from plimsoll.ledger.journal import location
from plimsoll.ledger.simulator import comparison
from plimsoll.runs.evaluation import held_out
from plimsoll.runs.files import directory, results, status, steps
from plimsoll.runs.validation import records as validation_records
from plimsoll.runs.validation import validate_run
from plimsoll.sandboxes.pool import stats
from plimsoll.sandboxes.reaper import Resource
from plimsoll.trajectories import messages, records, trajectory_file
from plimsoll.trials import record, verdicts
from plimsoll.workers.controller import roster
from plimsoll.workers.worker import trajectory_store

EVENTS = {
    "configured": "at number settings",
    "admitted": "at group prompt task head size attempt requeues resampled purpose",
    "skipped": "at prompt task attempt",
    "returned": "at task number",
    "started": "at ticket version worker",
    "resumed": "at ticket version",
    "finished": "at ticket reward ending seconds segments trial",
    "voided": "at ticket cause reason seconds retry counts anew",
    "withheld": "at group tickets version",
    "group_voided": "at group cause reason counts",
    "consumed": "at version groups rollbacks",
    "committed": "at version checkpoint",
    "rolled_back": "at number parent version restored",
    "ignored": "at number what about",
}
"""The events of `ledger.db`, by tag, with their fields."""

RECORDS = {
    "opened": "session started about format",
    "tools": "id tools",
    "message": "id parent message",
    "exchange": (
        "id parent branch prompt answer dialect finish at seconds version prompt_tokens"
        " answer_tokens tokens untrainable"
    ),
    "trouble": "at what detail dialect",
    "closed": "ending exchanges records digest detail",
}
"""The records of a trajectory file, by kind, with their fields."""

TAGGED = {
    verdicts.Verdict: {
        "graded": "reward ending rewards evidence",
        "void": "cause reason evidence ending",
    },
    messages.Part: {"text": "text", "image": "url", "other": "value"},
    events.Event: EVENTS,
    records.Record: RECORDS,
}

FIELDS: dict[type[msgspec.Struct], str] = {
    # ledger.db
    settings.Settings: (
        "batch_groups max_running depth max_staleness group_size group_policy min_graded requeues"
        " seed"
    ),
    group.Group: "id prompt task admitted members attempt requeues resampled training",
    group.Member: (
        "attempt state head oldest newest reward trial seconds withheld resumed resumes worker"
        " since voids resampled"
    ),
    # trajectories
    records.Tokens: "kept prompt answer logprobs versions",
    messages.Message: "role parts reasoning calls call_id name",
    messages.ToolCall: "id name arguments",
    # verdict.json
    record.VerdictFile: (
        "task attempt agent backend verdict steps ends tests seconds phases started sandbox trial"
    ),
    record.AgentEnd: "ending detail exit_code turns tokens",
    # results.jsonl, and the object of `eval --json`
    results.Row: (
        "task attempt verdict reward rewards ending cause reason seconds agent ticket trial folder"
        " trajectory turns prompt_tokens answer_tokens sandbox_seconds paused_seconds"
    ),
    results.Summary: (
        "tasks trials graded void mean_reward trials_per_minute results breaker pool turns"
        " prompt_tokens answer_tokens"
    ),
    results.Diagnosis: "rule said evidence look remedies go_on stopped",
    stats.PoolStats: (
        "reuse hits cold_starts resets retired failed_starts start start_over_time reset wait_warm"
        " wait_cold"
    ),
    stats.Span: "since seconds starts p50 p99",
    stats.Quantiles: "count p50 p99",
    # heldout.jsonl
    held_out.HeldOutResult: "name step version reward graded void tasks seconds",
    # steps.jsonl
    steps.Step: (
        "step version at reward age groups flat_groups graded withheld void sandbox_seconds"
        " skipped seconds untrainable tokens_per_second update"
    ),
    steps.Seconds: "total wait read update checkpoint publish",
    steps.StepReport: (
        "loss grad_norm kl reference_kl entropy ratio_mean ratio_max clipped weight_mean truncated"
        " value_loss tokens samples learning_rate micro_batches left_out seconds skipped"
    ),
    # status --json
    status.Status: (
        "run state why at seconds step steps version rewards age max_staleness trials graded void"
        " trials_per_second running waiting buffered requeued out heldout canaries ledger workers"
        " workers_wait pool warnings kind total mean_reward"
    ),
    roster.WorkerStatus: (
        "worker phase where host running finished up_seconds waited_seconds silent_seconds rss_mb"
        " lag counts"
    ),
    # run --json
    status.RunSummary: (
        "run path ended done steps version trials graded void reward rewards heldout_before"
        " heldout_after skipped max_age eta seconds trials_per_second left_over quarantined out"
        " problems breaker pool warnings"
    ),
    # ledger --json
    report.Report: (
        "path events version lineage rollbacks settings groups rollouts_in_flight"
        " evaluations_in_flight prompts_begun prompts_pending tally duration_bias quarantined"
        " checkpoints tasks history checked problems"
    ),
    report.Counts: "admitted running buffered training consumed voided",
    report.CheckpointLine: "name version position",
    tally.Tally: (
        "admitted consumed voided requeued quarantined evaluated graded withheld dead_lineage"
        " groups_by_cause tickets_by_cause ignored head_ages token_ages trained trained_seconds"
        " offered offered_seconds"
    ),
    task_history.TaskHistory: "task groups trained graded mean_reward void quarantined",
    task_history.GroupHistory: "group prompt admitted size evaluation rewards void outcome",
    # validate --json, and validation.json
    validate_run.Report: (
        "backend tasks valid quarantined flaky not_finished results validation quarantine run"
    ),
    validation_records.TaskRecord: (
        "task backend ok reason flaky maximum oracle nop digest date assets"
    ),
    validation_records.Attempt: "reward cause reason",
    # lint --json
    lint_view.Summary: "path backend offline tasks errors warnings seconds findings",
    # show --json
    trial_view.ShownTrial: "verdict trajectory",
    trial_view.ShownTrajectory: "session about complete problem ending branches troubles",
    trial_view.ShownBranch: "branch reason left shared messages turns",
    # simulate --json, bake --json
    comparison.Row: "policy time_per_step max_age wasted duration_bias idle",
    BakedComponent: "version packages digest size python",
}
"""The fields of the objects in files of a run and in `--json`."""

ARRAYS: dict[type[msgspec.Struct], str] = {
    Version: "lineage number",
    events.Segment: "version tokens",
}
"""Structs that are written as arrays: the order is the interface."""

VALUES: dict[type[StrEnum], str] = {
    verdicts.Cause: "sandbox policy grader task stale lost cancelled bug",
    Ending: "submitted budget refused",
}

WORDS = {
    events.Purpose: "train eval",
    records.Branch: "start extends again rewritten retokenized",
    records.Finish: "stop length tool_calls refused",
}

FILES = {
    "trials": "trials",
    "results": "results.jsonl",
    "canaries": "canaries.jsonl",
    "summary": "summary.json",
    "config": "config.toml",
    "steps": "steps.jsonl",
    "picture": "training.png",
    "held_out": "heldout.jsonl",
    "held_out_trials": "heldout_trials.jsonl",
    "status": "status.json",
    "request": "request.json",
    "controller": "controller.json",
    "_stored_as": "stored_as.json",
}
"""The files of a run directory, by their attribute of `RunDirectory`."""


def fields_of(struct: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(struct)]


@pytest.mark.parametrize("union", TAGGED, ids=["verdicts", "parts", "events", "records"])
def test_tags_and_fields_of_written_records_are_those_of_old_files(union: object):
    found = {str(one.__struct_config__.tag): fields_of(one) for one in get_args(union)}
    assert found == {tag: fields.split() for tag, fields in TAGGED[union].items()}


def test_tags_are_in_the_fields_that_readers_use():
    def tag_field(union: object) -> set[object]:
        return {one.__struct_config__.tag_field for one in get_args(union)}

    assert tag_field(events.Event) == {"event"}
    assert tag_field(records.Record) == {"kind"}
    assert tag_field(verdicts.Verdict) == {"verdict"}
    assert tag_field(messages.Part) == {"type"}
    assert records.FORMAT == 1


def test_fields_of_json_objects_have_their_names():
    found = {struct: sorted(fields_of(struct)) for struct in FIELDS}
    assert found == {struct: sorted(fields.split()) for struct, fields in FIELDS.items()}
    assert not [struct for struct in FIELDS if struct.__struct_config__.array_like]


def test_arrays_have_their_order():
    assert {struct: fields_of(struct) for struct in ARRAYS} == {
        struct: fields.split() for struct, fields in ARRAYS.items()
    }
    assert all(struct.__struct_config__.array_like for struct in ARRAYS)


def test_values_of_json_fields_have_their_names():
    assert {kind: [*kind] for kind in VALUES} == {
        kind: values.split() for kind, values in VALUES.items()
    }
    assert {kind: get_args(kind) for kind in WORDS} == {
        kind: tuple(values.split()) for kind, values in WORDS.items()
    }


def test_an_item_of_ps_and_clean_has_its_fields():
    labels = Labels("run", "ticket", Owner("elsewhere", 1, "x"), 5.0)
    shown = as_object("local", Resource("sandbox", "id", labels), 0.0)
    fields = "backend kind id name run ticket state age_seconds owner expires shared used_by"
    assert set(shown) == set(fields.split())
    assert set(shown["owner"]) == {"host", "pid", "alive"}


def test_files_of_a_run_have_their_names(tmp_path: Path):
    run = directory.RunDirectory(tmp_path)
    paths = {name: path for name, path in vars(run).items() if isinstance(path, Path)}
    assert paths.pop("path") == tmp_path
    assert paths == {attribute: tmp_path / name for attribute, name in FILES.items()}
    folders = {
        "trials/a.1": run.trial("a", 1),
        "trials/a.nop.1": run.trial("a", 1, "nop"),
        "trials/a.0-0_1.2": run.rollout("a", "0-0/1.2"),
        "heldout/a.0-0_1.2": run.evaluated("a", "0-0/1.2"),
        "canaries/a.3": run.canary("a", 3),
    }
    assert folders == {name: tmp_path / name for name in folders}
    assert next(record.folder_names(Path("a.1"))) == Path("a.1")
    assert [*zip(range(3), record.folder_names(Path("a.1")), strict=False)][2][1] == Path("a.1~3")


def test_files_of_a_ledger_and_a_trial_have_their_names():
    assert (location.FILE, location.LOCK) == ("ledger.db", "ledger.lock")
    assert location.POINTER == "ledger.json"
    assert checkpoints.FOLDER == "checkpoints"
    assert trajectory_file.FILE_NAME == "trajectory.jsonl.zst"
    assert (trajectory_store.TRAJECTORIES, trajectory_store.BLOBS) == ("trajectories", "blobs")
    assert trial_view.VERDICT == "verdict.json"


def test_commands_have_their_names():
    names = (
        "bake clean completion config eval gateway ledger lint ps resume run show simulate stage"
        " status stop validate"
    )
    assert sorted(COMMANDS) == names.split()


def test_the_pages_name_every_file_of_a_run():
    pages = "".join(
        (Path(__file__).parents[1] / "docs" / page).read_text() for page in ("runs.md", "eval.md")
    )
    assert [name for name in FILES.values() if f"`{name}" not in pages] == []
