"""Test the seeds, and the tasks that the grammar composes."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from typing import Any

import pytest

from cuagent.expert.families import FAMILIES as EXPERT_FAMILIES
from cuagent.synth.blocks import blocks
from cuagent.synth.candidate import Candidate
from cuagent.synth.card import PAPER_COUNTS, entropy
from cuagent.synth.catalogue import FAMILIES, catalogue
from cuagent.synth.compose import WHOLE, Grammar, _seed, _shape, candidate
from cuagent.synth.dimensions import DIMENSIONS, LARGEST_PARAMETER
from cuagent.synth.draft import Draft
from cuagent.synth.labelled import differences, traced
from cuagent.synth.loops import loop_candidate
from cuagent.synth.seeds import Domain, Seed
from cuagent.synth.source import graph_of, labels, parse
from cuagent.synth.templates import BATCH, Unfit

WITHOUT_BLOCKS = Grammar(families={**FAMILIES, "blocks": 0.0})


def composed(count: int, grammar: Grammar = WITHOUT_BLOCKS, seed: int = 0) -> list[Candidate]:
    made = (candidate(seed, index, grammar) for index in range(count))
    return [one for one in made if one is not None]


def fits(seed: Seed) -> bool:
    for number in range(40):
        draft = Draft(random.Random(number))
        if seed.integers:
            draft.start_with_indices((BATCH, 16))
        else:
            draft.start(_shape(draft.random, seed.form, draft.dimensions), "contiguous")
        try:
            draft.apply(seed)
        except Unfit:
            continue
        return True
    return False


@pytest.mark.slow
def test_every_seed_of_the_catalogue_can_be_applied() -> None:
    never = [seed.text for seeds in catalogue().values() for seed in seeds if not fits(seed)]
    assert never == []


def test_every_family_has_seeds_and_the_experts_families_are_among_them() -> None:
    assert all(seeds for family, seeds in catalogue().items() if family not in WHOLE)
    names = {seed.name for seeds in catalogue().values() for seed in seeds}
    families = {"streaming", "scans", "pooling", "loops", "depthwise", "recurrences", "scatters"}
    families |= {"selections", "mlps"}
    assert EXPERT_FAMILIES.keys() == families
    assert {"torch.exp", "torch.sum", "nn.LayerNorm", "torch.cumsum", "nn.MaxPool2d"} <= names
    assert {"nn.LSTM", "nn.GRU", "nn.RNN", "torch.index_add", "torch.topk"} <= names
    assert {"nn.Linear", "nn.Conv2d", "F.embedding", "nn.Upsample", "torch.argmax"} <= names


def test_seeds_are_read_from_torch_with_their_domain() -> None:
    found = {seed.name: seed for seeds in catalogue().values() for seed in seeds}
    assert found["torch.log"].domain is Domain.POSITIVE
    assert found["torch.acosh"].domain is Domain.ABOVE_ONE
    assert found["torch.erfinv"].domain is Domain.UNIT
    assert found["torch.tanh"].domain is Domain.ANY
    assert found["nn.Conv3d"].form == "n c s h w"
    assert "torch.bernoulli" not in found
    assert "nn.Dropout" not in found


def test_equal_seed_and_index_give_equal_text() -> None:
    assert composed(12) == composed(12)
    assert [c.code for c in composed(12)] != [c.code for c in composed(12, seed=1)]


def test_labels_are_the_operators_of_the_code_and_their_number_is_the_wanted_one() -> None:
    grammar = Grammar(counts={3: 1.0}, families=WITHOUT_BLOCKS.families)
    made = composed(20, grammar)
    assert len(made) > 10
    for one in made:
        assert list(one.ops) == labels(parse(one.code))
        assert len(one.ops) == 3
        assert one.source == "torch#3"


def test_distribution_follows_the_settings() -> None:
    only = dict.fromkeys(FAMILIES, 0.0) | {"scans": 1.0}
    made = composed(10, Grammar(counts={1: 1.0}, families=only, dtypes={"bfloat16": 1.0}))
    assert made
    assert {family for one in made for family in one.families} == {"scans"}
    assert all("torch.bfloat16" in one.code for one in made)


@pytest.mark.slow
def test_numbers_of_operators_are_more_even_than_in_the_papers_set() -> None:
    # A loop is one choice of the grammar, whatever the number of operators in its body.
    chosen = [one for one in composed(120) if not set(one.families) & set(WHOLE)]
    counts = Counter(len(one.ops) for one in chosen)
    assert len(chosen) > 100
    paper = entropy({n: round(1000 * share) for n, share in PAPER_COUNTS.items()})
    assert set(counts) == {1, 2, 3, 4, 5}
    assert entropy(counts) > 2.0 > paper


def test_failed_call_leaves_the_draft_as_it_was() -> None:
    draft = Draft(random.Random(0))
    draft.start((BATCH, 7), "contiguous")
    before = repr(draft)
    with pytest.raises(Unfit):
        draft.apply(Seed("products", "... d", "F.linear({x}, {weight[width, width]})"))
    assert repr(draft) == before


def test_batch_never_becomes_the_size_of_a_parameter() -> None:
    draft = Draft(random.Random(0))
    draft.start((4, BATCH), "contiguous")
    with pytest.raises(Unfit, match="grow with the batch"):
        draft.apply(Seed("products", "... d", "nn.Linear({d}, {width})"))


@pytest.mark.slow
def test_blocks_of_different_models_have_different_texts() -> None:
    pytest.importorskip("transformers")
    names = [block.constructor.partition("(")[0] for block in blocks()]
    norms = [name for name in names if name.endswith("RMSNorm")]
    assert "LlamaRMSNorm" not in norms  # an earlier family has the same text
    assert {"CohereMLP", "T5LayerNorm"} <= set(names)


@pytest.mark.parametrize("index", range(12))
def test_loop_is_unrolled_into_the_operators_of_its_labels(index: int) -> None:
    made = loop_candidate(random.Random(index), index, {"float32": 1.0})
    assert made.families == ("loops",)
    assert made.source == "loop"
    space: dict[str, Any] = {}
    exec(made.code, space)
    model, inputs = space["Model"]().eval(), space["get_inputs"]()
    run = traced(model, inputs)
    assert differences(made.ops, run, repeated=True) == ""
    assert len(run) > len(made.ops)


def test_loops_with_other_updates_have_other_graphs() -> None:
    candidates = [loop_candidate(random.Random(k), k, {"float32": 1.0}) for k in range(40)]
    assert len({graph_of(parse(made.code)) for made in candidates}) > 30


@pytest.mark.parametrize("sizes", DIMENSIONS)
def test_sizes_fit_the_device(sizes: str) -> None:
    grammar = Grammar(families=WITHOUT_BLOCKS.families, sizes=sizes)
    dimensions = grammar.dimensions
    for one in composed(40, grammar):
        drawn = re.search(r"torch\.rand\w*\(BATCH((?:, \d+)*)", one.code)
        if drawn:
            per_unit = math.prod(map(int, filter(None, drawn[1].split(", "))))
            assert per_unit <= dimensions.most_elements
        parameters = re.findall(r"nn\.Parameter\(torch\.randn\(([\d, ]+)\)", one.code)
        assert all(math.prod(map(int, p.split(","))) <= LARGEST_PARAMETER for p in parameters)


def test_value_that_is_large_at_every_batch_size_does_not_fit() -> None:
    draft = Draft(random.Random(0))
    draft.start((BATCH, 7), "contiguous")
    with pytest.raises(Unfit, match="too large"):
        draft.apply(Seed("views", "... d", "torch.diag_embed(torch.ones(9000, device={x}.device))"))


def test_next_family_is_more_often_one_that_follows_in_real_modules() -> None:
    draw, grammar = random.Random(0), WITHOUT_BLOCKS

    def share(before: str) -> float:
        found = [_seed(draw, grammar, before) for _ in range(600)]
        return sum(seed is not None and seed.family == "activations" for seed in found) / 600

    assert share("convolutions") > 1.5 * share("scans")
