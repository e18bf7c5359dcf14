"""Tests of the fast path against the plain one, on a GPU."""

import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitta import FallbackWarning, Session, Simulated
from bitta.methods import METHODS, get_method
from bitta.models import load_model, weights_path
from bitta.nn.fast import fused
from bitta.nn.mc_dropout import _apply_dropout, _apply_dropout_by_kernel, _RandomWords
from bitta.seeding import RandomKey, generator
from bitta.streams import embedded_pack
from bitta.testing import NORMS, needed_settings, toy_classifier

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device here; run on a machine with a GPU"
    ),
]

OWN = {
    # With these settings the shapes of an update stop changing after a few batches.
    "simatta": {"batch_size": 4, "low_entropy": 3.0},
    # Adam makes full steps from gradients that are only rounding errors, as before a BatchNorm.
    "cotta": {"optimiser": "sgd"},
}
SMALL = {"correct_memory": 6, "incorrect_memory": 6, "n_queries": 3, "lr": 1e-2}


@pytest.fixture(autouse=True)
def repeatable():
    """Use deterministic kernels, which bit-equality on a GPU needs."""
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


def images(number, n=12):
    return torch.rand(n, 3, 8, 8, generator=generator(5, number)) * (1 + 0.1 * number)


def steps(session, numbers):
    """Make steps. The answers say that predictions of even rows are correct."""
    seen = []
    for number in numbers:
        prediction = session.predict(images(number))
        for query in prediction.queries:
            session.answer(query.id, correct=(query.index + query.shown_label) % 2 == 0)
        session.learn()
        asked = [(query.index, query.shown_label) for query in prediction.queries]
        seen.append((prediction.labels.tolist(), asked))
    return seen


def largest_gap(one, two):
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    return max((a.double().cpu() - b.double().cpu()).abs().max().item() for a, b in pairs)


def both_paths(make, n=14, **settings):
    """Return sessions on the plain and on the fast path, with their predictions."""
    sessions, seen = [], []
    for path in ({"eager": True}, {"precision": "float32"}):
        sessions.append(Session(make().cuda(), **(SMALL | settings), **path))
        seen.append(steps(sessions[-1], range(n)))
    return *sessions, *seen


