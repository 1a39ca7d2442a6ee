"""Running a function in a process of its own."""

import os
import sys
import traceback
import warnings


class Forked:
    """A child process that does one thing; ``join`` tells whether it went well."""

    def __init__(self, function):
        with warnings.catch_warnings():  # Python 3.12 warns of any other thread
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                function()
                code = 0
            except BaseException:  # noqa: BLE001 - the parent sees it by the exit code
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(code)

    def join(self):
        _, status = os.waitpid(self.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
