"""A stand-in for TurboMind's C++ under upstream's own Python, for machines without a GPU.

It looks ids up in one tensor, the embedding table with the pool behind it; keeps keys and values
in the model of TurboMind's trie; and answers with numbers that depend on every row of the prompt.
It computes prompts in two chunks, and puts the whole prompt into the trie after the first.
"""
import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import torch
from lmdeploy.turbomind import turbomind as upstream

from lmdeploy_ext.turbomind.feature_pool import FeaturePool
from lmdeploy_ext.turbomind.kv_load import KvLoad
from lmdeploy_ext.turbomind.pool_rows import PoolRows
from lmdeploy_ext.turbomind.prefix_gate import PrefixGate
from lmdeploy_ext.turbomind.row_queue import RowQueue
from lmdeploy_ext.turbomind.virtual_ids import VirtualIds
from lmdeploy_ext.turbomind.virtual_tokens import VirtualTokens
from tests.turbomind.engine_model import BLOCK, EngineModel

VOCABULARY, HIDDEN, SLOT_ROWS, SESSION_LEN = 500, 8, 16, 2048


class HostRowWriter:
    """Stands in for `CudaRowWriter`: copies later, one after the other, in a thread."""

    def __init__(self):
        self.thread = ThreadPoolExecutor(1)

    def write(self, rows, index, features, then):
        def copy():
            time.sleep(0.001)
            rows.index_copy_(0, index, torch.cat([part.to(rows) for part in features]))
            then(None)

        self.thread.submit(copy)


class StandInEngine:
    """What upstream's `TurboMind` is to its instances.

    Args:
        slots: of the pool; None for an engine without virtual tokens.
        seconds: that a chunk takes.
    """

    def __init__(self, slots=None, blocks=400, seconds=0.002, keyed=True, wait=True):
        self.node_id = 0
        self.gpu_count, self.eos_id, self.session_len, self.nccl_params = 1, 2, SESSION_LEN, None
        self.config = SimpleNamespace(weight_type='fp16')
        self.tokenizer = SimpleNamespace(eos_token_id=2)
        self.model_comm = self
        self.seconds, self.problems, self.kept = seconds, [], []
        self.first_chunks = 0  # that were computed
        # three rows between table and pool belong to somebody else
        self.memory = torch.randn(VOCABULARY + 3 + (slots or 0) * SLOT_ROWS, HIDDEN).half()
        self.model = EngineModel(blocks, self.meaning_of)
        self.lock = threading.Lock()
        self.running, self.sessions = {}, {}
        self.matched = {}  # tokens in blocks that a session's sequence found
        self.virtual_tokens = self.load = None
        if slots:
            rows = self.memory[VOCABULARY + 3:]
            pool = FeaturePool(VirtualIds(VOCABULARY + 3, len(rows), 0), rows, SLOT_ROWS,
                               HostRowWriter())
            self.load = load = KvLoad(blocks * BLOCK)
            queue = RowQueue(PoolRows(slots, SLOT_ROWS, blocks * BLOCK))
            gate = PrefixGate(load, blocks * BLOCK + len(rows), lambda: queue.computed_tokens)
            self.virtual_tokens = VirtualTokens(pool, queue, keyed, wait, load, gate)

    def create_instance(self, cuda_stream_id=0):
        try:
            return upstream.TurboMindInstance(self, self.config, cuda_stream_id)
        except TypeError:  # 0.6.0
            return upstream.TurboMindInstance(self, cuda_stream_id)

    def create_instance_comm(self, gpu_count):
        return None

    def create_model_instance(self, device, rank, stream, nccl_params):
        return StandInInstance(self)

    def meaning_of(self, token):
        return self.memory[token].numpy().tobytes()


