"""`python -m lmdeploy_ext.patching`."""
import sys

from lmdeploy_ext.patching.cli import main

sys.exit(main())
