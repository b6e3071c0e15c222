"""
The time of a scenario's counted decode tokens for any rates: the sum of the fast engine's timeline, without one.

It costs a search in prefix sums where a timeline has a number for every token and layer; see totals.py.
"""

import numpy as np

from hardware_profiles.rates import DeviceRates
from simulator.closed_form.totals import ComputeWorks, CountedTokens, MissSums
from simulator.miss_costs import miss_costs
from simulator.scenario import Scenario


class CountedTime:
    """What a scenario's counted tokens take, given what the cache did."""

    def __init__(self, scenario: Scenario, n_misses: np.ndarray) -> None:
        """n_misses: int (n_steps, n_moe_layers), as in Timeline."""
        self._scenario, counted = scenario, scenario.is_counted
        tokens = CountedTokens(scenario.model, scenario.steps, counted, scenario.lm_head_predictor)
        self.n_tokens, self._works = tokens.n_tokens, ComputeWorks(tokens, scenario.rates)
        self._histogram = tokens.histogram(n_misses[counted].astype(np.int32))
        self._most = tokens.width - 1

    def seconds(self, rates: DeviceRates, gate_sparsity: float | None = None) -> float:
        """Seconds on a device, and with a gate sparsity other than the model's own where one is given."""
        layout, policy = self._scenario.layout, self._scenario.prefetch_policy
        sums = MissSums(self._works.times(rates, gate_sparsity), self._histogram)
        return sums.totals(miss_costs(rates, layout, self._most, policy), rates, policy).step_s
