"""The program for spark-submit: the `tiered` command, on the session that spark-submit made. See docs/audit.md."""

from recovery.cli.main import main

main()
