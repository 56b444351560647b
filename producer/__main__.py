"""`python -m producer` is `prefillq`, for the interpreter at hand."""

from producer.cli import main

main()
