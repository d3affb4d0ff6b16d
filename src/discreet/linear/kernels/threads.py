"""Work in equal tasks, shared by threads.

Each task has its own result and the results are put together in order, so what comes out does not depend on
the number of threads. The tasks run machine code without the GIL, in threads that live for one call: numba's
own would change torch's number of threads, and a pool that is kept would be without its threads after a fork.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba


def thread_count() -> int:
    """The processors this process may use, or what NUMBA_NUM_THREADS says."""
    config: Any = numba.config
    return int(config.NUMBA_NUM_THREADS)


def in_threads(tasks: int, work: Callable[[int], None]) -> None:
    """Call ``work(task)`` for every task from 0 on; the next free thread takes the next task."""
    threads, turns = min(thread_count(), tasks), itertools.count()

    def run() -> None:
        while (task := next(turns)) < tasks:
            work(task)

    if threads <= 1:
        run()
        return
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(run) for _ in range(threads - 1)]
        run()
        for other in others:
            other.result()
