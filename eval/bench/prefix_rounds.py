"""The rounds of `bench-prefix`: each scenario with the cache off and on, in turn."""
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Tuple

from .prefix_process import EngineFailed, EngineProcess, Measure
from .prefix_scope import OFF, ON, ON_ALONE, QUESTIONS, SCENARIOS

# a scenario, and the cache's setting
Cell = Tuple[str, str]


@dataclass
class Outcomes:
    """What was measured.

    Attributes:
        measured: for each cell, and in it for each round, what the engine said.
        failed: for each cell that was given up, the reason.
    """
    measured: Dict[Cell, Dict[int, Dict[str, Any]]] = field(default_factory=dict)
    failed: Dict[Cell, str] = field(default_factory=dict)


def run_rounds(engines: Mapping[str, EngineProcess], rounds: int,
               tell: Callable[[str], None]) -> Outcomes:
    """Measure. A cell that fails is not tried again; the others go on.

    Args:
        engines: with the cache `OFF` and `ON`.
        tell: is given a line for each step.
    """
    outcomes = Outcomes()
    for number in range(rounds):
        for scenario in SCENARIOS:
            # who comes first changes, so that a machine that slows down favours nobody
            for cache in ((OFF, ON) if number % 2 == 0 else (ON, OFF)):
                _measure(outcomes, engines[cache], (scenario, cache), number, tell)
    # last: there is no way back
    _measure(outcomes, engines[ON], (QUESTIONS, ON_ALONE), rounds, tell)
    return outcomes


def _measure(outcomes: Outcomes, engine: EngineProcess, cell: Cell, number: int,
             tell: Callable[[str], None]) -> None:
    scenario, cache = cell
    where = f'round {number + 1}, {scenario}, cache {cache}'
    if cell in outcomes.failed:
        return
    try:
        measured = engine.ask(Measure(scenario, number, keep_features=cache != ON_ALONE))
    except EngineFailed as error:
        outcomes.failed[cell] = str(error)
        tell(f'{where}: FAILED: {error}\n{engine.log_tail()}')
        return
    outcomes.measured.setdefault(cell, {})[number] = measured
    tell(f'{where}: {_short(measured)}')


def _short(measured: Mapping[str, Any]) -> str:
    """The figures of one round in a line."""
    if 'seconds' in measured:
        shown = f'{60 * measured["requests"] / measured["seconds"]:.0f} images/min'
    else:
        shown = 'ms to the first token: ' + '; '.join(
            ', '.join(f'{1000 * seconds:.1f}' for seconds in image)
            for image in measured['first_token_s'])
    figures = [f'{name} {value}' for name, value in measured['figures'].items()
               if value is not None]
    return f'{shown}; {measured["input_tokens"]:.0f} tokens a request; {", ".join(figures)}'
