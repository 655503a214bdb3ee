"""``python -m heddle``: the command line, where its script is not on the path."""

from heddle.cli import main

if __name__ == "__main__":
    main()
