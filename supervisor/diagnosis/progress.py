"""How far the work in a log got: steps, the end of the plan, loading. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.diagnosis.loglines import Line

_BAR = re.compile(r"(?P<label>^.{0,200}?)(?P<done>\d{1,9})/(?P<total>\d{1,9}) \[\d+:\d\d")
_NOT_STEPS = re.compile(
    r"shard|download|load|map|filter|generat|fetch|tokeniz|\.safetensors|\.json|pack|convert"
    r"|\bdrop|creating|saving|upload|captur|prompts",
    re.IGNORECASE,
)
_LOSS = re.compile(
    r"['\"]?\b(?:train[_/ ]?)?loss['\"]?\s*[:=]\s*['\"]?-?\d|\bstep[ :=#]+\d+.{0,60}\bloss\b"
    r"|\b(?:lm )?loss: ?\d|\b(?:epoch|iter(?:ation)?|step)\s*[\[:= ]\s*\d+(?:/\d+)?.{0,40}\bloss\b",
    re.IGNORECASE,
)
_NOT_FINITE = re.compile(
    r"(?:loss|grad(?:ient)?[_ ]?norm|ppl|perplexity)['\"]?\s*[:=]\s*['\"]?-?(?:nan|inf)\b"
    r"|\bloss\b.{0,20}\s(?:nan|inf)\b",
    re.IGNORECASE,
)
_FINISHED = re.compile(
    r"['\"]train_runtime['\"]|\*{5} train metrics \*{5}|\btrain_runtime\s+="
    r""
    r"|\b(?:training|fine-?tuning|run|job|pretraining|generation)\b.{0,20}\b(?:is |was |has )?(?:complet(?:e"
    r"|ed)|finished|done|succeeded|ended successfully)\b(?! with (?:error|exit code [1-9]))"
    r"|\b(?:finished|completed) (?:training|fine-?tuning|successfully(?!, but)|all|epoch \d+/\d+ - all)"
    r"|\bTraining completed\. Do not forget|\bsuccessfully (?:completed|finished|trained)"
    r"|`Trainer\.fit` stopped: `max_(?:epochs|steps)=\S+` reached|\ball (?:done|epochs done|tasks completed)\b"
    r"|\ball \d+ (?:epochs|steps|tasks|rounds)\b.{0,20}\b(?:completed?|done|finished)\b"
    r"|\bDone training\b|\bJob completed\b|exits successfully",
    re.IGNORECASE,
)
_SHORT = re.compile(
    r"stopping training at step \d+!|not a single sample in your epoch_iterator"
    r"|ended (?:before|early|prematurely)|only \d+ of \d+ .{0,20}(?:steps|rows|tokens|samples)"
    r"|\bended prematurely|stopp(?:ed|ing) (?:early )?(?:after|at) (?:step )?\d+ of \d+"
    r"|\bdata ?(?:loader|set)?(?: iterator)? (?:is |was |ran )?exhausted"
    r"|\bout of (?:data|batches|samples)\b",
    re.IGNORECASE,
)
_NOTHING_DONE = re.compile(r"['\"]train_runtime['\"]: ['\"]?0?\.0\d*|['\"]train_loss['\"]: ['\"]?0\.0['\"]?[,}]")
_EARLY_STOP = re.compile(
    r"early ?stopping (?:triggered|condition|reached|at|after|counter|:)|early ?stopping\W*$"
    r"|early ?stopping: |no improvement (?:for|in)"
    r"|stopping early|target .{0,20}reached",
    re.IGNORECASE,
)
_LOADING = re.compile(
    r"Loading (?:checkpoint|safetensors|pt|model|weights|base)|loading (?:model|weights|base)"
    r"|Loading weights|Starting to load model",
    re.IGNORECASE,
)
FEW_STEPS = 20
"""A bar of fewer steps than this is not taken for one of training."""


@dataclass(frozen=True)
class Progress:
    """``marks``: line numbers that show training going on, rising. ``finished``: line of the last word of a finished
    run, -1 for none. ``short``: the line that says why the work ended early. ``done``/``total``: of the
    last bar of steps.
    """

    marks: tuple[int, ...]
    finished: int
    short: int
    done: int
    total: int
    nothing_done: bool
    stopped_early: bool
    loading: tuple[int, ...]
    not_finite: tuple[int, ...]
    """The reports of loss or gradients at the end of the log that are not finite."""

    def survived(self, index: int) -> bool:
        """Did training go on after this line?"""
        return sum(mark > index for mark in self.marks[-3:]) >= 2 or self.finished > index

    def begun(self, index: int) -> bool:
        """Were there steps before this line?"""
        return bool(self.marks) and self.marks[0] < index

    def loads(self, index: int) -> bool:
        """Was the last thing before this line the loading of weights?"""
        return any(index - 60 <= mark < index for mark in self.loading)


def read_progress(lines: Sequence[Line]) -> Progress:
    marks: list[int] = []
    loading: list[int] = []
    finished = short = -1
    done = total = 0
    not_finite: list[int] = []
    best: dict[int, int] = {}
    nothing_done = stopped_early = False
    for index, line in enumerate(lines):
        text = line.text
        if "/" in text and (bar := _BAR.search(text)) and not _NOT_STEPS.search(bar["label"]):
            now, planned = int(bar["done"]), int(bar["total"])
            if planned >= FEW_STEPS and now > best.get(planned, 0):
                best[planned] = now
                marks.append(index)
            if planned >= FEW_STEPS or not total:
                done, total = now, planned
            if "nan" not in text:
                continue
        lowered = text.lower()
        if ("nan" in lowered or "inf" in lowered) and _NOT_FINITE.search(text):
            not_finite.append(index)
        elif "loss" in lowered and _LOSS.search(text) and not text.startswith(" "):
            marks.append(index)
            not_finite.clear()
        if _FINISHED.search(text):
            finished = index
            nothing_done = bool(_NOTHING_DONE.search(text))
        if _SHORT.search(text):
            short = index
        if not stopped_early and _EARLY_STOP.search(text):
            stopped_early = True
        if "load" in lowered and _LOADING.search(text):
            loading.append(index)
    return Progress(
        tuple(marks), finished, short, done, total, nothing_done, stopped_early, tuple(loading), tuple(not_finite)
    )
