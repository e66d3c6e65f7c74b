"""The scenarios of `bench-prefix`, in the process of one engine.

All texts and images of a round are new to the engine, but for what a scenario repeats in it; both
engines get the same ones.
"""
import time
from typing import Any, Awaitable, Callable, Dict, List

import numpy as np

from .prefix_client import Client, Messages, Timed
from .prefix_material import jpeg, messages, text
from .prefix_scope import (INSTRUCTION, INSTRUCTION_TOKENS, QUESTIONS, QUESTIONS_AN_IMAGE,
                           SCENARIOS, SMALL, TEXT_TOKENS, UNIQUE, Scope)

Measured = Dict[str, Any]
_ANSWER_TOKENS = 4  # of a stream: the first one is not the end of it


async def questions(client: Client, scope: Scope, number: int) -> Measured:
    """Eight questions about each large image, one request at a time.

    Returns:
        `first_token_s`: seconds to the first token, for each image a list; `requests` and their
        mean `input_tokens`.
    """
    answers = []
    for image in range(scope.large_images):
        seed = _seed(QUESTIONS, number, image)
        picture = jpeg(seed, scope.large)
        asked = [_short(client, picture, [*seed, question])
                 for question in range(QUESTIONS_AN_IMAGE)]
        answers.append([await client.ask(each, _ANSWER_TOKENS) for each in asked])
    return {'first_token_s': [[answer.first for answer in image] for image in answers],
            **_requests([answer for image in answers for answer in image])}


async def instruction(client: Client, scope: Scope, number: int) -> Measured:
    """One instruction of 1,000 tokens before each of many small images; see `_throughput`."""
    from lmdeploy.vl.constants import IMAGE_TOKEN
    seed = _seed(INSTRUCTION, number)
    told = text(seed, INSTRUCTION_TOKENS, client.tokens)
    return await _throughput(client, scope, [
        messages(jpeg([*seed, image], SMALL), f'{told}\n{IMAGE_TOKEN}')
        for image in range(scope.images)])


async def unique(client: Client, scope: Scope, number: int) -> Measured:
    """Many small images, a short text of its own behind each; see `_throughput`."""
    seed = _seed(UNIQUE, number)
    return await _throughput(client, scope, [
        _short(client, jpeg([*seed, image], SMALL), [*seed, image])
        for image in range(scope.images)])


RUN: Dict[str, Callable[[Client, Scope, int], Awaitable[Measured]]] = {
    QUESTIONS: questions, INSTRUCTION: instruction, UNIQUE: unique}


async def _throughput(client: Client, scope: Scope, requests: List[Messages]) -> Measured:
    """`seconds` for all `requests` together, one token each; their mean `input_tokens`."""
    begin = time.perf_counter()
    answers = await client.ask_all(requests, scope.concurrency)
    return {'seconds': time.perf_counter() - begin, **_requests(answers)}


def _requests(answers: List[Timed]) -> Measured:
    return {'requests': len(answers),
            'input_tokens': float(np.mean([answer.input_tokens for answer in answers]))}


def _short(client: Client, picture: bytes, seed: List[int]) -> Messages:
    """A request with a text of its own behind its image."""
    return messages(picture, text(seed, TEXT_TOKENS, lambda words: client.text_tokens(
        messages(b'', words))))


def _seed(scenario: str, number: int, *rest: int) -> List[int]:
    return [SCENARIOS.index(scenario), number, *rest]
