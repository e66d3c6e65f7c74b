"""Set-up that must stand before torch, transformers or OpenCV are imported by any test."""
import os
import tempfile

from hypothesis import HealthCheck, settings

# Two cores: OpenMP, OpenCV and torch must not fight over them.
os.environ.setdefault('OMP_NUM_THREADS', '2')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('HF_HUB_OFFLINE', '1')
# Two checkpoints whose folders have the same name collide in transformers' module cache.
os.environ['HF_MODULES_CACHE'] = tempfile.mkdtemp(prefix='lmdeploy-ext-hf-modules-')

# A busy machine is slow, not wrong.
settings.register_profile('busy machine', deadline=None,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile('busy machine')
