"""A thread that asks a thread-safe engine has one queue for its answers."""
from lmdeploy_ext.patching import patch

_MODULE = 'lmdeploy.pytorch.engine.request'


@patch(target=f'{_MODULE}:RequestManager.build_sender',
       group='correctness',
       upstream={'3bc3c0f6346feefc': '0.6.0 to 0.6.4'},
       guards={f'{_MODULE}:RequestSender.resp_thread_que': {'6f091b2a1d423d36': '0.6.0 to 0.6.4'}},
       why='The queue is made when it is first used, by the thread that waits or by the engine, '
       'whichever comes first. If both come at once each has its own, and the thread waits for '
       'ever.',
       remove_when='a new RequestSender of a thread-safe engine has its _resp_thread_que')
def make_queue_at_once(original):
    from queue import Queue

    def build_sender(self):
        sender = original(self)
        if sender.is_thread_safe():
            sender._resp_thread_que = Queue()
        return sender

    return build_sender