@pytest.mark.parametrize(
    "settings",
    [{}, {"method": "tent"}, {"memory": "low"}, {"alpha": 0.0}, {"preset": "paper"},
     {"micro_batch": 5, "adapt_statistics": "running"}, {"restore": 0.1}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("norm", NORMS)
def test_both_paths_serve_ask_and_learn_alike(norm, settings):
    plain, fast, *seen = both_paths(lambda: toy_classifier(norm), **settings)
    assert seen[0] == seen[1]
    assert largest_gap(plain.model, fast.model) < 1e-5
    assert fast.adapter.wrapped.graphs.seconds > 0, "nothing was captured"
    assert plain.adapter.wrapped.graphs.seconds == 0
    assert plain.adapter.wrapped.counts == fast.adapter.wrapped.counts


@pytest.mark.parametrize(
    "method", [name for name in METHODS if get_method(name).trains != "nothing"]
)
def test_every_method_learns_alike_on_both_paths(method, tmp_path):
    settings = needed_settings(method, "batch", tmp_path) | OWN.get(method, {})
    plain, fast, *seen = both_paths(toy_classifier, method=method, **settings)
    assert seen[0] == seen[1]
    assert largest_gap(plain.model, fast.model) < 1e-4
    assert fast.adapter.wrapped.graphs.seconds > 0, "nothing was captured"


def test_ten_batches_of_a_real_stream_agree_on_both_paths():
    pack, ends = embedded_pack("cifar10"), []
    for path in ({"eager": True}, {"precision": "float32"}):
        with weights_path("embedded:cifar10-resnet8") as file:
            model, _ = load_model(file)
        session = Session(
            model.cuda(), correct_memory=8, incorrect_memory=8, feedback=Simulated(pack.labels),
            **path,
        )  # fmt: skip
        served = []
        for number in range(10):
            prediction, *_ = session.step(pack.images[64 * number :][:64].float() / 255)
            asked = [(query.position, query.shown_label) for query in prediction.queries]
            served.append((prediction.labels.tolist(), asked))
        ends.append((session.model, served))
    assert ends[0][1] == ends[1][1]
    assert largest_gap(ends[0][0], ends[1][0]) < 1e-4


@pytest.mark.parametrize("order", [(True, False), (False, True)], ids=["eager-fast", "fast-eager"])
def test_resumed_run_may_use_another_path(tmp_path, order):
    whole = Session(toy_classifier().cuda(), **SMALL, eager=True)
    expected = steps(whole, range(16))
    first, second = ({"eager": True} if eager else {"precision": "float32"} for eager in order)
    before = Session(toy_classifier().cuda(), **SMALL, **first)
    seen = steps(before, range(8))
    before.save(tmp_path / "s")
    after = Session.load(tmp_path / "s", toy_classifier().cuda(), **second)
    assert seen + steps(after, range(8, 16)) == expected
    assert largest_gap(whole.model, after.model) < 1e-5


def test_captured_updates_restart_after_a_reset():
    session = Session(toy_classifier().cuda(), **SMALL, precision="float32")
    first = steps(session, range(8))
    session.reset()
    assert steps(session, range(8)) == first


@pytest.fixture
def most_reserved():
    """Return a function that measures the peak reserved memory while the sample memory grows."""

    def of(*, every):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        settings = SMALL | {"correct_memory": 40, "incorrect_memory": 40, "n_queries": 1}
        session = Session(toy_classifier().cuda(), **settings, precision="float32")
        for number in range(120):
            prediction = session.predict(torch.rand(64, 3, 64, 64, generator=generator(number)))
            if number % every == 0:
                query = prediction.queries[0]
                session.answer(query.id, correct=query.index % 2 == 0)
            session.learn()
        session.close()
        return torch.cuda.max_memory_reserved() - before

    return of


def test_slowly_filling_memory_reserves_little_more_gpu_memory(most_reserved):
    """Each answer changes the shape of an update, which is then constant until the next answer."""
    assert most_reserved(every=6) < 1.5 * most_reserved(every=1)


def test_occasional_other_batch_size_keeps_the_captured_graph():
    session = Session(toy_classifier().cuda(), method="tent", precision="float32")
    for number in range(60):
        if number == 10:
            spent = session.adapter.wrapped.graphs.seconds
        session.predict(images(number, 5 if number > 10 and number % 3 == 0 else 12))
        session.learn()
    assert session.adapter.wrapped.graphs.seconds == spent > 0


class ReadsTensorValue(nn.Module):
    """Model that reads a tensor value, which a graph cannot capture."""

    def __init__(self):
        super().__init__()
        self.model = toy_classifier()

    def forward(self, x):
        return self.model(x if x.mean().item() < 1e9 else x * 0)


class TakesView(nn.Module):
    """Model that takes a view of contiguous images."""

    def __init__(self):
        super().__init__()
        random_key = generator(3)
        self.stage1, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.stage2, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8 * 64, 5)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1, generator=random_key)

    def forward(self, x):
        x = self.stage2(self.norm(self.stage1(x)).relu()).relu()
        return self.head(x.view(len(x), -1))


