"""A progress bar over several searches, on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from autoswizzle.problem import GemmProblem
from autoswizzle.search.study import Progress as Standing


class SearchBar:
    """Shows what is searched, its trials, its best time and when all will be done.

    A problem's share of the whole is its trials done of those allowed. Of problems searched at the
    same time, which several threads may report, the latest report is shown.
    """

    def __init__(self, bar: Progress, problems: int) -> None:
        self._bar = bar
        self._lock = Lock()
        self._all = bar.add_task("problems", total=problems, note="")
        self._shares: dict[GemmProblem, float] = {}

    def __call__(self, problem: GemmProblem, standing: Standing) -> None:
        """Show where the search of problem stands."""
        best = standing.best and f"best {standing.best.time_us:.1f} us, {standing.best.config}"
        share = min(1.0, standing.done / standing.trials)
        self._show(
            problem, share, f"{problem} trial {standing.done}: {best or 'nothing measured yet'}"
        )

    def finish(self, problem: GemmProblem) -> None:
        """Count problem as done."""
        self._show(problem, 1.0, f"{problem} done")

    def _show(self, problem: GemmProblem, share: float, note: str) -> None:
        with self._lock:
            self._shares[problem] = share
            self._bar.update(self._all, completed=sum(self._shares.values()), note=note)


@contextmanager
def search_bar(problems: int, *, shown: bool) -> Iterator[SearchBar]:
    """A SearchBar over `problems` searches, drawn only if shown and stderr is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as bar:
        yield SearchBar(bar, problems)
