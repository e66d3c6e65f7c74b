"""InternVL2 models without remote code. `register()` makes them known to transformers.

Importing this package loads neither torch nor transformers.
"""
from lmdeploy_ext.models.register import register
