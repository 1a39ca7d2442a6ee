"""``phalanx explain``: tell the story of a run."""

import re
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from phalanx.coordinator import read_events
from phalanx.errors import ConfigError
from phalanx.train.incidents import find_incidents
from phalanx.train.log import read_steps
from phalanx.train.rundir import RunDir, read_config
from phalanx.train.story import Findings, make_story, write_story


def explain(
    run_dir: Annotated[
        Path, typer.Argument(help="The directory of a run, or of its events.jsonl.", show_default=False)
    ],
    *,
    is_whole: Annotated[
        bool, typer.Option("--all", help="Tell every incident, however many there are, and who came and waited.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell what happened to a run: who was lost and why, how long it took to continue, who joined, how it ended."""
    story = make_story(_find(run_dir), is_whole=is_whole)
    print(msgspec.json.encode(story).decode() if as_json else write_story(story))


def _find(path: Path) -> Findings:
    run = RunDir(path)
    has_events = _is_there(run.events)
    if not has_events:
        RunDir.open(path)  # refuses a directory that is no run
    has_config = _is_there(run.config)
    return Findings(
        run_dir=str(path),
        incidents=find_incidents(read_events(run.events)) if has_events else None,
        steps=read_steps(run.steps) if _is_there(run.steps) else (),
        planned_steps=read_config(run.config).train.steps if has_config else None,
        result=run.read_result() if _is_there(run.result) else None,
        checkpoints=_saved(run.checkpoints) if _is_there(run.checkpoints) else (),
    )


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; fix that, then try again") from error
    return True


def _saved(folder: Path) -> list[int]:
    """Return the steps in the names of checkpoints. To look into them would need torch."""
    try:
        names = [each.name for each in folder.iterdir()]
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror}; fix that, then try again") from error
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"step-([0-9]{8,18})", name)))
