"""``python -m phalanx`` is the command ``phalanx``."""

from phalanx.cli import main

if __name__ == "__main__":
    main()
