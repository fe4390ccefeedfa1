"""Run a program under the profiler, by CPU time: ``python -m benchmarks.profiled OUT PROGRAM ...``.

Time that the event loop itself spends, in libuv and in the kernel's socket calls, is the own time
of ``run`` in ``asyncio/runners.py``; waiting does not count, because the clock is the thread's own.
"""

import contextlib
import cProfile
import runpy
import sys
import time


def main() -> None:
    """Run the program, and leave the profile when it ends."""
    output, program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    profile = cProfile.Profile(time.thread_time)
    try:
        with contextlib.suppress(SystemExit):
            profile.runcall(runpy.run_path, program, run_name="__main__")
    finally:
        profile.dump_stats(output)


if __name__ == "__main__":
    main()
