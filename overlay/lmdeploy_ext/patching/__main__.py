"""`python -m lmdeploy_ext.patching`."""
import signal
import sys

from lmdeploy_ext.patching.cli import main

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `… status | head` is no error
sys.exit(main())
