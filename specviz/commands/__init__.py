"""What the commands of the command line do, one module each. Results go to stdout, progress to stderr."""
