import pytest
from forked import Forked

from phalanx.transport import membarrier, why_not_share_memory
from refusing import MEMBARRIER, needs_x86, refuse


def is_there():
    try:
        membarrier.register()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not is_there(), reason="this kernel has no global expedited membarrier")
def test_a_registered_process_can_order_memory():
    membarrier.register()
    membarrier.register()

    membarrier.order_memory()


@needs_x86
def test_where_membarrier_is_needed_and_refused_no_memory_is_shared(monkeypatch):
    monkeypatch.setattr(membarrier, "IS_NEEDED", True)

    def work():
        refuse(MEMBARRIER)
        assert "membarrier: Operation not permitted" in why_not_share_memory()

    Forked(work).join()
