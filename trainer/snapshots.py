"""After every optimiser step the state goes to shared memory, from where the supervisor saves it when we die.

A thread copies the tensors straight into the slot's mapped files, checks, digests and seals them while the next step
computes its gradients; the optimiser, which alone changes them, waits until they are copied. From a GPU they are copied
between two steps, into pinned memory. The thread draws no random numbers and takes part in nothing that the training
computes.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from supervisor.protocol.snapshot import SLOTS, FastDigest, Seal, SealedFile, break_seal, seal, sealed_file
from supervisor.sensors.cgroup import find_cgroup, read_cgroup
from supervisor.sensors.host import read_host
from supervisor.sensors.snapshot import CgroupReading, Unknown
from trainer.checkpoint import Provenance, StepState, described, make_manifest, require_finite, trainer_files
from trainer.errors import NonFiniteError
from trainer.reporting import Reporter
from trainer.tensor_file import Layout, Place, in_order, lay_out

MARGIN_BYTES = 16 << 20
"""Shared memory that snapshots leave to others; NCCL and data loaders need some."""
MARGIN_SHARE = 0.1
"""Of all memory, which snapshots leave free."""
PIECE = 1 << 16
"""Numbers that are summed and digested at a time."""
CHUNK_BYTES = 1 << 18
"""Of tensors that are copied at a time, and then summed and digested while they are in the cache."""
CLOSE_SECONDS = 30.0
"""For the last snapshot at the end of a training; a wedged GPU may never let go of it."""
PATIENCE_SECONDS = 1.0
PATIENCE_SHARE = 0.005
"""How long all steps together may wait for a snapshot before: so long, and this share of the time so far."""


class NoRoomError(Exception):
    """Too little shared memory or memory; the text says how much there is and how much is needed."""


def open_snapshots(reporter: Reporter) -> Snapshots | None:
    """None when the supervisor has named no folder for them."""
    folder = reporter.spec.snapshots
    return Snapshots(Path(folder), reporter) if folder else None


class Snapshots:
    """Two slots in ``folder``. A step finds the slot before still being written: it waits a little, or is skipped."""

    def __init__(self, folder: Path, reporter: Reporter) -> None:
        self._reporter = reporter
        self._slots = [_Slot(folder / name) for name in SLOTS]
        self._next = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        self._pending: Future[float] | None = None
        self._copied = threading.Event()
        self._off = False
        self._warned = False
        self._began = time.monotonic()
        self._waited = 0.0
        self.taken = 0
        self.skipped = 0
        self.seconds_between_steps = 0.0
        self.seconds_of_writer = 0.0

    def take(self, collect: Callable[[], StepState], provenance: Provenance, interim: bool) -> None:
        """Have the state between two steps written. Never raises for want of room or a failed write.

        Its tensors must not change before :meth:`wait_for_copy`.
        """
        if self._off:
            return
        started = time.perf_counter()
        if not self._settled():
            self.skipped += 1
            self.seconds_between_steps += time.perf_counter() - started
            if self.skipped == 1:
                self._reporter.warn(
                    "snapshots take longer than steps, so some steps get none; a crash may cost more than one step"
                )
            return
        if self._off:
            return
        state = collect()
        slot = self._slots[self._next]
        on_cpu = _on_cpu(state)
        if not on_cpu:
            try:
                self._prepare(slot, state)
            except NoRoomError as error:
                self._switch_off(str(error))
                return
            slot.copy(state)
        self._copied.clear()
        self._pending = self._writer.submit(self._write, slot, state, provenance, interim, on_cpu)
        self.seconds_between_steps += time.perf_counter() - started

    def wait_for_copy(self) -> None:
        """Call it before the tensors change: before the optimiser's step."""
        if self._pending is not None and not self._copied.is_set():
            started = time.perf_counter()
            self._copied.wait()
            self.seconds_between_steps += time.perf_counter() - started

    def close(self) -> None:
        """Wait for the last snapshot, so that an error that ends the training loses no step."""
        if self._pending is not None and wait([self._pending], timeout=CLOSE_SECONDS).done:
            # Numbers that are not finite were met by the next save, or are what ends the training now.
            with suppress(NonFiniteError):
                self._settled()
        self._writer.shutdown(wait=False)
        if not self.taken and not self.skipped:
            return
        # Told in vain to a full disk: the error that ended the training matters more.
        with suppress(OSError):
            self._reporter.event(
                "snapshots",
                f"{self.taken} steps went to shared memory, {self.skipped} were skipped",
                taken=self.taken,
                skipped=self.skipped,
                bytes=self._slots[0].size,
                seconds_between_steps=round(self.seconds_between_steps, 3),
                seconds_of_writer=round(self.seconds_of_writer, 3),
            )

    def _write(self, slot: _Slot, state: StepState, provenance: Provenance, interim: bool, on_cpu: bool) -> float:
        """The writer's part; returns the seconds of processor time that it took."""
        started = time.thread_time()
        try:
            if on_cpu:
                self._prepare(slot, state)
            sealed = slot.fill(state, copying=on_cpu)
        finally:
            self._copied.set()
        slot.finish(state, sealed, provenance, interim)
        return time.thread_time() - started

    def _settled(self) -> bool:
        """Whether the snapshot before is written, after a little patience."""
        if self._pending is None:
            return True
        if not self._pending.done():
            started = time.monotonic()
            patience = PATIENCE_SECONDS + PATIENCE_SHARE * (started - self._began) - self._waited
            wait([self._pending], timeout=max(0.0, patience))
            self._waited += time.monotonic() - started
            if not self._pending.done():
                return False
        error = self._pending.exception()
        if error is None:
            self.taken += 1
            self.seconds_of_writer += self._pending.result()
            self._next = 1 - self._next  # the one that has just been sealed is not touched
        elif isinstance(error, NonFiniteError):
            self._pending = None
            raise error
        elif isinstance(error, NoRoomError):
            self._switch_off(str(error))
        elif not self._warned:
            self._warned = True
            self._reporter.warn(
                f"the snapshot of a step could not be written ({error}); a crash may cost more than one step"
            )
        self._pending = None
        return True

    def _prepare(self, slot: _Slot, state: StepState) -> None:
        """Raises NoRoomError."""
        if slot.fits(state):
            return
        try:
            self._make_room(state)
        except OSError as error:
            raise NoRoomError(str(error)) from error

    def _make_room(self, state: StepState) -> None:
        layouts = {name: lay_out(tensors) for name, tensors in state.tensors.items()}
        for slot in self._slots:
            slot.close()
        size = sum(layout.size for layout in layouts.values())
        pinned = None
        on_cpu = _on_cpu(state)
        _check_room(self._slots[0].folder.parent, 2 * size, beside=0 if on_cpu else size)
        if not on_cpu:
            cuda = any(each.device.type == "cuda" for tensors in state.tensors.values() for each in tensors.values())
            try:
                pinned = {
                    name: torch.empty(layout.size, dtype=torch.uint8, pin_memory=cuda)
                    for name, layout in layouts.items()
                }
            except RuntimeError as error:  # a limit on locked memory, a driver that cannot pin
                raise NoRoomError(f"{size / 2**20:.0f} MiB of memory cannot be pinned: {error}") from error
        for slot in self._slots:
            slot.open(layouts, pinned)

    def _switch_off(self, why: str) -> None:
        self._off = True
        save_steps = self._reporter.spec.save_steps
        self._reporter.warn(f"no snapshots between checkpoints: {why}. A crash costs up to {save_steps} steps")