class StandInInstance:
    """What the C++ class of the same place does, one request at a time."""

    def __init__(self, engine):
        self.engine, self.callback = engine, None
        self.length = 0  # of the last output; a cancelled request leaves it as it was

    def register_callback(self, callback):
        self.callback = callback

    def unregister_callback(self):
        self.callback = None

    def forward(self, tm_inputs, instance_comm=None):
        inputs = {name: torch.from_dlpack(value) for name, value in tm_inputs.items()}
        session = int(inputs['CORRID'][0])
        if inputs['STOP'][0]:
            self.engine.running.get(session, threading.Event()).set()
            return self.outputs([])
        ids = inputs['input_ids'][0].tolist()
        stopped = self.engine.running[session] = threading.Event()
        try:
            rows = self.rows_of(ids, inputs)
            self.check_penalties(ids, inputs, True)
            self.matched = 0
            answer = self.compute(ids, rows, 'input_embedding_ranges' not in inputs, stopped,
                                  int(inputs['request_output_len'][0]))
            self.engine.matched[session] = self.matched
            return self.outputs(answer)
        finally:
            self.check_penalties(ids, inputs, False)
            del self.engine.running[session]

    def rows_of(self, ids, inputs):
        """What the prompt means: the embeddings of the stock path, or None at ids to look up."""
        rows = [None] * len(ids)
        if 'input_embedding_ranges' in inputs:
            data = inputs['input_embeddings'][0].view(torch.half).view(-1, HIDDEN)
            first = 0
            for begin, end in inputs['input_embedding_ranges'][0].tolist():
                for index in range(begin, end):
                    rows[index] = data[first + index - begin].numpy().tobytes()
                first += end - begin
        return rows

    def check_penalties(self, ids, inputs, begins):
        """As in TurboMind, a penalty of one request would use the ids of all that run."""
        engine = self.engine
        with engine.lock:
            counts = engine.sessions
            kind = 'virtual' if max(ids, default=0) >= VOCABULARY else 'other'
            if float(inputs['repetition_penalty'][0]) != 1:
                kind = 'penalised ' + kind
            counts[kind] = counts.get(kind, 0) + (1 if begins else -1)
            penalised = sum(count for name, count in counts.items() if 'penalised' in name)
            virtual = sum(count for name, count in counts.items() if 'virtual' in name)
            if penalised and virtual:
                engine.problems.append(dict(counts))

    def compute(self, ids, rows, matches, stopped, count):
        engine = self.engine
        if not matches:
            time.sleep(2 * engine.seconds)
            meaning = [row or engine.meaning_of(token) for token, row in zip(ids, rows)]
            return self.answer(meaning, count, stopped)
        with engine.lock:
            intended = [engine.meaning_of(token) for token in ids]
            sequence = engine.model.start(ids, intended)
            self.matched = BLOCK * sequence.matched
        share = 0.4
        time.sleep(engine.seconds)
        with engine.lock:
            engine.model.compute(sequence, intended, int(share * len(ids)))
            engine.first_chunks += 1
        if stopped.wait(engine.seconds):
            with engine.lock:
                engine.model.end(sequence)
            return None
        with engine.lock:
            engine.model.compute(sequence, intended)
        # what is cached counts, not what should be there
        cached = sequence.blocks[:sequence.matched]
        meaning = [token for block in cached for token in block.meaning]
        meaning += intended[len(meaning):]
        try:
            return self.answer(meaning, count, stopped)
        finally:
            with engine.lock:
                engine.model.end(sequence)

    def answer(self, meaning, count, stopped):
        digest = hashlib.sha256(b''.join(meaning)).digest()
        answer = []
        while len(answer) < count and not stopped.wait(self.engine.seconds / 4):
            answer.append(3 + digest[len(answer) % 32])
            if self.callback:
                self.callback(self.outputs(answer, len(meaning)), None)
        self.prompt = len(meaning)
        return answer

    def outputs(self, answer, prompt=None):
        """As C++ fills them; None is a request that never came to its first token."""
        if answer is not None:
            prompt = self.prompt if prompt is None and answer else prompt or 0
            self.ids = np.zeros((1, 1, SESSION_LEN), np.int32)
            self.ids[0, 0, prompt:prompt + len(answer)] = answer
            self.length = prompt + len(answer)
        # upstream's tensors do not own what numpy has allocated
        outputs = dict(output_ids=self.ids, sequence_length=np.array([[self.length]], np.int32))
        self.engine.kept.append(outputs)
        return upstream._np_dict_to_tm_dict(outputs)