def test_model_that_cannot_be_captured_runs_eagerly():
    plain = Session(toy_classifier().cuda(), **SMALL, eager=True)
    expected = steps(plain, range(8))
    session = Session(ReadsTensorValue().cuda(), **SMALL, precision="float32")
    with pytest.warns(FallbackWarning, match="cannot be captured"):
        assert steps(session, range(8)) == expected
    later = Session(toy_classifier().cuda(), **SMALL, precision="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert steps(later, range(8)) == expected
    assert later.adapter.wrapped.graphs.seconds > 0


def test_model_that_takes_views_keeps_the_contiguous_layout():
    plain, fast, *_ = both_paths(TakesView, n=3, sites=["stage1"])
    for session in (plain, fast):
        assert not session.execution.channels_last
        assert session.model.stage1.weight.is_contiguous()


def test_closed_session_restores_the_layout():
    model = toy_classifier().cuda()
    with Session(model, **SMALL) as session:
        session.predict(images(0))
        assert not model.stem.weight.is_contiguous()
    assert model.stem.weight.is_contiguous()


def test_hooks_of_the_user_are_called_every_time():
    model, calls = toy_classifier().cuda(), []
    session = Session(model, **SMALL)
    steps(session, range(6))
    handle = model.head.register_forward_hook(lambda *_: calls.append(1))
    session.predict(images(6))
    assert calls
    handle.remove()
    steps(session, range(7, 9))


def test_half_precision_gives_similar_results():
    model = toy_classifier().cuda()
    exact = Session(model, "bn_stats", copy=True, precision="float32").predict(images(0)).probs
    half = Session(model, "bn_stats", copy=True, precision="bfloat16").predict(images(0)).probs
    assert not torch.equal(exact, half)
    assert torch.allclose(exact, half, atol=0.05)
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("passes", "n", "channels", "side"),
    [(4, 5, 16, 4), (1, 7, 64, 8), (3, 2, 70, 5), (4, 61, 128, 16)],
)
def test_fused_normalisation_equals_normalisation_of_each_pass(passes, n, channels, side, dtype):
    random_key = generator(1, device="cuda")
    shape = (passes * n, channels, side, side)
    x = torch.randn(shape, generator=random_key, device="cuda") * 2 + 5
    x = x.to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight, bias = torch.randn(2, channels, generator=random_key, device="cuda").requires_grad_()
    slope = torch.randn(shape, generator=random_key, device="cuda").to(dtype)
    exact = torch.cat(
        [F.batch_norm(part.double(), None, None, weight.double(), bias.double(), True, 0.0, 1e-5)
         for part in x.chunk(passes)]
    )  # fmt: skip
    ours = fused.normalise_passes(x, weight, bias, passes, eps=1e-5)
    within = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.1, "rtol": 0.02}
    assert torch.allclose(ours.double(), exact, **within)
    wanted = torch.autograd.grad(exact, (x, weight, bias), slope.double())
    given = torch.autograd.grad(ours, (x, weight, bias), slope)
    for one, two in zip(wanted, given, strict=True):
        scale = one.abs().max().item()
        assert (one - two).abs().max().item() < scale * (1e-5 if dtype == torch.float32 else 0.01)


@pytest.mark.parametrize("part", [{}, {"n_rows": 9, "first_row": 2}], ids=str)
@pytest.mark.parametrize("fanned", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_fused_dropout_drops_the_same_elements(layout, fanned, part):
    words = _RandomWords(RandomKey((1,)), (0, 0), range(3), **part)
    rows = 15 if fanned else 5
    x = torch.randn(rows, 6, 4, 4, generator=generator(2)).cuda()
    x = x.contiguous(memory_format=layout).requires_grad_()
    plain, ours = (
        _apply_dropout(x, 0.3, words, fanned),
        _apply_dropout_by_kernel(x, 0.3, words, fanned),
    )
    assert torch.equal(plain, ours)
    slope = torch.randn_like(plain)
    wanted, given = (torch.autograd.grad(out, x, slope)[0] for out in (plain, ours))
    assert torch.allclose(wanted, given, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"memory": "low"}, {"method": "tent"}], ids=str)
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_replayed_updates_equal_eager_updates(precision, settings):
    """Kernels draw masks again in the backward pass. Generators are seeded before each replay."""
    ends = []
    for replays in (True, False):
        session = Session(toy_classifier().cuda(), **(SMALL | settings), precision=precision)
        wrapped = session.adapter.wrapped
        if not replays:
            wrapped.execution = replace(wrapped.execution, graphs=False)
        assert wrapped.execution.kernels
        ends.append((steps(session, range(14)), session.model))
        assert (wrapped.graphs.seconds > 0) == replays
    assert ends[0][0] == ends[1][0]
    assert largest_gap(ends[0][1], ends[1][1]) < 1e-6


def test_model_in_half_precision_keeps_its_precision():
    session = Session(toy_classifier().half().cuda(), **SMALL)
    steps(session, range(6))
    assert "own precision" in str(session.execution)
    assert next(session.model.parameters()).dtype == torch.float16
