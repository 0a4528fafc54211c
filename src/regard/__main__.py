"""`python -m regard`, and so `torchrun -m regard`."""

from regard.cli import main

main()
