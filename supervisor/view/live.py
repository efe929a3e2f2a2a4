"""The live view: a screenful that is right at any size of terminal, drawn by rich."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from supervisor.protocol.paths import checkpoint_step
from supervisor.redact import hide_secrets
from supervisor.sensors.disk import human_bytes
from supervisor.view.follow import RunView
from supervisor.view.resources import resource_parts
from supervisor.view.text import chart, clean, count, duration, plain_ascii, progress_bar, sparkline
from supervisor.view.wording import clock, describe, is_alarming, number, with_noise

MAX_WIDTH = 240
TALL = 40
"""Lines from which on there is room for a drawing of the loss and for what the attempts died of."""
CHART_LINES = 8
SHOWN_FAILURES = 5
SHOWN_LINES = 6
"""Events and log lines that a low screen shows; a higher one fills half of itself with them."""
_GAP = "   "


@dataclass(frozen=True)
class Foot:
    """The lower part of the screen. ``hint``: the line about keys. ``log``: log lines in the place of events."""

    hint: str = ""
    log_name: str = ""
    log: Sequence[str] | None = None


class LiveScreen:
    """A rich renderable of one :class:`RunView`, laid out anew for the size it is drawn at."""

    def __init__(self, view: RunView, foot: Foot | None = None) -> None:
        self.view = view
        self.foot = foot or Foot()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, MAX_WIDTH)
        unicode = not options.ascii_only
        height = options.height or options.size.height
        lines = [*_lines(self.view, self.foot, width, height, unicode)]
        for line in lines:
            if not unicode:
                line = Text(plain_ascii(line.plain), line.style)
            line.no_wrap = True
            line.truncate(width, overflow="ellipsis" if unicode else "crop")
            yield line


def _lines(view: RunView, foot: Foot, width: int, height: int, unicode: bool) -> Iterator[Text]:
    """Fewer than ``height`` lines; what there is no room for is left out from below, the hint last."""
    fixed = [_headline(view, width), _steps(view, width, unicode), _loss(view, width, unicode)]
    if height >= TALL:
        fixed += _drawing(view, width, unicode)
    for parts in (_rates(view), _resources(view), _machine(view)):
        fixed += [Text(line) for line in _wrapped(parts, width)]
    fixed += [*_unattended(view), *_relief(view)]
    if height >= TALL:
        fixed += _failures(view)
    hint = [Text(foot.hint, "reverse" if foot.hint.endswith("no") else "dim")] if foot.hint else []
    free = height - 1 - len(hint)
    if foot.log is not None and free - len(fixed) - 1 < SHOWN_LINES:
        fixed = fixed[:3]  # whoever asks for log lines on a low screen wants them, not the figures
    yield from fixed[: max(1, free)]
    room = min(free - len(fixed) - 1, max(SHOWN_LINES, height // 2))
    title, shown = _pane(view, foot)
    if room > 0 and shown:
        rule = "\u2500" if unicode else "-"
        yield Text(f"{rule * 2} {title} ".ljust(width, rule) if title else rule * width, "dim")
        yield from shown[-room:]
    yield from hint


def _pane(view: RunView, foot: Foot) -> tuple[str, list[Text]]:
    """Events, or the log lines that were asked for, with what stands in the rule above them."""
    if foot.log is not None:
        attempt = view.state.attempt if view.state else 0
        lines = [Text(line) for line in foot.log]
        return f"{foot.log_name or 'log'} of attempt {attempt}", lines or [Text("nothing was written yet", "dim")]
    return "", [
        Text(f"{clock(event.time)} {describe(event) or ''}", "yellow" if is_alarming(event) else "")
        for event in view.recent_events
    ]


def _headline(view: RunView, width: int) -> Text:
    state = view.state
    if state is None:
        return Text("starting", "bold")
    limit = f"attempt {view.attempt_of_call} of {state.max_attempts}"
    if view.running:
        phase = view.phase or "between attempts"
        if view.beat is not None and view.beat.age_seconds >= 10:
            phase += f", silent for {duration(view.beat.age_seconds)}"
    else:
        phase = state.outcome.value.replace("_", " ")
    right = f"{limit}{_GAP}{phase}"
    name = clean(state.id)
    room = max(8, width - len(right) - len(_GAP))
    if len(name) > room:
        name = f"{name[: room - 2]}.."
    line = Text(name, "bold")
    line.append(" " * max(len(_GAP), width - len(name) - len(right)))
    line.append(right, "bold green" if view.running else "bold")
    return line


def _steps(view: RunView, width: int, unicode: bool) -> Text:
    planned = view.planned_steps
    label = f"step {view.step}/{planned if planned is not None else '?'} "
    share = view.step / planned if planned else 0.0
    left = number(view.progress, "eta_seconds") if view.running else None
    end = (f" {share:4.0%}" if planned else "") + ("" if left is None else f"  ETA {duration(left)}")
    room = width - len(label) - len(end)
    if room < 4:
        return Text(label + end)
    line = Text(label)
    line.append(progress_bar(share, room, unicode=unicode), "cyan")
    line.append(end)
    return line


def _loss(view: RunView, width: int, unicode: bool) -> Text:
    if view.progress_message:  # a job that has no loss says how it goes in its own words
        return Text(clean(view.progress_message))
    loss = number(view.progress, "loss")
    label = f"loss {'?' if loss is None else f'{loss:.4f}'} "
    end = ""
    if view.eval_loss is not None:
        step, value = view.eval_loss
        end = f" eval {with_noise(value, view.eval_loss_stderr)}" + ("" if step is None else f" (step {step})")
    room = width - len(label) - len(end)
    line = Text(label)
    line.append(sparkline([value for _, value in view.losses], room, unicode=unicode), "magenta")
    line.append(end)
    return line


def _rates(view: RunView) -> list[str]:
    data = view.progress
    parts = []
    if (rate := number(data, "learning_rate")) is not None:
        parts.append(f"lr {rate:.2e}")
    if (norm := number(data, "grad_norm")) is not None:
        clipped = number(data, "grad_norm_clipped")
        parts.append(f"grad norm {norm:.3g}" + ("" if clipped is None else f" (clipped {clipped:.3g})"))
    if (speed := number(data, "tokens_per_second")) is not None:
        parts.append(f"{count(speed)} tokens/s")
    if (epoch := number(data, "epoch")) is not None:
        parts.append(f"epoch {epoch:.2f}")
    return parts or ["no step yet"]


def _resources(view: RunView) -> list[str]:
    reported = number(view.progress, "memory_bytes") if view.running else None
    resident = view.trainer_rss_bytes
    parts = []
    if resident is not None:
        parts.append(f"memory {human_bytes(resident)}")
    # On a CPU the trainer reports its own resident size, which stands there already.
    if reported is not None and (resident is None or abs(reported - resident) > 0.25 * resident):
        parts.append(f"peak {human_bytes(int(reported))}")
    parts.append(f"disk free {'?' if view.disk_free_bytes is None else human_bytes(view.disk_free_bytes)}")
    if view.state is not None:
        step = checkpoint_step(Path(view.state.last_checkpoint or "").name)
        parts.append("no checkpoint yet" if step is None else f"checkpoint step {step}")
    return parts


def _machine(view: RunView) -> list[str]:
    return [*resource_parts(view.sensors)] if view.running and view.sensors is not None else []


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """As many parts to a line as it holds."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(_GAP) + len(part) <= width:
            lines[-1] += f"{_GAP}{part}"
        else:
            lines.append(part)
    return lines


