"""The live view: a screenful that is right at any size of terminal, drawn by rich."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from supervisor.protocol.paths import checkpoint_step
from supervisor.sensors.disk import human_bytes
from supervisor.view.follow import RunView
from supervisor.view.resources import resource_parts
from supervisor.view.text import clean, count, duration, progress_bar, sparkline
from supervisor.view.wording import clock, describe, is_alarming, number, with_noise

MAX_WIDTH = 160
SHOWN_EVENTS = 6
_GAP = "   "


class LiveScreen:
    """A rich renderable of one :class:`RunView`, laid out anew for the size it is drawn at."""

    def __init__(self, view: RunView) -> None:
        self.view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, MAX_WIDTH)
        unicode = not options.ascii_only
        height = options.height or options.size.height
        for line in _lines(self.view, width, height, unicode):
            if not unicode:
                line = Text(line.plain.encode("ascii", "replace").decode(), line.style)
            line.no_wrap = True
            line.truncate(width, overflow="ellipsis" if unicode else "crop")
            yield line


def _lines(view: RunView, width: int, height: int, unicode: bool) -> Iterator[Text]:
    fixed = [
        _headline(view, width),
        _steps(view, width, unicode),
        _loss(view, width, unicode),
        _rates(view),
        _resources(view),
        *_machine(view),
        *_relief(view),
    ]
    yield from fixed
    room = max(0, min(SHOWN_EVENTS, height - len(fixed) - 2))
    if room and view.recent_events:
        yield Text(("─" if unicode else "-") * width, "dim")
        for event in view.recent_events[-room:]:
            style = "yellow" if is_alarming(event) else ""
            yield Text(f"{clock(event.time)} {describe(event) or ''}", style)


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


def _rates(view: RunView) -> Text:
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
    return Text(_GAP.join(parts) or "no step yet")


def _resources(view: RunView) -> Text:
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
    return Text(_GAP.join(parts))


def _machine(view: RunView) -> list[Text]:
    if not view.running or view.sensors is None:
        return []
    return [Text(_GAP.join(resource_parts(view.sensors)))]


def _relief(view: RunView) -> list[Text]:
    if view.state is None or not view.state.relief:
        return []
    taken = Counter(clean(relief.rung) for relief in view.state.relief)
    times = (rung if how_often == 1 else f"{rung} (x{how_often})" for rung, how_often in taken.items())
    return [Text("relief " + ", ".join(times), "yellow")]
