"""Graphs for every batch, however long they take."""
from lmdeploy_ext.vision.graph_capture import CudaGraphRunner


class AlwaysGraphs(CudaGraphRunner):
    """Measures that runs without a graph take for ever, so that none is planned."""

    def eager_seconds(self, tiles):
        return 1e3
