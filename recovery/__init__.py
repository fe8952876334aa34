"""After a crash: the recovery loop and its daemon, and on top of everything the command line."""
