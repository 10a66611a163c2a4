"""Accounts under any order of calls that hypothesis can think of."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from runs_by_hand import ORDER, Hand

from parts import NIGHTLY
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.ledger.audit import disagreements
from plimsoll.ledger.journal import snapshot
from plimsoll.ledger.recovery import can_restore
from plimsoll.ledger.rules.batching import Batch, Waiting
from plimsoll.ledger.rules.stragglers import MOST_RESUMES, Remedy
from plimsoll.ledger.settings import Settings
from plimsoll.trials.verdicts import Cause


@st.composite
def rules(draw) -> Settings:
    depth = draw(st.integers(0, 2))
    size = draw(st.integers(1, 2))
    return Settings(
        batch_groups=draw(st.integers(1, 3)),
        max_running=draw(st.integers(size, 12)),
        depth=depth,
        max_staleness=depth + draw(st.integers(0, 2)),
        group_size=size,
        group_policy=draw(st.sampled_from(["complete", "min_graded", "void"])),
        requeues=draw(st.integers(0, 2)),
    )


class Run(RuleBasedStateMachine):
    """A controller that does anything at any time."""

    @initialize(chosen=rules())
    def begin(self, chosen: Settings) -> None:
        self.run = Hand()
        self.run.accounts.configure(chosen)
        self.versions: list[Version] = [FIRST_VERSION]
        self.tickets: list[str] = ["nobody/0.0"]
        self.published = False
        """Weights of the step under way may have generated something."""
        self.changed = False
        """The settings are not those that live groups were admitted under."""

    @rule()
    def admit(self) -> None:
        for group in self.run.accounts.admit(ORDER):
            self.tickets += group.tickets

    @rule(name=st.integers(0, 3), size=st.integers(1, 2))
    def evaluate(self, name: int, size: int) -> None:
        live = self.run.books.live
        accounts = self.run.accounts
        new = accounts.evaluation_name(str(name))
        for group in accounts.admit_evaluation(new, ["a", "b"], size):
            self.tickets += group.tickets
        assert self.run.books.live == live

    @rule(name=st.integers(0, 3))
    def give_up_evaluation(self, name: int) -> None:
        self.run.accounts.give_up_evaluation(str(name))

    @precondition(lambda self: self.run.books.is_training)
    @rule()
    def publish(self) -> None:
        """From here on tokens may be of a version that is not committed, and may never be."""
        version = self.run.books.version
        self.versions.append(Version(version.lineage, version.number + 1))
        self.published = True

    @rule(which=st.integers(0), worker=st.sampled_from("ab"))
    def start(self, which: int, worker: str) -> None:
        waiting = self.run.accounts.waiting() or self.tickets
        self.tickets.append(waiting[which % len(waiting)])
        self.run.accounts.start(self.tickets[-1], worker)

    @rule(which=st.integers(0), oldest=st.integers(0), newest=st.integers(0))
    def finish(self, which: int, oldest: int, newest: int) -> None:
        seen = sorted(self.versions)
        versions = [seen[oldest % len(seen)], seen[newest % len(seen)]]
        self.run.finish(self.tickets[which % len(self.tickets)], *versions)

    @rule(which=st.integers(0))
    def finish_with_the_weights_of_now(self, which: int) -> None:
        self.run.finish(self.tickets[which % len(self.tickets)], self.run.books.version)

    @rule(which=st.integers(0), cause=st.sampled_from(Cause))
    def void(self, which: int, cause: Cause) -> None:
        self.run.void(self.tickets[which % len(self.tickets)], cause)

    @rule()
    def finish_all(self) -> None:
        for group in list(self.run.books.groups.values()):
            for ticket in group.tickets:
                self.run.finish(ticket, self.run.books.version)

    @rule()
    def consume(self) -> None:
        choice = self.run.accounts.choose()
        if isinstance(choice, Batch):
            assert len(choice.groups) == self.run.accounts.settings.batch_groups
            self.run.accounts.consume(choice)
            self.published = False

    @precondition(lambda self: self.run.books.is_training and not self.published)
    @rule(which=st.sets(st.integers(0, 5), min_size=1))
    def reject(self, which: set[int]) -> None:
        batch = self.run.books.training
        bad = {batch[one % len(batch)].id: "its trajectory is gone" for one in which}
        self.run.accounts.reject(bad)
        assert not self.run.books.is_training
        assert all((group.id in self.run.books.groups) == (group.id not in bad) for group in batch)

    @precondition(lambda self: self.run.books.is_training)
    @rule()
    def commit(self) -> None:
        self.versions.append(self.run.accounts.commit())

    @rule(which=st.integers(0), slack=st.booleans(), resumes=st.booleans())
    def attend(self, which: int, slack: bool, resumes: bool) -> None:
        choice = self.run.accounts.choose()
        if isinstance(choice, Waiting) and choice.due:
            late = choice.due[which % len(choice.due)]
            group = self.run.books.groups[late]
            resumes = 0 if group.waits else max(member.resumes for member in group.members)
            remedy = self.run.accounts.attend(late, slack_left=slack, can_resume=resumes)
            assert remedy is not None
            assert not (resumes >= MOST_RESUMES and remedy is Remedy.RESUME)

    @rule(which=st.integers(0), alive=st.booleans(), ahead=st.booleans())
    def crash(self, which: int, alive: bool, ahead: bool) -> None:
        before = snapshot.dump(self.run.books)
        self.run.reopen()
        books = self.run.books
        assert snapshot.dump(books) == before
        assert snapshot.dump(snapshot.load(before)) == before
        known = [version for version in self.versions if can_restore(books, version)]
        if ahead and books.is_training:
            known = [Version(books.version.lineage, books.version.number + 1)]
        at = self.run.recover(known[which % len(known)], alive=alive)
        self.versions.append(at)

    @rule(which=st.sets(st.integers(0, 49)))
    def readmit(self, which: set[int]) -> None:
        returned = self.run.accounts.readmit({f"task-{number}" for number in which})
        assert not self.run.books.quarantined.keys() & set(returned)

    @rule(chosen=rules())
    def change_settings(self, chosen: Settings) -> None:
        self.run.reopen()
        self.run.accounts.configure(chosen)
        self.run.recover(self.run.books.version, alive=True)
        self.changed = True

    @invariant()
    def nothing_is_broken(self) -> None:
        if not hasattr(self, "run"):
            return
        books, settings = self.run.books, self.run.accounts.settings
        assert disagreements(books) == []
        assert self.run.store.auditor.broken == []
        assert self.run.store.auditor.against(books) == []
        assert books.running <= settings.max_running or self.changed
        assert books.live <= settings.most_live or self.changed


Run.TestCase.settings = settings(
    max_examples=400 if NIGHTLY else 150,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
test_any_order_of_calls_keeps_every_promise = Run.TestCase
