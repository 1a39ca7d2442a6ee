from contextlib import closing

from phalanx.transport import SerialExecutor
from phalanx.transport.serial_executor import is_in_background


def test_only_submitted_operations_run_in_the_background():
    with closing(SerialExecutor("test")) as executor:
        assert not executor.run("an operation", is_in_background)
        assert executor.submit("an operation", is_in_background).wait(30)
        assert not is_in_background()
