"""Whether two evaluations may be compared at all. Pure; light: no numpy.

Every reason found is a sentence that names what differs; none means that a difference is one of the models.
"""

from __future__ import annotations

import msgspec

from evalsuite.scores import ModelIdentity, SamplingIdentity, Scores
from rft.samplers.effect import LEAST_EFFECT

_SHOWN = 3


def not_whole(scores: Scores, role: str) -> list[str]:
    """Why the evaluation is not one of its whole bench."""
    found = []
    wanted = scores.sampling.samples_per_task
    if scores.missing:
        few = _few(scores.missing)
        found.append(f"{role}: {len(scores.missing)} of {scores.bench.tasks} tasks have no score ({few})")
    short = [task.task for task in scores.tasks if task.samples != wanted]
    if short:
        found.append(f"{role}: {len(short)} tasks have another number of samples than {wanted} ({_few(short)})")
    if not scores.tasks and not scores.missing:
        found.append(f"{role}: there are no tasks")
    return found


def not_applied(scores: Scores, role: str) -> list[str]:
    """Why it is not proven that the adapter was applied."""
    model = scores.model
    if model.adapter is None:
        return []
    effect = model.adapter_effect_nats
    if effect is None:
        return [f"{role}: it was not measured that the adapter changes what the model says, so it may not be applied"]
    if not effect > LEAST_EFFECT:
        return [f"{role}: the adapter was not applied, or is empty: it moves no log-probability ({effect:.3g} nats)"]
    return []


def differences(candidate: Scores, reference: Scores, role: str) -> list[str]:
    """Why the candidate may not be compared with ``reference``; ``role`` is what it is: base or release."""
    found = []
    if candidate.bench.digest != reference.bench.digest:
        found.append(
            f"{role}: it was asked another bench, {_bench(reference)}, and the candidate {_bench(candidate)}; evaluate "
            "both with one bench and one version of its verifiers"
        )
    found += [f"{role}: {each}" for each in _sampling(candidate.sampling, reference.sampling)]
    ours, theirs = candidate.model.template_hash, reference.model.template_hash
    if ours is None or theirs is None:
        whose = "the candidate" if ours is None else f"the {role}"
        found.append(f"{role}: it is unknown by which chat template {whose} was asked, so it may be another one")
    elif ours != theirs:
        found.append(f"{role}: it was asked by another chat template ({theirs[:12]}, the candidate by {ours[:12]})")
    clusters = {task.task: task.cluster for task in reference.tasks}
    if any(clusters.get(task.task, task.cluster) != task.cluster for task in candidate.tasks):
        found.append(f"{role}: its tasks belong to other clusters than the candidate's")
    return found


def not_the_base(candidate: ModelIdentity, base: ModelIdentity) -> list[str]:
    """Why ``base`` is not what the candidate came from."""
    if base.adapter is not None:
        return [f"base: it has an adapter ({base.adapter[:12]}); name the evaluation of the bare model"]
    same = _same_weights(candidate, base)
    if candidate.adapter is None and same:
        return ["candidate: it is the base itself, without an adapter; evaluate it with --adapter"]
    if candidate.adapter is not None and not same:
        return [f"base: it is {_base(base)}, and the candidate's adapter was on {_base(candidate)}"]
    return []


def nothing_released(candidate: ModelIdentity, release: ModelIdentity) -> list[str]:
    """Why ``release`` is no release before the candidate."""
    if release.adapter is not None or not _same_weights(candidate, release):
        return []
    return [
        "release: it is the base itself, without an adapter; name the evaluation of what was released, or none while "
        "nothing is"
    ]


def _same_weights(one: ModelIdentity, other: ModelIdentity) -> bool:
    if one.base_digest is not None and other.base_digest is not None:
        return one.base_digest == other.base_digest
    return (one.base, one.base_revision) == (other.base, other.base_revision)


def _sampling(ours: SamplingIdentity, theirs: SamplingIdentity) -> list[str]:
    """The seed may differ: it chooses samples, not what they are drawn from."""
    return [
        f"it was sampled with {name} {_shown(getattr(theirs, name))}, the candidate with {_shown(getattr(ours, name))}"
        for name in SamplingIdentity.__struct_fields__
        if name != "seed" and getattr(ours, name) != getattr(theirs, name)
    ]


def sampled_otherwise(bench: SamplingIdentity, candidate: SamplingIdentity) -> list[str]:
    """Why the candidate was not sampled as the bench's file says. The number of samples, which decides how sure a
    verdict is, and the seed may differ."""
    asked = msgspec.structs.replace(candidate, samples_per_task=bench.samples_per_task)
    return [f"bench: by its file {each}" for each in _sampling(asked, bench)]


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bench(scores: Scores) -> str:
    return f"{scores.bench.name} of {scores.bench.tasks} tasks, digest {scores.bench.digest[:12]}"


def _base(model: ModelIdentity) -> str:
    digest = f", weights {model.base_digest[:12]}" if model.base_digest else ""
    return f"{model.base}{f'@{model.base_revision}' if model.base_revision else ''}{digest}"


def _few(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
