"""Tests of SimATTA."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitta import Session
from bitta.errors import SettingError
from bitta.feedback import Judge, SimulatedLabels
from bitta.losses import complementary_loss
from bitta.memory import MixedBatch
from bitta.methods.clustering import Clusters, draw_first_centres
from bitta.methods.simatta import AnchorMemory, LossPlateau, anchor_share, row_weights
from bitta.seeding import RandomKey, generator
from bitta.testing import Subject, toy_classifier
from bitta.testing.contract import CHECKS, batch_sizes_vary
from bitta.types import Feedback, JudgedSamples

POINTS = torch.tensor(
    [[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.0, 5.2], [5.0, 5.1], [9.0, 0.0], [0.0, 0.1]]
)
"""Row 0 is an anchor. Two new samples are beside it, three are near (5, 5), one is alone."""


class Plain(nn.Module):
    """Model whose two logits are the input."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.head.weight)

    def forward(self, x):
        return self.head(x)


def images(number=0, n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


def clusters_of(n_clusters=3, weight=4.0):
    weights = torch.tensor([weight])
    return Clusters.find(POINTS, weights, n_clusters=n_clusters, starts=10, seed=1)


def answers(correct, incorrect, *, label=0):
    def judged(rows):
        return JudgedSamples(rows, torch.full((len(rows),), label))

    return Feedback(judged(correct), judged(incorrect))


def test_unanchored_clusters_return_their_central_sample_largest_first():
    """Samples are numbered without the anchor: (5, 5.1) is 3, (9, 0) is 4."""
    assert clusters_of().find_unanchored() == [(3, 3), (4, 1)]


def test_anchors_share_the_new_samples_of_their_cluster():
    """The anchor's cluster has 2 new samples. (5, 5.1) is answered and represents its cluster of 3.

    If (0, .1) is answered too, the anchor and (0, .1) represent 1 sample each.
    """
    standing = torch.tensor([True, False, False, False, True, False, False])
    assert clusters_of().share_new_samples(standing).tolist() == [2, 0, 0, 0, 3, 0, 0]
    standing[6] = True
    assert clusters_of().share_new_samples(standing).tolist() == [1, 0, 0, 0, 3, 0, 1]


def test_heavy_anchor_attracts_the_centre():
    """One cluster: the centre is (w·anchor + Σ new) / (w + 6); with w = 10⁶ it is the anchor."""
    light, heavy = clusters_of(1, weight=1.0), clusters_of(1, weight=1e6)
    mean = torch.tensor([24.1, 15.4]) / 7
    assert light.distances[0].item() == pytest.approx(mean.norm().item(), rel=1e-5)
    assert heavy.distances[0].item() == pytest.approx(0, abs=1e-4)


def test_first_centres_are_a_heavy_point_then_distant_points():
    """The anchor has nearly all the weight. The others are one of three near (5, 5), and (9, 0)."""
    masses = torch.tensor([1e6, 1, 1, 1, 1, 1, 1]).double()
    rows = draw_first_centres(POINTS.double(), masses, n_clusters=3, starts=20, seed=1)
    assert rows[:, 0].tolist() == [0] * 20
    later = [set(row) for row in rows[:, 1:].tolist()]
    assert all(5 in row and row & {2, 3, 4} for row in later)


@pytest.mark.parametrize(("n_points", "n_features"), [(90, 8), (60, 200)])
@pytest.mark.parametrize("starts", [1, 4])
def test_clusters_equal_those_of_scikit_learn(n_points, n_features, starts):
    k_means = pytest.importorskip("sklearn.cluster", reason="scikit-learn is missing").KMeans
    for seed in range(8):
        points = torch.randn(n_points, n_features, generator=generator(seed, "points"))
        weights = 1 + 9 * torch.rand(n_points // 3, generator=generator(seed, "weights"))
        masses = torch.cat([weights, torch.ones(n_points - len(weights))])
        plain = k_means(25, n_init=starts, random_state=seed)
        plain.fit(points.double().numpy(), sample_weight=masses.double().numpy())
        ours = Clusters.find(points, weights, n_clusters=25, starts=starts, seed=seed)
        assert ours.labels.tolist() == plain.labels_.tolist()
        centres = torch.from_numpy(plain.cluster_centers_)[ours.labels]
        torch.testing.assert_close(ours.distances, (points - centres).norm(dim=1))


@pytest.mark.parametrize("n_different", [3, 8])
def test_copies_of_a_sample_share_a_cluster(n_different):
    """A camera that does not move sends copies. There are more clusters than different samples."""
    different = torch.randn(n_different, 200, generator=generator(0, "points"))
    points = different.repeat(8, 1)
    for seed in range(10):
        labels = Clusters.find(points, torch.ones(2), n_clusters=10, starts=1, seed=seed).labels
        assert len(set(labels.tolist())) == n_different
        assert torch.equal(labels, labels[:n_different].repeat(8))


def test_as_many_clusters_as_points_gives_single_points():
    assert clusters_of(7).find_unanchored() == [(row, 1) for row in range(6)]


def test_questions_are_about_centres_of_unanchored_clusters():
    session = Session(Plain(), "simatta", n_queries=1, clusters=3, cluster_growth=0, lr=1e-9)
    session.adapter.anchors.add(answers(POINTS[:1], POINTS[:0]), torch.tensor([4.0]))
    prediction = session.predict(POINTS[1:])
    assert [(query.index, query.uncertainty) for query in prediction.queries] == [(3, 3.0)]
    for query in prediction.queries:
        session.answer(query.id, correct=False)
    session.learn()
    anchors = session.adapter.anchors
    assert anchors.weights.tolist() == [6, 3]
    assert anchors.correct.tolist() == [True, False]
    assert torch.equal(anchors.inputs, POINTS[[0, 4]])


def test_late_answer_represents_its_cluster_when_it_arrives():
    session = Session(Plain(), "simatta", n_queries=1, clusters=2, cluster_growth=0, lr=1e-9)
    [query] = session.predict(POINTS[[2, 3, 4, 1]]).queries
    assert query.index == 2
    session.learn()
    assert len(session.adapter.anchors) == 0
    # One of the pair at the origin is asked about; the other and (5, 5) are not.
    [other] = session.predict(POINTS[[1, 6, 2]] + 0.01).queries
    assert other.index in (0, 1)
    session.answer(query.id, correct=True)
    session.learn()
    assert session.adapter.anchors.weights.tolist() == [2]


def test_batch_is_clustered_once_for_questions_and_answers(monkeypatch):
    seen, of = [], Clusters.find

    def counted(*given, **how):
        seen.append(how["seed"])
        return of(*given, **how)

    monkeypatch.setattr(Clusters, "find", counted)
    session = Session(
        toy_classifier(), "simatta", n_queries=2, clusters=2, cluster_growth=1, steps=2, lr=1e-3,
        feedback=Judge(lambda image, label: label % 2 == 0),
    )  # fmt: skip
    for number in range(3):
        session.step(torch.rand(8, 3, 8, 8, generator=generator(3, number)))
    assert len(seen) == len(set(seen)) == 3


def test_too_few_candidates_are_chosen_by_entropy():
    """Ten clusters exceed four samples. The closer the two logits, the higher the entropy."""
    session = Session(Plain(), "simatta", n_queries=2)
    rows = torch.tensor([[9.0, 0.0], [1.0, 0.5], [3.0, 0.0], [1.0, 0.9]])
    assert {query.index for query in session.predict(rows).queries} == {1, 3}


def test_query_scores_change_nothing():
    session = Session(toy_classifier(), "simatta", clusters=2, cluster_growth=0)
    session.step(images())
    adapter = session.adapter
    before = [adapter.anchors.weights.clone(), len(adapter.source_like), adapter.version]
    one, two = (adapter.query_scores(images(1), 3) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(before[0], adapter.anchors.weights)
    assert before[1:] == [len(adapter.source_like), adapter.version]


@pytest.mark.parametrize(
    ("n_anchors", "n_source_like", "share"),
    [(3, 97, 0.03), (50, 50, 0.2), (50, 150, 0.25), (50, 99, 0.2), (3, 0, 1.0), (0, 9, 0.0)],
)
def test_anchor_share_of_the_loss_follows_the_formula(n_anchors, n_source_like, share):
    """a = A / (A + S); at most .2 below 100 source-like samples, and 1 without any."""
    assert anchor_share(n_anchors, n_source_like, cold_start=100) == pytest.approx(share)


def test_loss_weighs_source_like_samples_and_anchors():
    """One anchor per verdict, two source-like samples: a = min(.2, 2/4)."""
    session = Session(Plain(), "simatta")
    adapter = session.adapter
    rows = torch.tensor([[1.0, 0.5], [0.2, 1.0], [3.0, 0.0], [0.0, 4.0]])
    adapter.anchors.add(answers(rows[:1], rows[1:2]), torch.ones(2))
    adapter.source_like.add(JudgedSamples(rows[2:], torch.tensor([0, 1])))
    losses = adapter.adapt(rows[:0], answers(rows[:0], rows[:0])).terms
    label = torch.tensor([0])
    expected = {
        "correct": 0.2 * F.cross_entropy(rows[:1], label),
        "incorrect": 0.2 * complementary_loss(rows[1:2], label),
        "source_like": 0.8 * F.cross_entropy(rows[2:], torch.tensor([0, 1])),
    }
    assert {name: values[0].item() for name, values in losses.items()} == {
        name: pytest.approx(value.item()) for name, value in expected.items()
    }
    assert all(len(values) == 30 for values in losses.values())


def test_published_eps_ignores_incorrect_anchors_of_highest_confidence():
    """A margin of 1000 gives a loss of 1000. With 1e-6 it is -log(1e-6), and no weight moves."""
    sure = torch.tensor([[1000.0, 0.0]])
    for preset, expected in ((None, 1000.0), ("reference", 13.8155)):
        adapter = Session(Plain(), "simatta", preset=preset).adapter
        adapter.anchors.add(answers(sure[:0], sure), torch.ones(1))
        before = [parameter.clone() for parameter in adapter.parameters]
        losses = adapter.adapt(sure[:0], answers(sure[:0], sure[:0])).terms
        assert losses["incorrect"][0].item() == pytest.approx(expected)
        same = [torch.equal(*pair) for pair in zip(before, adapter.parameters, strict=True)]
        assert all(same) == (preset == "reference")


def test_row_weights_give_the_mean_of_each_term():
    """With a = .2, two correct rows have .1 each, an incorrect one .2, four source-like .2 each."""
    expected = [
        [0.1, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.2, 0.2, 0.2, 0.2],
    ]
    assert torch.allclose(row_weights(2, 1, 4, share=0.2), torch.tensor(expected))
    assert torch.equal(row_weights(0, 2, 0, share=1.0), torch.tensor([[0, 0], [0.5, 0.5], [0, 0]]))


@pytest.mark.parametrize(
    ("n_right", "n_wrong", "n_like"),
    [(4, 3, 5), (1, 6, 2), (4, 0, 5), (0, 4, 5), (3, 2, 0), (0, 0, 5)],
)
def test_update_equals_plain_means_over_the_drawn_rows(n_right, n_wrong, n_like):
    """Each update draws up to 3 anchors and 3 source-like samples. Compare losses and gradients."""
    adapter = Session(toy_classifier(), "simatta", batch_size=3, cold_start=0).adapter
    rows = images(n=n_right + n_wrong + n_like)
    labels = torch.arange(len(rows)) % 5
    right, wrong, like = rows.split([n_right, n_wrong, n_like])
    ours, theirs, source = labels.split([n_right, n_wrong, n_like])
    adapter.source_like.add(JudgedSamples(like, source))
    random_key = RandomKey((7,))
    terms = adapter.objective(MixedBatch(rows, ours, theirs), random_key)
    given = torch.autograd.grad(sum(terms.values()), adapter.parameters)

    drawn = torch.randperm(n_right + n_wrong, generator=random_key.at("anchors"))[:3]
    of_like = torch.randperm(n_like, generator=random_key.at("source-like"))[:3]
    of_right, of_wrong = drawn[drawn < n_right], drawn[drawn >= n_right] - n_right
    share = (n_right + n_wrong) / len(rows)
    model, expected = adapter.model, {}
    if len(of_right):
        expected["correct"] = share * F.cross_entropy(model(right[of_right]), ours[of_right])
    if len(of_wrong):
        loss = complementary_loss(model(wrong[of_wrong]), theirs[of_wrong])
        expected["incorrect"] = share * loss
    if len(of_like):
        loss = F.cross_entropy(model(like[of_like]), source[of_like])
        expected["source_like"] = (1 - share) * loss
    wanted = torch.autograd.grad(sum(expected.values()), adapter.parameters)
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        assert terms[name].item() == pytest.approx(value.item(), rel=1e-5)
    for one, two in zip(given, wanted, strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_term_without_rows_in_an_update_is_nan():
    """One anchor of two is drawn at a time: each step has one of the two terms."""
    session = Session(Plain(), "simatta", batch_size=1)
    session.adapter.anchors.add(answers(POINTS[2:3], POINTS[3:4]), torch.ones(2))
    none = answers(POINTS[:0], POINTS[:0])
    losses = session.adapter.adapt(POINTS[:0], none).terms
    assert list(losses) in (["correct", "incorrect"], ["incorrect", "correct"])
    drawn = {name: ~values.isnan() for name, values in losses.items()}
    assert torch.equal(drawn["correct"], ~drawn["incorrect"])
    assert 0 < drawn["correct"].sum() < 30


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_each_batch_starts_with_zero_momentum(momentum):
    """Compare three batches of two updates with an SGD that is created again for each batch.

    The optimiser object stays, because a captured graph uses its momentum buffers.
    """
    settings = {"lr": 0.05, "momentum": momentum, "steps": 2, "cold_start": 0}
    adapter = Session(toy_classifier(), "simatta", **settings).adapter
    rows, labels = images(n=6), torch.tensor([0, 1, 2, 3, 4, 0])
    correct, incorrect = (
        JudgedSamples(rows[part], labels[part]) for part in (slice(2), slice(2, 3))
    )
    adapter.anchors.add(Feedback(correct, incorrect), torch.ones(3))
    adapter.source_like.add(JudgedSamples(rows[3:], labels[3:]))
    first = adapter.optimiser
    reference = toy_classifier().eval()
    for _ in range(3):
        adapter.adapt(rows[:0], answers(rows[:0], rows[:0]))
        sgd = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=momentum)
        for _ in range(2):
            right, wrong, like = reference(rows).split([2, 1, 3])
            loss = F.cross_entropy(right, labels[:2]) + complementary_loss(wrong, labels[2:3])
            sgd.zero_grad()
            (0.5 * loss + 0.5 * F.cross_entropy(like, labels[3:])).backward()
            sgd.step()
        pairs = zip(adapter.model.parameters(), reference.parameters(), strict=True)
        assert all(torch.allclose(ours, plain, atol=1e-6) for ours, plain in pairs)
    assert adapter.optimiser is first
    assert adapter.state_dict()["optimiser"] == {}


def test_certain_samples_of_the_source_model_are_stored_with_its_labels():
    session = Session(Plain(), "simatta", n_queries=0, max_source_like=3)
    rows = torch.tensor([[12.0, 0.0], [1.0, 0.0], [0.0, 13.0], [20.0, 0.0], [0.0, 14.0]])
    session.step(rows)
    kept = session.adapter.source_like
    # Four have an entropy below 1e-4. They are added surest first, and the last three fit.
    assert kept.inputs.tolist() == [[0, 14], [0, 13], [12, 0]]
    assert kept.labels.tolist() == [1, 1, 0]


def test_source_model_never_changes_and_is_loaded(tmp_path):
    session = Session(toy_classifier(), "simatta", lr=0.01)
    with torch.no_grad():
        before = toy_classifier()(images())
    session.step(images())
    session.save(tmp_path / "s")
    with Session.load(tmp_path / "s", toy_classifier(seed=9)) as loaded, torch.no_grad():
        for adapter in (session.adapter, loaded.adapter):
            assert torch.allclose(adapter.source_model(images(), statistics="running"), before)


def test_training_stops_after_six_windows_without_gain():
    """The first window of six updates sets the limit. The sixth failure ends the seventh window,
    at update 42. The loss of every sixth update is ignored."""
    patience, steps = LossPlateau(), 0
    while not patience.is_reached(torch.tensor(0.0 if steps % 6 == 5 else 1.0)):
        steps += 1
    assert steps + 1 == 42
    falling = LossPlateau()
    assert not any(falling.is_reached(torch.tensor(1.0 / (1 + n))) for n in range(300))


def test_oldest_anchors_are_dropped():
    anchors = AnchorMemory(3)
    rows = torch.arange(4.0).unsqueeze(1)
    anchors.add(answers(rows[:2], rows[2:3]), torch.tensor([1.0, 2.0, 3.0]))
    anchors.add(answers(rows[:0], rows[3:]), torch.tensor([4.0]))
    assert anchors.inputs.flatten().tolist() == [1, 2, 3]
    assert anchors.weights.tolist() == [2, 3, 4]
    assert anchors.with_verdict(correct=False)[0].flatten().tolist() == [2, 3]


def test_full_labels_are_learned():
    truth = torch.tensor([2] * 64)
    session = Session(toy_classifier(), "simatta", lr=0.01, feedback=SimulatedLabels(truth, 5))
    before = session.predict(images(0, 32)).probs[:, 2].mean()
    session.learn()
    assert session.adapter.anchors.labels.tolist() == [2, 2, 2]
    assert session.predict(images(1, 32)).probs[:, 2].mean() > before


@pytest.mark.full
@pytest.mark.parametrize(
    "check",
    # Fewer questions are asked if anchors represent all clusters.
    [check for check in CHECKS if check is not batch_sizes_vary],
    ids=lambda check: check.__name__,
)
def test_contract_holds_if_clusters_select_questions(check):
    settings = {"clusters": 2, "cluster_growth": 1, "steps": 2, "max_anchors": 6}
    check(Subject("simatta", "batch", settings=settings))


def test_missing_scikit_learn_is_refused_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(SettingError, match=r"pip install 'bitta\[cluster\]'"):
        Session(toy_classifier(), "simatta")


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"low_entropy": -1.0}, {"complementary_eps": -1e-6}, {"starts": 0}],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match="allowed"):
        Session(toy_classifier(), "simatta", **wrong)
