"""Exact trajectories: the published code's, and a plain second implementation of it."""

import numpy as np
import torch

import plain_reference as plain
from bitta import Session, Simulated


def read(path):
    with np.load(path, allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def network(golden, *, tracked=True):
    net = plain.GoldenNet(golden["mean"].tolist(), golden["std"].tolist(), tracked=tracked)
    counted = {} if tracked else {"num_batches_tracked"}
    net.load_state_dict(
        {
            name.removeprefix("init."): tensor
            for name, tensor in golden.items()
            if name.startswith("init.") and name.rpartition(".")[2] not in counted
        }
    )
    return net


def largest_gap(net, golden):
    state = net.state_dict()
    return max(
        (state[name.removeprefix("final.")].double() - tensor.double()).abs().max().item()
        for name, tensor in golden.items()
        if name.startswith("final.") and "num_batches" not in name
    )


def assert_reproduced(golden, *, batch, **settings):
    net = network(golden)
    session = Session(
        net,
        preset="reference",
        n_queries=3,
        dropout=0,
        feedback=Simulated(golden["truth"]),
        **settings,
    )
    for number, x in enumerate(golden["inputs"].split(batch)):
        prediction, _, losses = session.step(x)
        asked = sorted(query.position for query in prediction.queries)
        assert asked == sorted(golden["queried"][number].tolist())
        if "judged" in golden:
            shown = {query.position: query.shown_label for query in prediction.queries}
            judged = golden["queried"][number].tolist(), golden["judged"][number].tolist()
            assert shown == dict(zip(*judged, strict=True))
        assert torch.equal(
            prediction.labels, golden["served"][number * batch : (number + 1) * batch]
        )
        measured = torch.stack([losses.terms["feedback"], losses.terms["agreement"]], 1)
        assert (measured - golden["losses"][number]).abs().max() < 5e-6
    assert largest_gap(net, golden) < 5e-6


def test_reference_preset_reproduces_the_published_code(shared_data):
    golden = read(shared_data / "golden" / "bitta_reference.npz")
    assert_reproduced(golden, batch=16, lr=0.01, correct_memory=16, incorrect_memory=16)


def test_reference_preset_reproduces_a_plain_second_implementation():
    golden = read(plain.GOLDEN)
    capacity = {"correct_memory": plain.CAPACITY, "incorrect_memory": plain.CAPACITY}
    assert_reproduced(golden, batch=plain.BATCH, lr=plain.LR, epochs=plain.EPOCHS, **capacity)


def test_tent_reproduces_the_published_code(shared_data):
    golden = read(shared_data / "golden" / "tent_reference.npz")
    net = network(golden, tracked=False)
    session = Session(net, "tent", preset="reference")
    served = torch.cat([session.step(x)[0].labels for x in golden["inputs"].split(16)])
    assert torch.equal(served, golden["served"])
    assert largest_gap(net, golden) < 1e-5


def test_eta_reproduces_the_published_code(shared_data):
    golden = read(shared_data / "golden" / "eta_reference.npz")
    net = network(golden, tracked=False)
    session = Session(net, "eta", preset="reference")
    served = torch.cat([session.step(x)[0].labels for x in golden["inputs"].split(16)])
    assert torch.equal(served, golden["served"])
    assert largest_gap(net, golden) < 1e-5


def test_sar_reproduces_the_published_code(shared_data):
    golden = read(shared_data / "golden" / "sar_reference.npz")
    net = network(golden, tracked=False)
    session = Session(net, "sar", preset="reference", lr=0.01)
    served = torch.cat([session.step(x)[0].labels for x in golden["inputs"].split(16)])
    assert torch.equal(served, golden["served"])
    assert largest_gap(net, golden) < 1e-5
