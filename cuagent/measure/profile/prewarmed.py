"""Profile a task's reference and attempts, in child processes that may be started in advance."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from cuagent.measure.profile.session import ProfileSession
from cuagent.worker import ForkServerError

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.build import Build
    from cuagent.device_lock import DeviceLock
    from cuagent.measure.profile.profile import Profile
    from cuagent.task import Task
    from cuagent.worker import ForkServer


class Profiles:
    """Profiler of one task. At most one child waits for a profile of the reference and one for an
    attempt.

    A child that could not be started in advance is started when it is needed.
    """

    def __init__(self, task: Task, fork_server: ForkServer, device_lock: DeviceLock) -> None:
        self._task, self._fork_server, self._device_lock = task, fork_server, device_lock
        self._open: dict[bool, ProfileSession] = {}
        """Children started in advance; the key is True for an attempt, False for the reference."""

    def prewarm(self, *, with_candidate: bool) -> None:
        """Start the child for the next profile of the reference, or of an attempt if
        `with_candidate`."""
        with suppress(ForkServerError):  # the next call of `profile` reports it
            self._open[with_candidate] = self._started(with_candidate)

    def await_opened(self) -> None:
        """Wait until the children started in advance are idle, so that they do not disturb a
        timing."""
        for session in self._open.values():
            session.await_opened()

    def profile(self, attempt: Attempt | None, build: Build | None, **options: Any) -> Profile:
        """Profile an attempt with its build, or the reference if `attempt` is None.

        `options` are those of `ProfileSession.finish`. Raises ProfileError and ForkServerError.
        """
        session = self._open.pop(attempt is not None, None)
        if session is not None and not session.alive:
            session.close()
            session = None
        if session is None:
            with self._device_lock.shared() as sharing:
                session = self._started(attempt is not None)
                session.await_opened(sharing=sharing)
        with closing(session) as opened:
            return opened.finish(attempt, build, **options)

    def close(self) -> None:
        """End the children that were started in advance."""
        for session in self._open.values():
            session.close()
        self._open.clear()

    def _started(self, with_candidate: bool) -> ProfileSession:
        return ProfileSession(self._task, self._fork_server, with_candidate=with_candidate)
