"""Runs a command on a terminal of its own and interrupts it.

usage: on_terminal.py PATTERN TIMES COMMAND...

When PATTERN (a regular expression) has appeared in its output, Ctrl-C is typed TIMES times; 0: the
terminal is closed. Its output goes to stdout; the exit code is its own, or 128 + the signal that
ended it.
"""
import os
import pty
import re
import sys
import time


def main():
    pattern, times, command = sys.argv[1].encode(), int(sys.argv[2]), sys.argv[3:]
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execvp(command[0], command)
    output, typed = b"", 0
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # Linux's way to say that the other side is closed
            break
        if not piece:
            break
        output += piece
        if times == 0 and re.search(pattern, output):
            os.close(terminal)
            break
        if not typed and re.search(pattern, output):
            for typed in range(1, times + 1):
                os.write(terminal, b"\x03")
                time.sleep(0.05)
    status = os.waitpid(child, 0)[1]
    sys.stdout.buffer.write(output)
    sys.stdout.flush()
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


main()
