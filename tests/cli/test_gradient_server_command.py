"""``phalanx gradient-server`` as far as it goes without listening."""

import pytest
import typer
from typer.testing import CliRunner

from phalanx.cli.gradient_server import gradient_server
from phalanx.errors import ConfigError


@pytest.mark.parametrize("options", [["--samples", "0"], ["--samples", "-1"], ["--blocks", "0"]])
def test_a_step_of_nothing_is_refused(options):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(gradient_server)

    result = CliRunner().invoke(app, ["--bind", "127.0.0.1:0", "--workers", "1", "--steps", "1", *options])

    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"1 steps of {options[1]} are nothing to do: give 1 or more of each"
