"""Children of a test: processes that may be limited, or die, without it."""

import os
import sys
import traceback
import warnings


def fork(function):
    """The number of a child process that calls ``function``, and ends with status 0 if it returns."""
    with warnings.catch_warnings():  # Python 3.12 warns of any other thread
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:  # noqa: BLE001 - the parent sees it by the exit code
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(code)
    return pid


def wait(pid):
    """The exit status of a child, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
