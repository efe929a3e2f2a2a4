"""A run that is completed already."""

from __future__ import annotations

import errno
from pathlib import Path

from supervisor.checkpoints import inspect_checkpoint, link_checkpoint
from supervisor.jobs import keeps_own_state
from supervisor.supervise.foreign import foreign_kind
from supervisor.supervise.opening import Run, RunRefused


def check_completed(run: Run) -> None:
    """A completed run is one whose last checkpoint still verifies; a lost ``final`` link is made again."""
    state, paths = run.state, run.paths
    if foreign_kind(run) is not None or keeps_own_state(run.kind):
        return  # what it left behind is its own business
    last = paths.checkpoint(state.planned_steps, state.lineage)
    if not last.is_dir():
        problem = "is gone"
    elif faults := inspect_checkpoint(last).faults:
        problem = f"does not verify: {'; '.join(map(str, faults))}"
    elif paths.final.exists() and not paths.final.is_symlink():
        raise RunRefused(f"{paths.final} should be a link to {last}, but something else has that name. Move it away.")
    else:
        link_checkpoint(paths.final, last)
        # Said anew, because the folder may have been moved since.
        state.explanation = f"All planned steps, tokens and rows are done. The adapter is in {paths.final}."
        run.journal.save()
        return
    raise RunRefused(
        f"{paths.root} was completed, but its last checkpoint {last} {problem}. Restore it from a backup, or train "
        "again in a new --run-dir."
    )


def link_final(run: Run, last: Path) -> str:
    """Point ``final`` at the last checkpoint and say where the adapter is; what is in the way costs no finished run."""
    final = run.paths.final
    try:
        if final.exists() and not final.is_symlink():
            raise FileExistsError(errno.EEXIST, "something else has that name")
        link_checkpoint(final, last)
    except OSError as error:
        return f"The adapter is in {last}; {final} cannot be made a link to it ({error.strerror})."
    return f"The adapter is in {final}."
