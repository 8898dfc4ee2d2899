"""Start ranks with pipes to their logs, and the process that copies from the pipes into the logs.

A rank writes straight to its log, unless its command may open ``/dev/stdout`` or ``/dev/stderr`` by name.
Linux opens the file behind such a name anew: ``> /dev/stderr`` empties a log that is a file, and appends to a
pipe.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping, Sequence

from clusterrun.atomic_file import write_all
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.runtime.processes import Program, close_all_but, fork, set_process_name, start_all

_CHUNK = 65536


def start_with_pipes(programs: Sequence[Program]) -> list[int]:
    """Start ``programs``, whose output and error streams are logs, as ``start_all`` does.

    Raises ``OSError`` if there are no more descriptors or processes.
    """
    log_by_reader: dict[int, int] = {}
    writers: list[int] = []
    try:
        piped = []
        for program in programs:
            for log in (program.stdout, program.stderr):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                log_by_reader[reader] = log
                writers.append(writer)
            piped.append(replace(program, stdout=writers[-2], stderr=writers[-1]))
        fork(lambda: _copy(log_by_reader))
        return start_all(piped)
    finally:
        for descriptor in (*log_by_reader, *writers):
            os.close(descriptor)


def _copy(log_by_reader: Mapping[int, int]) -> None:
    """Append the data of each pipe to its log, until no writer is left."""
    # The copying ends only after all writers ended, so that no output is lost.
    for number in contract.OUTSIDE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    close_all_but({*log_by_reader, *log_by_reader.values()})
    # A pipe as standard input marks this process as a filter of the ranks' output.
    os.dup2(next(iter(log_by_reader)), 0)
    set_process_name(b"clusterrun logs")
    poll = select.poll()
    for reader in log_by_reader:
        poll.register(reader, select.POLLIN)
    open_readers = set(log_by_reader)
    while open_readers:
        for reader, _ in poll.poll():
            data = os.read(reader, _CHUNK)
            if not data:
                poll.unregister(reader)
                open_readers.discard(reader)
                continue
            try:
                write_all(log_by_reader[reader], data)
            except OSError:
                # The disk is full or fails. A rank that writes to a file would continue, too.
                pass
