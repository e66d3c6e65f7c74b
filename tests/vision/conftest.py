"""LMDeploy is patched in this process."""
import lmdeploy_ext.autopatch  # noqa: F401  before anything imports LMDeploy
