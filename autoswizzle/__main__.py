"""`python -m autoswizzle`: the command line."""

from autoswizzle.cli import main

if __name__ == "__main__":
    main()
