"""What spark-submit runs: the `tiered` command, on the session that spark-submit made.

See docs/audit.md, "On a cluster".
"""

from recovery.cli.main import main

main()
