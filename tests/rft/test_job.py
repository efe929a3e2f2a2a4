"""A job from its tasks to its last verdict, with toy parts."""

from __future__ import annotations

from pathlib import Path

from toy_job import ToySampler, final_set, parts, run, toy_tasks


def test_a_job_runs_to_its_end(tmp_path: Path) -> None:
    report = run(tmp_path, parts(toy_tasks(20), ToySampler()))
    assert report.kind == "completed" and report.planned == report.done, report
    found = final_set(tmp_path)
    print(len(found), report)
