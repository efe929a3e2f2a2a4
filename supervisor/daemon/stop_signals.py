"""What the signals that came to the daemon ask for."""

from __future__ import annotations

import signal

from supervisor.process.signals import SignalQueue


class DaemonSignals(SignalQueue):
    """SIGTERM and SIGINT stop, a second SIGINT leaves everything running, SIGHUP reloads; none is ever taken back."""

    @property
    def stop(self) -> bool:
        return not {signal.SIGTERM, signal.SIGINT}.isdisjoint(self.pending())

    @property
    def leave(self) -> bool:
        return self.pending().count(signal.SIGINT) > 1

    @property
    def reload(self) -> bool:
        return signal.SIGHUP in self.pending() and not self.stop
