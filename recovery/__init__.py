"""What happens after a crash: the recovery loop, its daemon, the audit, and the command line on top of everything."""
