"""Tests of the speed measurement. No test asserts a duration."""

import json

import pytest
import torch
from torch import nn

from bitta.bench import speed
from bitta.bench.speed import (
    SPEED_GRIDS,
    SpeedConditions,
    SpeedResult,
    _count_flops,
    flops_per_batch,
    matmul_rate,
    measure_speed,
    random_batches,
    session_with_full_memories,
    speed_cases,
)
from bitta.errors import InputError, ModelError, SettingError
from bitta.nn import Execution
from bitta.speed_records import SpeedMeasurement

CPU = torch.device("cpu")
SMALL = {"model": "resnet8", "size": 16, "batch": 8, "memory": 4, "epochs": 2}
TWO_BATCHES = SpeedConditions(device=CPU, batches=2, warm_up=1)


def case(method="bitta", **changes):
    return speed_cases(["headline"], methods=[method], changes={**SMALL, **changes})[0]


def fixed_rate(_execution):
    return 1e9


@pytest.fixture(scope="module")
def measured():
    return measure_speed(case(), TWO_BATCHES, rate=fixed_rate)


def test_memories_are_full_before_and_after_the_first_batch():
    speed_case = case(memory=5)
    with session_with_full_memories(speed_case, CPU) as session:
        for _ in range(2):
            assert len(session.adapter.memory.correct) == len(session.adapter.memory.incorrect) == 5
            session.step(random_batches(speed_case, CPU)[0])


def test_memories_stay_empty_without_questions():
    speed_case = case("tent", n_queries=0)
    with session_with_full_memories(speed_case, CPU) as session:
        session.step(random_batches(speed_case, CPU)[0])
        assert len(session.adapter.memory.correct) == 0


def test_forwards_and_backwards_of_bitta_equal_hand_computation(measured):
    """Statistics 8, serving 8, policy 4 x 8 = 32: 48 forwards before learning.

    3 of 8 are asked about, so an update sees 4 + 4 + 5 = 13 samples: 4 x 13 stochastic, which go
    backward, and 13 deterministic. Two epochs: 2 x 65 = 130 forwards and 2 x 52 = 104 backwards.
    """
    assert measured.forwards == 48 + 130
    assert measured.backwards == 104


def test_forwards_and_backwards_of_source_and_tent_equal_hand_computation():
    """Serving: 8. Tent adds 4 x 8 for the policy, and 5 + 13 in each of two epochs."""
    served = measure_speed(case("source"), TWO_BATCHES, rate=fixed_rate)
    assert (served.forwards, served.backwards) == (8, 0)
    tent = measure_speed(case("tent"), TWO_BATCHES, rate=fixed_rate)
    assert (tent.forwards, tent.backwards) == (8 + 32 + 36, 36)


def test_measurement_records_execution_path_times_and_rate(measured):
    assert measured.execution == "eager, float32, channels_last"
    assert measured.n_timed == 2
    assert measured.ms_p25 <= measured.ms <= measured.ms_p75
    assert measured.matmul_share == pytest.approx(measured.flops / (measured.ms / 1000) / 1e9)
    assert measured.images_per_second == pytest.approx(8000 / measured.ms)


def test_requests_that_complete_a_window_are_not_timed(monkeypatch):
    """Every second batch of 32 completes the window of 64, and is not timed."""
    sessions = []

    def record_session(*arguments, **changes):
        sessions.append(session_with_full_memories(*arguments, **changes))
        return sessions[-1]

    monkeypatch.setattr(speed, "session_with_full_memories", record_session)
    speed_case = case("source", batch=32)
    conditions = SpeedConditions(device=CPU, batches=3, warm_up=0)
    speed._serving_ms(speed_case, conditions, random_batches(speed_case, CPU))
    # Two batches fill the first window. Then follow timed, completing, timed, completing, timed.
    assert sessions[0].n_served == 32 * 7
    assert sessions[0].n_asked == 0


def test_operations_of_a_linear_layer_equal_hand_computation():
    """(5, 7) times (7, 3) has 5 x 7 x 3 products and as many sums. The backward pass doubles it."""
    layer = nn.Linear(7, 3, bias=False)
    assert _count_flops(lambda: layer(torch.rand(5, 7))) == 2 * 105
    assert _count_flops(lambda: layer(torch.rand(5, 7)).sum().backward()) == 4 * 105


@pytest.mark.full
@pytest.mark.parametrize("method", ["source", "tent", "bitta"])
def test_operations_extrapolated_from_small_cases_equal_those_counted(method):
    speed_case = case(method, batch=6, memory=5)
    counted = _count_flops(speed._second_step(speed_case, TWO_BATCHES))
    assert (
        flops_per_batch(speed_case, lambda small: speed._second_step(small, TWO_BATCHES)) == counted
    )


