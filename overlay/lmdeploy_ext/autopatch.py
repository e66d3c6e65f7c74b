"""Arm the patches: `import lmdeploy_ext.autopatch`, before LMDeploy or after it.

This is all that the `.pth` line of `make patch` does. Nothing can go wrong here, for Python prints
an error in a `.pth` line and goes on: everything is checked when `lmdeploy` itself is imported.
Processes that this one spawns are armed by the `.pth` line, or by importing this module, too.
"""
from lmdeploy_ext.patching.finder import arm

arm()
