"""Files and threads: system calls, queues of I/O, the format of files."""
