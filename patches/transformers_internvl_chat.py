"""InternVL2 checkpoints without Python files."""
from types import ModuleType

from lmdeploy_ext.patching import seam


# `lmdeploy/__init__.py` imports this module first of all that use transformers' Auto classes.
@seam(after='lmdeploy.archs',
      why='Registers internvl_chat and internlm2 with transformers, so that a checkpoint needs '
      'neither trust_remote_code nor Python files.')
def register_internvl(archs: ModuleType) -> None:
    from lmdeploy_ext.models import register
    register()
