"""Tests of the demo's camera: conditions change, and equal seeds give equal images."""

from queue import Queue

import numpy as np
import pytest

from bitta.server.demo_camera import SCENES, Camera, ChangingWeather, ColouredDigits
from bitta.streams import embedded_pack

SHAPES = {"digits": (3, 28, 28), "corruptions": (3, 32, 32)}
CHANGES = {"digits": ColouredDigits.N_ORIGINAL, "corruptions": ChangingWeather.IMAGES_PER_CONDITION}


@pytest.fixture(params=list(SCENES))
def kind(request):
    return request.param


def test_image_has_shape_and_type_of_model_input(kind):
    image, label = SCENES[kind]().image(0)
    assert (image.shape, image.dtype) == (SHAPES[kind], np.float32)
    assert 0 <= image.min() < image.max() <= 1
    assert type(label) is int


def test_image_depends_only_on_seed_and_index(kind):
    scene, same, other = (SCENES[kind](seed=seed) for seed in (4, 4, 5))
    for index in (0, 9000, 5):
        image, label = scene.image(index)
        same.image(index + 1)
        again, as_before = same.image(index)
        assert np.array_equal(image, again)
        assert label == as_before
        assert not np.array_equal(image, other.image(index)[0])


def test_condition_changes_after_whole_windows(kind):
    scene, change = SCENES[kind](), CHANGES[kind]
    assert change % 64 == 0
    assert scene.condition(0) == scene.condition(change - 1) != scene.condition(change)


def bytes_of(image):
    return image.tobytes()


def share_predicted_by_colour(indices):
    scene = ColouredDigits(seed=1)
    n_predicted = 0
    for index in indices:
        image, label = scene.image(index)
        n_predicted += int(image[:2].sum((1, 2)).argmax()) == label
    return n_predicted / len(indices)


def test_colours_predict_class_at_first_and_then_the_opposite():
    # Probability: 1 - .25 - .1 + 2 x .25 x .1 = .7, then 1 - .25 - .9 + 2 x .25 x .9 = .3.
    change = ColouredDigits.N_ORIGINAL
    assert 0.6 < share_predicted_by_colour(range(300)) < 0.8
    assert 0.2 < share_predicted_by_colour(range(change, change + 300)) < 0.4


def test_class_of_digit_is_one_from_5_on():
    pack = embedded_pack("digits")
    labels = dict(zip(map(bytes_of, pack.images.numpy()), pack.labels.tolist(), strict=True))
    scene = ColouredDigits(seed=2)
    for index in range(20):
        image, label = scene.image(index)
        drawn = np.round(255 * image.max(0)).astype(np.uint8)
        assert label == int(labels[drawn.tobytes()] >= 5)


def test_clear_weather_leaves_images_unchanged_and_bad_weather_changes_them():
    clean = set(map(bytes_of, embedded_pack("cifar10").images.numpy()))
    scene = ChangingWeather(seed=2)

    def is_unchanged(index):
        return np.round(255 * scene.image(index)[0]).astype(np.uint8).tobytes() in clean

    assert all(is_unchanged(index) for index in range(5))
    assert not any(
        is_unchanged(index)
        for index in range(
            ChangingWeather.IMAGES_PER_CONDITION, ChangingWeather.IMAGES_PER_CONDITION + 5
        )
    )
    once_around = ChangingWeather.IMAGES_PER_CONDITION * len(ChangingWeather.CONDITIONS)
    assert scene.condition(once_around) == "clear"


def test_no_image_is_repeated_before_all_others_appeared():
    scene = ColouredDigits(seed=3)
    first = {scene.image(index)[0].max(0).tobytes() for index in range(5000, 6000)}
    assert len(first) == 1000
    second = {scene.image(index)[0].max(0).tobytes() for index in range(6000, 7000)}
    # About a sixth of the next thousand images were among the last thousand.
    assert 100 < len(first & second) < 250


def test_camera_sends_images_in_order_from_given_index():
    sent: Queue[tuple[np.ndarray, int]] = Queue()
    scene = ColouredDigits(seed=1)
    camera = Camera(scene, lambda *item: sent.put(item), per_second=500, first=7)
    camera.start()
    items = [sent.get(timeout=20) for _ in range(3)]
    camera.stop()
    assert not camera.is_alive()
    for index, (image, label) in enumerate(items, start=7):
        expected, truth = scene.image(index)
        assert np.array_equal(image, expected)
        assert label == truth