def _on_cpu(state: StepState) -> bool:
    return all(tensor.device.type == "cpu" for tensors in state.tensors.values() for tensor in tensors.values())


def _check_room(folder: Path, needed: int, beside: int) -> None:
    """``needed`` bytes of shared memory, ``beside`` of ordinary memory."""
    figures = os.statvfs(folder)
    free = figures.f_bavail * figures.f_frsize
    if free < needed + MARGIN_BYTES:
        raise NoRoomError(
            f"{folder.parent} has {free / 2**20:.0f} MiB of shared memory free, two snapshots and a margin need "
            f"{(needed + MARGIN_BYTES) / 2**20:.0f} MiB"
        )
    host = read_host(None)
    rooms = []
    if not isinstance(host.ram_available, Unknown) and not isinstance(host.ram_total, Unknown):
        rooms.append((host.ram_available, host.ram_total))
    group = find_cgroup(os.getpid())
    reading = read_cgroup(group) if not isinstance(group, Unknown) else group
    match reading:
        case CgroupReading(limit_bytes=int(limit), used_bytes=int(used)):
            rooms.append((limit - used, limit))
    for available, total in rooms:
        if available < needed + beside + MARGIN_SHARE * total:
            raise NoRoomError(
                f"{available / 2**20:.0f} MiB of {total / 2**20:.0f} MiB of memory are available, two snapshots need "
                f"{(needed + beside) / 2**20:.0f} MiB beside a margin of a tenth"
            )


