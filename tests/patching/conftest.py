import pytest

from tests.patching.sandbox import Sandbox


@pytest.fixture
def sandbox(tmp_path):
    """A virtual environment with a made-up LMDeploy 0.6.0."""
    return Sandbox(tmp_path / 'venv')
