"""Set-up that must stand before torch, transformers or OpenCV are imported by any test."""
import os
import tempfile

# Two cores: OpenMP, OpenCV and torch must not fight over them.
os.environ.setdefault('OMP_NUM_THREADS', '2')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('HF_HUB_OFFLINE', '1')
# Two checkpoints whose folders have the same name collide in transformers' module cache.
os.environ['HF_MODULES_CACHE'] = tempfile.mkdtemp(prefix='lmdeploy-ext-hf-modules-')