def test_operations_of_a_transformer_include_attention():
    """Per block and image of 65 tokens: 24 x 65 x 192² dense, 4 x 65² x 192 attention."""
    speed_case = speed_cases(
        ["headline"], methods=["source"], changes={"model": "vit_small", "batch": 2}
    )[0]
    block = 24 * 65 * 192**2 + 4 * 65**2 * 192
    rest = 2 * 64 * 48 * 192 + 2 * 192 * 10  # patches of 4 x 4 x 3; the head
    assert flops_per_batch(
        speed_case, lambda small: speed._second_step(small, TWO_BATCHES)
    ) == 2 * (9 * block + rest)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (torch.OutOfMemoryError("full"), "does not fit"),
        (ModelError("nothing to train."), "nothing to train."),
    ],
)
def test_case_that_cannot_be_measured_has_a_failure(monkeypatch, error, failure):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(speed, "session_with_full_memories", fail)
    measurement = measure_speed(case(), TWO_BATCHES, rate=fixed_rate)
    assert measurement.failure == failure
    assert measurement.ms == 0
    assert measurement.images_per_second == 0


def test_error_caused_by_a_full_device_counts_as_out_of_memory(monkeypatch):
    def fail(*_, **__):
        try:
            raise torch.OutOfMemoryError("full")
        except torch.OutOfMemoryError:
            raise RuntimeError("capture failed") from None

    monkeypatch.setattr(speed, "session_with_full_memories", fail)
    assert measure_speed(case(), TWO_BATCHES, rate=fixed_rate).failure == "does not fit"


def test_programming_error_is_raised(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a programming error")

    monkeypatch.setattr(speed, "session_with_full_memories", fail)
    with pytest.raises(RuntimeError, match="a programming error"):
        measure_speed(case(), TWO_BATCHES, rate=fixed_rate)


def test_saved_result_is_read_back_unchanged(tmp_path):
    measured = SpeedMeasurement(case=case(settings={"restore": 0.01}), ms=2.0, forwards=3)
    result = SpeedResult(
        environment={"device": "cpu"},
        settings=TWO_BATCHES.as_table(),
        matmul={"float32": 1e9},
        measurements=[measured, SpeedMeasurement(case=case("tent"), failure="does not fit")],
    )
    result.save(tmp_path / "speed.json")
    assert SpeedResult.load(tmp_path / "speed.json") == result
    assert json.loads((tmp_path / "speed.json").read_text())["measurements"][0][
        "images_per_second"
    ] == pytest.approx(4000)
    (tmp_path / "other.json").write_text('{"format": 0}')
    with pytest.raises(InputError, match=r"other\.json.* format 0"):
        SpeedResult.load(tmp_path / "other.json")


def test_every_grid_has_a_case_per_value_of_its_axis():
    for name, grid in SPEED_GRIDS.items():
        cases = speed_cases([name], changes={})
        assert len(cases) == len(grid.methods) * max(1, len(grid.values))
        if grid.axis:
            assert [getattr(each, grid.axis) for each in cases] == list(grid.values)


def test_case_in_several_grids_is_listed_once():
    """The grids share a case: 1 headline, 3 other methods, 3 other batch sizes."""
    assert len(speed_cases(["headline", "default", "batch"], changes={})) == 7
    assert len(speed_cases(["all"], changes={})) == len(
        {repr(each) for name in SPEED_GRIDS for each in speed_cases([name], changes={})}
    )


def test_tiny_imagenet_grid_has_the_settings_of_the_paper():
    """Appendix: 200 classes, E = 5, restoration; torchvision's ResNet-18."""
    bitta = speed_cases(["tiny-imagenet"], methods=["bitta"], changes={})[0]
    assert (bitta.n_classes, bitta.size, bitta.batch, bitta.n_queries) == (200, 224, 64, 3)
    assert (bitta.epochs, bitta.passes, bitta.settings["restore"]) == (5, 4, 0.01)
    tent = speed_cases(["tiny-imagenet"], methods=["tent"], changes={})[0]
    assert (tent.epochs, tent.settings) == (1, {})


@pytest.mark.parametrize(
    ("names", "methods", "changes", "message"),
    [
        (["bacth"], [], {}, "unknown grid 'bacth'; did you mean 'batch'"),
        (["batch"], [], {"batch": 8}, "--batch .*'batch'"),
        (["classes"], [], {"n_classes": 8}, "--classes .*'classes'"),
        (["default"], ["tnet"], {}, "did you mean 'tent'"),
        (["default"], [], {"model": "resnet81"}, "unknown architecture 'resnet81'"),
        (["default"], [], {"batch": 0}, "batch is 0; allowed: 1 or more"),
        (["headline"], [], {"epochs": 0}, "epochs is 0; allowed: 1 or more"),
        (["headline"], [], {"n_classes": 1}, "n_classes is 1; allowed: 2 or more"),
    ],
)
def test_invalid_cases_are_refused(names, methods, changes, message):
    with pytest.raises(SettingError, match=message):
        speed_cases(names, methods=methods, changes=changes)


def test_conditions_without_timed_batches_are_refused():
    with pytest.raises(SettingError, match="batches is 0; allowed: 1 or more"):
        SpeedConditions(device=CPU, batches=0)


def test_matmul_rate_is_positive():
    execution = Execution.choose(CPU, torch.float32, eager=True, precision="float32")
    assert matmul_rate(CPU, execution) > 0
