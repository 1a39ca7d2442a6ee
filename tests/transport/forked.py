"""Running a function in a process of its own."""

from forking import fork, wait


class Forked:
    """A child process that does one thing; ``join`` tells whether it went well."""

    def __init__(self, function):
        self.pid = fork(function)

    def join(self):
        assert wait(self.pid) == 0
