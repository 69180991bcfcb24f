"""Variation of integers and masks that are the same in every draw: a kernel must read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from regimes import Regime

from cuagent.verify import Referee, Verdict
from cuagent.verify.admission import admit
from cuagent.verify.inputs.varied import TOP_OF_SMALL, Change, Fixed, accepted_changes, fixed_of

ROTARY = Regime(
    "torch.randn(2, 24, 16), torch.arange(24).expand(2, 24)",
    """
    angle = positions[..., None] * self.rate
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    """,
    """
    angle = positions.unsqueeze(-1).to(x.dtype) * self.rate
    sin, cos = angle.sin(), angle.cos()
    a, b = x[..., :8], x[..., 8:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    """,
    {
        "position ids ignored": """
        angle = torch.arange(24)[:, None] * self.rate
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        """
    },
    construct='self.register_buffer("rate", 0.1 ** torch.arange(8.0), persistent=False)',
    arguments="x, positions",
)
BAGS = Regime(
    "torch.randint(0, 50, (40,)), torch.arange(0, 40, 8)",
    "return F.embedding_bag(x, self.table, offsets, mode='sum')",
    """
    bag = torch.searchsorted(offsets, torch.arange(40), right=True) - 1
    return torch.zeros(5, 12, dtype=self.table.dtype).index_add(0, bag, self.table[x])
    """,
    {"offsets ignored": "return self.table[x].view(5, 8, 12).sum(1)"},
    construct="self.table = torch.nn.Parameter(torch.randn(50, 12))",
    arguments="x, offsets",
)
LENGTHS = Regime(
    "torch.randn(4, 20, 8), torch.tensor([20, 17, 9, 4])",
    """
    seen = torch.arange(20) < lengths[:, None]
    return (x * seen[..., None]).sum(1) / lengths[:, None]
    """,
    """
    rows = [row[: int(n)].mean(0) for row, n in zip(x, lengths)]
    return torch.stack(rows)
    """,
    {
        "lengths ignored": """
        seen = torch.arange(20) < torch.tensor([20, 17, 9, 4])[:, None]
        return (x * seen[..., None]).sum(1) / torch.tensor([20, 17, 9, 4])[:, None]
        """
    },
    arguments="x, lengths",
)
DECODE = Regime(
    "torch.randn(3, 1, 16), torch.randn(3, 40, 16), torch.tensor(39)",
    """
    scores = (q @ cache.transpose(1, 2)) / 4
    scores = scores.masked_fill(torch.arange(40) > position, -math.inf)
    return scores.softmax(-1) @ cache
    """,
    """
    seen = cache[:, : int(position) + 1]
    return ((q @ seen.transpose(1, 2)) / 4).softmax(-1) @ seen
    """,
    {"position ignored": "return ((q @ cache.transpose(1, 2)) / 4).softmax(-1) @ cache"},
    arguments="q, cache, position",
)
CAUSAL = Regime(
    "torch.randn(2, 24, 16), torch.ones(24, 24).tril().bool()",
    """
    scores = (x @ x.transpose(1, 2) / 4).masked_fill(~mask, -1e9)
    return scores.softmax(-1) @ x
    """,
    """
    scores = torch.where(mask, 0.25 * (x @ x.transpose(1, 2)), -1e9)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights @ x / weights.sum(-1, keepdim=True)
    """,
    {
        "mask ignored": """
        return F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.25)
        """
    },
    arguments="x, mask",
)
PADDING = Regime(
    "torch.randn(4, 20, 8), torch.ones(4, 20, dtype=torch.int64)",
    """
    weight = mask[..., None].to(x.dtype)
    return (x * weight).sum(1) / weight.sum(1)
    """,
    "return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)",
    {"mask ignored": "return x.mean(1)"},
    arguments="x, mask",
)
LAST = Regime(
    "torch.randn(6, 16, 12), torch.full((6,), 16)",
    "return x[torch.arange(6), lengths - 1] * 2",
    "return 2 * x.gather(1, (lengths - 1)[:, None, None].expand(6, 1, 12))[:, 0]",
    {"lengths ignored": "return 2 * x[:, -1]"},
    arguments="x, lengths",
)
"""A length of zero would read index -1, the last step; an honest gather raises there."""
STEP = Regime(
    "torch.randn(300), torch.tensor(4)",
    "return x / (1 - 0.9 ** step)",
    "return x * (1 / (1 - 0.9 ** int(step)))",
    {
        "step ignored": "return x / 0.3439",
        "first step as the second": "return x / (1 - 0.9 ** max(int(step), 2))",
    },
    arguments="x, step",
)
REGIMES = {
    "rotary": ROTARY,
    "last step": LAST,
    "step number": STEP,
    "bags": BAGS,
    "lengths": LENGTHS,
    "decode": DECODE,
    "causal": CAUSAL,
    "padding": PADDING,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REGIMES)
def test_kernels_that_ignore_fixed_integers_are_rejected(
    name: str, regime_verdict: Callable[[Regime, str], Verdict]
) -> None:
    regime = REGIMES[name]
    verdict = regime_verdict(regime, regime.honest)
    assert verdict.accepted, verdict.detail
    for wrong in regime.wrong.values():
        assert not regime_verdict(regime, wrong).accepted


def test_inputs_that_cannot_be_varied_are_named_in_the_notes(
    regime_referee: Callable[[Regime], Referee],
) -> None:
    regime = Regime(
        "torch.randn(6, 8), torch.tensor([6, 8])",
        "return x.reshape(int(shape[0]), int(shape[1])) * 2",
        "return x * 2",
        {},
        arguments="x, shape",
    )
    notes = admit(regime_referee(regime)).notes
    assert any(note.startswith("input 1 was never varied") for note in notes)
    notes = admit(regime_referee(DECODE)).notes
    assert not any("never varied" in note for note in notes)


def fixed_tensor(tensor: torch.Tensor, table: int = 0) -> Fixed:
    found = fixed_of([[tensor], [tensor]], [table])[0]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("tensor", "table", "changes"),
    [
        (torch.arange(10), 0, (Change.REPEATED,)),
        (torch.arange(10), 30, (Change.SHIFTED, Change.SUBSET)),
        (torch.tensor([0, 4, 9, 20]), 0, (Change.SPACED,)),
        (torch.tensor([20, 9, 4]), 0, (Change.SPACED,)),
        (torch.tensor([0, 0, 1, 1, 1, 2]), 0, (Change.RUNS,)),
        (torch.tensor([3, 1, 2, 0]), 0, (Change.SHUFFLED,)),
        (torch.full((5,), 12), 0, (Change.SHORTER,)),
        (torch.ones(3, 8, dtype=torch.int64), 0, (Change.PREFIX,)),
        (torch.tensor(7), 0, (Change.NUMBER,)),
        (torch.tensor(0), 0, (Change.SMALL_NUMBER,)),
    ],
)
def test_strictest_change_comes_first(
    tensor: torch.Tensor, table: int, changes: tuple[Change, ...]
) -> None:
    fixed = fixed_tensor(tensor, table)
    emptied = tuple(change for change in fixed.empties() if change not in changes)
    assert accepted_changes(fixed, lambda sample: True, 3) == changes + emptied
    for change in changes:
        generator = torch.Generator().manual_seed(5)
        sample = fixed.changed(change, generator)
        assert sample.shape == tensor.shape
        assert sample.dtype == tensor.dtype
        rises = bool((tensor.reshape(-1).diff() >= 0).all())
        if rises and change not in (Change.PREFIX, Change.SHORTER):
            assert (sample.reshape(-1).diff() >= 0).all()


def test_weaker_change_is_tried_if_the_stronger_is_refused() -> None:
    fixed = fixed_tensor(torch.arange(10), 30)
    assert accepted_changes(fixed, lambda sample: int(sample.max()) < 10, 3) == (Change.REPEATED,)
    assert accepted_changes(fixed, lambda sample: False, 3) == ()


def test_changed_masks_have_no_new_empty_or_full_rows() -> None:
    mask = torch.ones(30, 30).tril().bool()
    for seed in range(20):
        changed = fixed_tensor(mask).changed(Change.MASK, torch.Generator().manual_seed(seed))
        assert changed.any(1).all()
        assert not changed[:-1].all(1).any()
        assert not torch.equal(changed, mask)


@pytest.mark.parametrize("own", [0, 1])
def test_a_small_number_is_never_drawn_as_the_tasks_own(own: int) -> None:
    """A kernel that assumes the task's own number would be right on such a draw."""
    fixed = Fixed(torch.tensor(own), 0)
    generator = torch.Generator().manual_seed(0)
    drawn = {int(fixed.changed(Change.SMALL_NUMBER, generator, 1)) for _ in range(200)}
    assert drawn == set(range(8)) - {own}
    assert fixed.changed(Change.SMALL_NUMBER, generator).shape == ()


@pytest.mark.parametrize("own", [0, 1, 2, 5])
def test_single_number_is_drawn_as_two_or_more_in_each_first_step(own: int) -> None:
    """A start of 0 or 1 hides a wrong order of the parts of a ring."""
    known = Fixed(torch.tensor(own), 0)
    for seed in range(50):
        first, second = (
            int(known.changed(Change.SMALL_NUMBER, torch.Generator().manual_seed(seed), step))
            for step in (0, 1)
        )
        assert 2 <= first < TOP_OF_SMALL
        assert 0 <= second < TOP_OF_SMALL
        assert own not in (first, second)
