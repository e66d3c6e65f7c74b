"""What the patches of upstream's `TurboMind` do, without its C++."""
from types import SimpleNamespace

import pytest
import torch
from lmdeploy import TurbomindEngineConfig
from lmdeploy.turbomind import turbomind as upstream

from lmdeploy_ext.turbomind.build import embedding_table


class NoCpp:
    """Stands in for the C++ model: it has weights, and an engine that is made and never run."""

    def __init__(self):
        self.table = torch.zeros(500, 8).half()

    def get_params(self, device, rank):
        return {'tok_embeddings.0.weight': upstream._tm.from_dlpack(self.table)}

    def process_weight(self, device, rank):
        pass

    def create_engine(self, device, rank, nccl_params):
        pass


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Makes a `TurboMind`; loading weights ends with where the table is."""
    def from_hf(self, model_source, model_path, engine_config):
        self.node_id, self.nccl_params, self.engine_config = 0, None, engine_config
        self.config = SimpleNamespace(session_len=100, model_config=SimpleNamespace(
            vocab_size=500, hidden_units=8))
        comm = NoCpp()
        self.params = {}
        self._get_model_params(comm, self.params)
        self.cpp = comm
        return comm

    monkeypatch.setattr(upstream, 'Tokenizer', lambda path: SimpleNamespace(eos_token_id=2))
    monkeypatch.setattr(upstream.TurboMind, '_from_hf', from_hf)
    monkeypatch.setattr(torch.cuda, 'mem_get_info', lambda device: (10 << 30, 20 << 30))
    monkeypatch.setattr(upstream, 'get_max_batch_size', lambda device: 8)

    def engine(**options):
        return upstream.TurboMind(str(tmp_path), engine_config=TurbomindEngineConfig(**options),
                                  model_source=upstream.ModelSource.HF_MODEL)

    return engine


def test_the_table_is_seen_while_weights_are_loaded(make, monkeypatch):
    monkeypatch.setattr('lmdeploy_ext.turbomind.build.build_virtual_tokens', lambda engine: None)
    engine = make(enable_prefix_caching=True)
    table = embedding_table(engine)
    assert (table.address, table.rows, table.hidden) == (engine.cpp.table.data_ptr(), 500, 8)
    assert (table.dtype, table.item_bytes) == ('float16', 2)
    assert engine.captured_table.free_bytes == 10 << 30


def test_an_engine_gets_what_is_built_for_it(make, monkeypatch):
    monkeypatch.setattr('lmdeploy_ext.turbomind.build.build_virtual_tokens',
                        lambda engine: ('tokens of', engine))
    engine = make(enable_prefix_caching=True)
    assert engine.virtual_tokens == ('tokens of', engine)


def test_without_prefix_caching_nothing_is_seen_and_nothing_built(make, caplog):
    engine = make()
    assert engine.virtual_tokens is None and not hasattr(engine, 'captured_table')
    assert not [record for record in caplog.records if record.levelname == 'WARNING']