def _unattended(view: RunView) -> list[Text]:
    if not view.running or view.supervisor_alive:
        return []
    return [Text(f"nobody supervises it; go on with: mens-sup run --run-dir {clean(str(view.directory))}", "yellow")]


def _relief(view: RunView) -> list[Text]:
    if view.state is None or not view.state.relief:
        return []
    taken = Counter(clean(relief.rung) for relief in view.state.relief)
    times = (rung if how_often == 1 else f"{rung} (x{how_often})" for rung, how_often in taken.items())
    return [Text("relief " + ", ".join(times), "yellow")]


def _drawing(view: RunView, width: int, unicode: bool) -> list[Text]:
    """The loss of the steps that count, with its highest and lowest value beside it."""
    values = [value for _, value in view.losses]
    if len(values) < 2:
        return []
    label = max(len(f"{value:.4f}") for value in (max(values), min(values)))
    rows = chart(values, max(8, width - label - 1), CHART_LINES, unicode=unicode)
    ends = {0: f"{rows.high:.4f}", CHART_LINES - 1: f"{rows.low:.4f}"}
    return [Text(f"{ends.get(place, ''):>{label}} {row}", "magenta") for place, row in enumerate(rows.lines)]


def _failures(view: RunView) -> list[Text]:
    if view.state is None:
        return []
    shown = view.state.failures[-SHOWN_FAILURES:]
    said = [f"attempt {each.attempt} {each.kind} at step {each.step}: {each.message}" for each in shown]
    return [Text(clean(str(hide_secrets(line))), "red") for line in said]
