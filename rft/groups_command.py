"""``mens-sup rft groups``: sample a job whole and write its GRPO groups. Light; imports when it runs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "write rollouts with rewards, log-probabilities and advantages, sampling them first where need be"
    parser = actions.add_parser("groups", help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False)
    parser.add_argument(
        "job", metavar="JOB", type=Path, help="YAML file of a job, or the folder of a run that was sampled already"
    )
    parser.add_argument(
        "--run-dir", metavar="DIR", type=Path, help="the job's folder, new or to be continued (runs/JOB-groups)"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="the rollouts (groups.jsonl or .parquet in the run)")
    parser.add_argument(
        "--set", dest="sets", metavar="KEY=VALUE", action="append", default=[], help="override a key; may be repeated"
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="the manifest on standard output")
    parser.set_defaults(command=groups_command)


def groups_command(options: argparse.Namespace) -> int:
    """0 when the groups are written; else the exit code of the job, or 2 (by InputError) for bad input."""
    from rft.groups import config_problem, write_groups
    from rft.samplers.renderer import PromptError, close_renderers, prompt_renderer
    from rft.samplers.sampler import SamplerLostError, SamplerUnusableError
    from rft.standing import open_to_read, sections_of
    from rft.tasks.task import Task
    from supervisor.problems import InputError

    run_dir = options.job
    if not options.job.is_dir():
        run_dir, code = _sampled(options)
        if code:
            return code
    elif options.run_dir is not None or options.sets:
        raise InputError(f"{options.job} is a run that was sampled already: --run-dir and --set are for a job's file.")
    sections = sections_of(run_dir)
    if problem := config_problem(sections):
        raise InputError(f"{run_dir}: {problem}")
    out = options.out or run_dir / f"groups.{sections.groups.format}"
    try:
        renderer = prompt_renderer(sections.sampler)
        if renderer is None:
            raise InputError(
                "sampler.type openai: such a server does not tell the token ids of its prompts, which an off-policy "
                "trainer needs. Sample with type transformers, vllm or vllm_offline."
            )

        def prompt_ids(task: Task) -> tuple[int, ...]:
            return renderer.ids(task.messages, task.tools)

        with open_to_read(run_dir) as store:
            manifest = write_groups(store, sections, prompt_ids, renderer.template_hash, out)
    except (SamplerUnusableError, SamplerLostError, PromptError) as error:
        raise InputError(str(error)) from None
    finally:
        close_renderers()
    if options.as_json:
        sys.stdout.write(json.dumps(manifest, indent=2) + "\n")
        return 0
    left_out = "; ".join(f"{count} {reason}" for reason, count in manifest["left_out"].items())
    sys.stdout.write(
        f"{out}: {manifest['rollouts']} rollouts of {manifest['groups']} groups, advantage {manifest['advantage']}, "
        f"{manifest['truncated_rollouts']} truncated{f'; left out: {left_out}' if left_out else ''}.\n"
    )
    return 0


def _sampled(options: argparse.Namespace) -> tuple[Path, int]:
    """The run's folder after the job has run under the supervisor, and its exit code."""
    from rft.groups import config_problem
    from rft.job_file import SUPERVISOR, load_job
    from supervisor.problems import InputError

    if problem := config_problem(load_job(options.job, options.sets)):
        raise InputError(f"{options.job}: {problem}")
    run_dir = options.run_dir or Path("runs", f"{options.job.stem}-groups")
    sets = [f"--set={each}" for each in options.sets]
    done = subprocess.run(
        [*SUPERVISOR, "run", str(options.job), f"--run-dir={run_dir}", *sets],
        stdout=sys.stderr if options.as_json else None,
        check=False,
    )
    return run_dir, done.returncode
