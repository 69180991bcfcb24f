"""Run the command line as `python -m cuagent`."""

from cuagent.cli.main import main

if __name__ == "__main__":
    main()
