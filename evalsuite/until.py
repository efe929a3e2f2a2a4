"""An evaluation that ends as soon as its gate knows the answer: tasks in a random order, a look after every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.config import EvalSections
from rft.config import RftSections
from rft.store import Store
from rft.tasks.load import LoadReport
from rft.tasks.task import Task
from supervisor.problems import InputError
from trainer.errors import ConfigurationError

LoadTasks = Callable[[RftSections, LoadReport], Iterable[Task]]

if TYPE_CHECKING:
    from evalsuite.gate_config import BenchSection, GateSections
    from evalsuite.gate_inputs import BenchInputs


class Until:
    """The looks of one sequential bench of a gate at the evaluation in ``folder``.

    Raises ConfigurationError when the gate does not wait for this evaluation, or could never judge it.
    """

    def __init__(self, gate: Path, folder: Path, sections: EvalSections, name: str) -> None:
        from evalsuite.gate_config import load_gate

        self._file, self._folder, self._sections, self._name = gate, folder, sections, name
        try:
            self._gate: GateSections = load_gate(gate)
        except InputError as error:
            raise ConfigurationError(str(error)) from None
        self._bench = self._own_bench()
        self._next_look = 0

    @property
    def order_seed(self) -> int:
        assert self._bench.sequential is not None
        return self._bench.sequential.seed

    def in_order(self, load: LoadTasks) -> LoadTasks:
        """All that ``load`` gives, the clusters in the gate's order."""
        from evalsuite.statistics.sequential import order_of

        def ordered(sections: RftSections, report: LoadReport) -> Iterable[Task]:
            tasks = list(load(sections, report))
            places = {name: at for at, name in enumerate(order_of([_cluster(task) for task in tasks], self.order_seed))}
            return sorted(tasks, key=lambda task: places[_cluster(task)])

        return ordered

    def enough(self, store: Store, done_tasks: int) -> str | None:
        """Why no more need be asked: the gate's answer is known. Raises ConfigurationError when it cannot be judged,
        and that is found out before anything is asked."""
        assert self._bench.sequential is not None
        if done_tasks < self._next_look:
            return None
        self._next_look = done_tasks + self._bench.sequential.batch
        from evalsuite.collect import scores_of
        from evalsuite.gate_inputs import BenchInputs, read_references, reasons_against

        found, _ = scores_of(store, self._sections, self._name)
        read = BenchInputs(self._bench, found)
        read_references(read)
        if reasons := [*read.reasons, *reasons_against(read)]:
            raise ConfigurationError(f"{self._file} could not judge this evaluation: {'; '.join(reasons)}.")
        try:
            return self._known(read) if found.tasks else None
        except InputError as error:
            raise ConfigurationError(f"{self._file}: {error}") from None

    def _own_bench(self) -> BenchSection:
        own = [bench for bench in self._gate.benches if Path(bench.candidate).resolve() == self._folder.resolve()]
        if not own:
            raise ConfigurationError(
                f"{self._file}: no bench has {self._folder} as its candidate; evaluate into the folder that it names, "
                "with --out."
            )
        if own[0].sequential is None:
            raise ConfigurationError(
                f"{self._file}: its bench {own[0].bench} has no section sequential, so it asks for every task. Add "
                "`sequential: {}`, or leave --until out."
            )
        return own[0]

    def _known(self, read: BenchInputs) -> str | None:
        """Checks of other benches may still count: a FAIL must stand however these turn out."""
        from evalsuite.gate import run_checks

        count = sum(len(check.against) for bench in self._gate.benches for check in bench.checks)
        alpha = 1 - self._gate.confidence
        checks = run_checks(self._gate, [read])
        asked = f"{checks[0].asked} of {checks[0].tasks} tasks"
        failing = [check for check in checks if check.p_pass > alpha and check.p_fail * count <= alpha]
        if failing:
            return f"{self._gate.name}: worse than the {failing[0].against} after {asked}"
        if all(check.p_pass <= alpha for check in checks):
            return f"{self._gate.name}: passed after {asked}"
        return None


def _cluster(task: Task) -> str:
    return task.cluster or task.id
