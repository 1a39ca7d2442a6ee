import pytest
from namespaces import connected_hosts


@pytest.fixture
def hosts():
    with connected_hosts() as found:
        yield found
