"""LMDeploy patched, as users run it."""
import lmdeploy_ext.autopatch  # noqa: F401
