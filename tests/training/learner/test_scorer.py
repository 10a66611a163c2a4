"""Scores of the learner equal the model's own, for all kinds of models."""

import pytest
import torch
from learner_parts import item, items
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from plimsoll.training.learner.inputs import make_inputs
from plimsoll.training.learner.scorer import Precision, Scorer, vocabulary_of

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 110,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}


def make(kind: str):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == "plain":
            return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)).eval()
        return Gemma2ForCausalLM(Gemma2Config(**SIZES, final_logit_softcapping=2.0)).eval()


@pytest.mark.parametrize("kind", ["plain", "capped"])
@pytest.mark.parametrize("most", [1, 300, 2**25])
def test_scores_match_the_logits_of_the_model(kind: str, most: int):
    model, samples = make(kind), items(5)
    scorer = Scorer(model, Precision(CPU, torch.float32), max_logits=most)
    batch = make_inputs(samples, CPU).micro_batch([0, 1, 2, 3, 4])
    found, entropy = scorer(batch, True)
    expected: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    for sample in samples:
        ids = torch.tensor(sample.ids)
        given = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        for at in range(1, len(ids)):
            if sample.mask[at]:
                expected.append(given[at - 1, ids[at]])
                entropies.append(-(given[at - 1].exp() * given[at - 1]).sum())
    assert torch.allclose(found, torch.stack(expected), atol=1e-5)
    assert torch.allclose(entropy, torch.stack(entropies), atol=1e-5)


def test_a_gradient_does_not_depend_on_the_chunk_size_of_the_logits():
    gradients: list[torch.Tensor] = []
    for most in (1, 2**25):
        model = make("plain")
        scorer = Scorer(model, Precision(CPU, torch.float32), max_logits=most)
        batch = make_inputs(items(3), CPU).micro_batch([0, 1, 2])
        found, entropy = scorer(batch, True)
        (found.sum() + entropy.sum()).backward()
        gradients.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
    assert torch.allclose(gradients[0], gradients[1], atol=1e-4)


def test_logits_are_computed_for_trained_tokens_only():
    model = make("plain")
    seen: list[int] = []
    model.lm_head.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[0]))
    scorer = Scorer(model, Precision(CPU, torch.float32))
    seen.clear()
    sample = item([1] * 20, [0] * 12 + [1] * 3 + [0] * 5)
    scorer(make_inputs([sample], CPU).micro_batch([0]), False)
    assert seen == [3]


def test_tokens_after_the_last_trained_one_are_not_computed():
    sample = item([5] * 20, [0] * 12 + [1] * 3 + [0] * 5)
    assert make_inputs([sample], CPU).micro_batch([0]).ids.shape == (1, 14)


def test_an_empty_micro_batch_has_a_gradient_of_0():
    model = make("plain")
    scorer = Scorer(model, Precision(CPU, torch.float32))
    found, _ = scorer(make_inputs([], CPU).micro_batch([]), True)
    found.sum().backward()
    assert all(float(each.grad.abs().sum()) == 0 for each in model.parameters())


def test_the_entropy_has_a_gradient_only_if_requested():
    scorer = Scorer(make("plain"), Precision(CPU, torch.float32))
    batch = make_inputs(items(2), CPU).micro_batch([0, 1])
    assert not scorer(batch, False)[1].requires_grad
    assert scorer(batch, True)[1].requires_grad
    assert vocabulary_of(scorer.model) == 110
