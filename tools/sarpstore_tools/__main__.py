"""`python -m sarpstore_tools`: the console script, without its script."""

from sarpstore_tools.main import main

main()
