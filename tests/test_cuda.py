"""Contract suite and passes on a GPU."""

import pytest
import torch

from bitta import Session
from bitta.bench.prefetch import Prefetch
from bitta.corruptions import CORRUPTIONS, corrupt
from bitta.methods import METHODS
from bitta.nn import SamplingSettings, WrappedModel
from bitta.seeding import RandomKey, generator
from bitta.streams import Domain, Stream, embedded_pack
from bitta.testing import CHECKS, NORMS, Subject, needed_settings, toy_classifier

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device here; run on a machine with a GPU"
    ),
]


PATHS = {"fast": {"precision": "float32"}, "eager": {"eager": True}}


@pytest.fixture(autouse=True)
def repeatable():
    """Use deterministic kernels, which bit-equality on a GPU needs."""
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", PATHS)
def test_contract(path, method, norm, check, tmp_path):
    settings = {**needed_settings(method, norm, tmp_path), **PATHS[path]}
    check(Subject(method, norm, device="cuda", settings=settings))


@pytest.mark.parametrize("statistics", ["running", "batch"])
def test_fan_out_equals_separate_passes(statistics):
    wrapped = WrappedModel(toy_classifier().cuda())
    x = torch.rand(6, 3, 8, 8, generator=generator(1)).cuda()
    drawn = {}
    for wrapped.can_fan_out in (True, False):
        drawn[wrapped.can_fan_out] = wrapped.sample(
            x, SamplingSettings(statistics, 0.3, 4), RandomKey((1,))
        )
    assert torch.allclose(drawn[True], drawn[False], atol=1e-5)


def test_session_can_move_from_gpu_to_cpu(tmp_path):
    session = Session(toy_classifier().cuda(), n_queries=2)
    session.step(torch.rand(6, 3, 8, 8))
    session.save(tmp_path / "s")
    Session.load(tmp_path / "s", toy_classifier()).step(torch.rand(6, 3, 8, 8))


def test_prefetched_batches_equal_those_of_the_stream():
    pack = embedded_pack("cifar10")
    domains = [
        Domain("pixels", pack.images[:300], pack.labels[:300]),
        Domain("floats", torch.rand(200, 3, 32, 32, generator=generator(2)), pack.labels[:200]),
    ]
    stream = Stream(domains, batch_size=64)
    prefetched = Prefetch(stream, torch.device("cuda")).batches()
    for here, there in zip(stream.batches(), prefetched, strict=True):
        assert there.inputs.is_cuda
        assert torch.equal(there.inputs.cpu(), here.inputs)
        assert torch.equal(there.truth, here.truth)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_on_a_gpu_are_similar_to_those_on_a_cpu(name):
    images = embedded_pack("cifar10").images[:256]
    here = corrupt(images, name).float()
    there = corrupt(images.cuda(), name)
    assert torch.equal(there, corrupt(images.cuda(), name))
    damage = [(made - images).abs().mean().item() for made in (here, there.cpu().float())]
    assert damage[0] == pytest.approx(damage[1], rel=0.1)