class _Slot:
    """One folder with the files of a checkpoint, those of tensors mapped into memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, _MappedFile] = {}
        self._copied: torch.cuda.Event | None = None

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(len(file.memory) for file in self._files.values())

    def fits(self, state: StepState) -> bool:
        return self._files.keys() == state.tensors.keys() and all(
            file.fits(state.tensors[name]) for name, file in self._files.items()
        )

    def open(self, layouts: Mapping[str, Layout], pinned: Mapping[str, torch.Tensor] | None) -> None:
        """Raises OSError when there is no room after all."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for name, layout in layouts.items():
            self._files[name] = _MappedFile(self.folder / name, layout, pinned[name] if pinned else None)

    def close(self) -> None:
        break_seal(self.folder)
        self._files = {}

    @torch.no_grad()
    def copy(self, state: StepState) -> None:
        """From a GPU, what must happen before the next step; from here on the slot is torn until it is sealed."""
        break_seal(self.folder)
        for name, file in self._files.items():
            file.copy(state.tensors[name])
        if torch.cuda.is_available():
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    @torch.no_grad()
    def fill(self, state: StepState, *, copying: bool) -> dict[str, SealedFile]:
        """The files of tensors as they are to be sealed. ``copying``: not done by :meth:`copy`.

        Raises NonFiniteError.
        """
        if copying:
            break_seal(self.folder)
        if self._copied is not None:
            self._copied.synchronize()
        sealed = {}
        for name, file in self._files.items():
            if not copying:
                file.settle()
            sealed[name] = file.filled(state.tensors[name] if copying else None, state.progress.step)
        return sealed

    def finish(
        self, state: StepState, sealed: Mapping[str, SealedFile], provenance: Provenance, interim: bool
    ) -> None:
        """Write all that is no tensor, and seal the slot."""
        files = dict(sealed)
        for name, data in {**trainer_files(state), **described(state, provenance)}.items():
            (self.folder / name).write_bytes(data)
            files[name] = sealed_file(data)
        seal(self.folder, Seal(make_manifest(state.progress, provenance, {}, interim), files))


class _MappedFile:
    """A safetensors file in shared memory. ``pinned``: where a GPU's tensors are copied to first."""

    def __init__(self, path: Path, layout: Layout, pinned: torch.Tensor | None) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # Without this, a write to the mapping of a file system that is full would be a SIGBUS.
            os.posix_fallocate(fd, 0, layout.size)
            self.memory = mmap.mmap(fd, layout.size)
        finally:
            os.close(fd)
        self.memory[: len(layout.header)] = layout.header
        self.pinned = pinned
        self._layout = layout
        self._mapped = torch.frombuffer(self.memory, dtype=torch.uint8)
        self._views = layout.views(self._mapped if pinned is None else pinned)
        self._names = {place.name for place in layout.places}
        self._chunks = _chunks(layout.places)

    def fits(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        return tensors.keys() == self._names

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> None:
        torch._foreach_copy_(self._views, list(in_order(self._layout, tensors)), True)

    def settle(self) -> None:
        """What lies in pinned memory goes into the file."""
        if self.pinned is not None:
            begin = len(self._layout.header)
            self._mapped[begin:].copy_(self.pinned[begin:])

    def filled(self, tensors: Mapping[str, torch.Tensor] | None, step: int) -> SealedFile:
        """Size and digest; copies ``tensors`` into the file, unless they are None because they are there already.

        Raises NonFiniteError. What is copied is summed and digested while it is in the cache. A finite sum means finite
        numbers. By numpy: PyTorch would take threads of its own from those that train.
        """
        digest = FastDigest()
        digest.update(self.memory[: len(self._layout.header)])
        given = None if tensors is None else in_order(self._layout, tensors)
        suspects = set()
        for first, behind in self._chunks:
            places = self._layout.places[first:behind]
            if given is not None:
                torch._foreach_copy_(self._views[first:behind], list(given[first:behind]))
            dtype = places[0].dtype
            summed = dtype in (torch.float32, torch.float64)
            flat = self._mapped[places[0].begin : places[-1].end]
            numbers = (flat.view(dtype) if summed else flat).numpy()
            finite = summed or not dtype.is_floating_point
            for begin in range(0, len(numbers), PIECE):
                piece = numbers[begin : begin + PIECE]
                digest.update(piece.data)
                with np.errstate(all="ignore"):
                    finite = finite and (not summed or bool(np.isfinite(piece.sum())))
            if not finite:
                suspects.add(dtype)
        if suspects:
            named = zip(self._layout.places, self._layout.views(self._mapped), strict=True)
            require_finite("snapshot", {place.name: view for place, view in named if place.dtype in suspects}, step)
        return digest.sealed


def _chunks(places: Sequence[Place]) -> list[tuple[int, int]]:
    """From which place up to before which: of one type each, and small enough for a cache unless one tensor is not."""
    found: list[tuple[int, int]] = []
    first = 0
    for index, place in enumerate(places):
        begun = places[first]
        if index > first and (place.dtype is not begun.dtype or place.end - begun.begin > CHUNK_BYTES):
            found.append((first, index))
            first = index
    return [*found, (first, len(places))] if places else []
