"""Tests of the order of samples in a stream."""

import pytest
import torch

from bitta.errors import InputError, SettingError
from bitta.streams import Arrangement, Domain, Stream, correlated_order


def domain(name, n=20, n_classes=4, start=0):
    """Return a domain whose images have their number as pixel value."""
    numbers = torch.arange(start, start + n)
    images = numbers.to(torch.uint8).view(n, 1, 1, 1).expand(n, 3, 2, 2)
    return Domain(name, images.contiguous(), numbers % n_classes)


def stream(*domains, batch_size=8, seed=0, **arrangement):
    return Stream(domains, batch_size=batch_size, seed=seed, arrangement=Arrangement(**arrangement))


def names(stream):
    return [batch.domain for batch in stream.batches()]


def numbers(stream):
    return [round(v * 255) for b in stream.batches() for v in b.inputs[:, 0, 0, 0].tolist()]


DAY, NIGHT = domain("day"), domain("night", start=100)


def test_continual_visits_each_domain_once():
    batches = list(stream(DAY, NIGHT).batches())
    assert [(b.domain, len(b.truth)) for b in batches] == [
        ("day", 8), ("day", 8), ("day", 4), ("night", 8), ("night", 8), ("night", 4),
    ]  # fmt: skip
    assert not any(batch.reset for batch in batches)


@pytest.mark.parametrize("order", ["continual", "mixed", "recurring", "single"])
@pytest.mark.parametrize("labels", ["iid", "dirichlet"])
def test_every_sample_has_its_label(order, labels):
    made = stream(DAY, NIGHT, order=order, labels=labels, rounds=2)
    came = numbers(made)
    assert made.truth.tolist() == [number % 4 for number in came]
    assert torch.cat([batch.truth for batch in made.batches()]).equal(made.truth)
    expected = sorted([*range(20), *range(100, 120)] * (2 if order == "recurring" else 1))
    assert sorted(came) == expected


def test_mixed_batches_contain_several_domains():
    made = stream(DAY, NIGHT, order="mixed")
    assert set(names(made)) == {"mixed"}
    assert len(made) == 5
    first = numbers(made)[:8]
    assert min(first) < 20
    assert max(first) >= 100


def test_recurring_repeats_the_sequence_in_new_orders():
    made = stream(DAY, NIGHT, order="recurring", rounds=3, batch_size=20)
    assert names(made) == ["day", "night"] * 3
    rounds = torch.tensor(numbers(made)).view(3, 40)
    assert not torch.equal(rounds[0], rounds[1])
    assert "day > night, 3 times" in made.protocol


def test_single_resets_before_each_domain():
    made = stream(DAY, NIGHT, order="single")
    assert [batch.reset for batch in made.batches()] == [False, False, False, True, False, False]
    assert "reset before each" in made.protocol


def test_gradual_rises_and_falls_for_each_kind():
    parts = [domain(f"{kind} {s}") for kind in ("fog", "snow") for s in (1, 2, 3)]
    made = stream(*parts, order="gradual", batch_size=20)
    assert names(made) == [f"{kind} {s}" for kind in ("fog", "snow") for s in (1, 2, 3, 2, 1)]
    assert "fog rising and falling" in made.protocol


def test_gradual_needs_severities():
    with pytest.raises(SettingError, match="domain 'day' has no severity"):
        stream(DAY, order="gradual")


def test_sequence_may_repeat_and_omit_domains():
    made = stream(DAY, NIGHT, domain("dusk"), sequence=("night", "day", "night"), batch_size=20)
    assert names(made) == ["night", "day", "night"]
    with pytest.raises(SettingError, match="did you mean 'night'"):
        stream(DAY, NIGHT, sequence=("nigth",))


def test_order_in_a_domain_does_not_depend_on_other_domains():
    alone = numbers(stream(NIGHT))
    assert numbers(stream(DAY, NIGHT))[20:] == alone
    assert numbers(stream(NIGHT, seed=1)) != alone


def test_batch_size_one_has_one_sample_per_batch():
    made = stream(DAY, batch_size=1)
    assert len(made) == 20
    assert all(len(batch.truth) == 1 for batch in made.batches())


def runs(labels):
    return 1 + int((labels[1:] != labels[:-1]).sum())


def test_correlated_labels_come_in_runs():
    """1,000 samples of 10 classes have about 900 runs in random order.

    With beta = .1 they have at most one run per class and slot, 100. A smaller beta has fewer.
    """
    labels = torch.arange(1000) % 10
    order = correlated_order(labels, beta=0.1, seed=0)
    assert order.sort().values.equal(torch.arange(1000))
    assert runs(labels[order]) <= 100
    assert runs(labels[correlated_order(labels, beta=0.01, seed=0)]) < runs(
        labels[correlated_order(labels, beta=10.0, seed=0)]
    )
    assert order.equal(correlated_order(labels, beta=0.1, seed=0))


def test_protocol_describes_the_arrangement():
    assert stream(DAY, NIGHT, labels="dirichlet").protocol == (
        "40 samples, continual day > night, dirichlet 0.1 within, no reset, batch 8, seed 0"
    )
    assert stream(DAY, NIGHT, order="mixed").protocol == (
        "40 samples, mixed day + night, shuffled within, no reset, batch 8, seed 0"
    )


@pytest.mark.parametrize(
    ("arrangement", "message"),
    [
        ({"order": "contnual"}, "did you mean 'continual'"),
        ({"labels": "sorted"}, "labels is 'sorted'; allowed: iid, dirichlet"),
        ({"beta": 0.0}, "beta is 0.0"),
        ({"rounds": 0}, "rounds is 0"),
    ],
)
def test_invalid_arrangement_is_refused(arrangement, message):
    with pytest.raises(SettingError, match=message):
        Arrangement(**arrangement)


def test_domains_with_different_classes_are_refused():
    one = Domain("a", DAY.images, DAY.labels, ("cat", "dog"))
    with pytest.raises(InputError, match="'a' and 'b' do not have the same classes"):
        Stream([one, Domain("b", DAY.images, DAY.labels, ("dog", "cat"))])


def test_mixed_domains_with_different_shapes_are_refused():
    wide = Domain("wide", torch.zeros(20, 3, 2, 4, dtype=torch.uint8), DAY.labels)
    with pytest.raises(InputError, match=r"'wide' has inputs of shape \(3, 2, 4\)"):
        list(stream(DAY, wide, order="mixed").batches())


def test_batches_can_start_at_any_number():
    made = stream(DAY, NIGHT, order="single")
    whole = list(made.batches())
    assert [b.domain for b in made.batches(3)] == [b.domain for b in whole[3:]]
    assert torch.equal(next(made.batches(4)).inputs, whole[4].inputs)
