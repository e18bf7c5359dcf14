"""What the demo's camera sees: clean pictures, then something else, the same for the same seed."""

from queue import Queue

import numpy as np
import pytest

from bitta.server.camera import SCENES, Camera, ChangingWeather, ColouredDigits
from bitta.streams import embedded_pack

SHAPES = {"digits": (3, 28, 28), "corruptions": (3, 32, 32)}
CHANGES = {"digits": ColouredDigits.N_FAITHFUL, "corruptions": ChangingWeather.IMAGES_PER_CONDITION}


@pytest.fixture(params=list(SCENES))
def kind(request):
    return request.param


def test_a_picture_is_as_the_model_reads_it(kind):
    picture, label = SCENES[kind]().image(0)
    assert (picture.shape, picture.dtype) == (SHAPES[kind], np.float32)
    assert 0 <= picture.min() < picture.max() <= 1
    assert type(label) is int


def test_a_picture_depends_on_seed_and_place_alone(kind):
    one, same, other = (SCENES[kind](seed=seed) for seed in (4, 4, 5))
    for place in (0, 9000, 5):
        picture, label = one.image(place)
        same.image(place + 1)
        again, as_before = same.image(place)
        assert np.array_equal(picture, again)
        assert label == as_before
        assert not np.array_equal(picture, other.image(place)[0])


def test_the_change_comes_where_it_is_said_to_and_after_whole_windows(kind):
    scene, change = SCENES[kind](), CHANGES[kind]
    assert change % 64 == 0
    assert scene.condition(0) == scene.condition(change - 1) != scene.condition(change)


def bytes_of(image):
    return image.tobytes()


def share_that_the_colour_tells(places):
    scene = ColouredDigits(seed=1)
    told = 0
    for place in places:
        picture, label = scene.image(place)
        told += int(picture[:2].sum((1, 2)).argmax()) == label
    return told / len(places)


def test_colours_tell_the_class_at_first_and_then_the_opposite():
    # Told with 1 - .25 - .1 + 2 x .25 x .1 = .7, then 1 - .25 - .9 + 2 x .25 x .9 = .3.
    change = ColouredDigits.N_FAITHFUL
    assert 0.6 < share_that_the_colour_tells(range(300)) < 0.8
    assert 0.2 < share_that_the_colour_tells(range(change, change + 300)) < 0.4


def test_the_class_of_a_digit_is_whether_it_is_5_or_more():
    pack = embedded_pack("digits")
    labels = dict(zip(map(bytes_of, pack.images.numpy()), pack.labels.tolist(), strict=True))
    scene = ColouredDigits(seed=2)
    for place in range(20):
        picture, label = scene.image(place)
        drawn = np.round(255 * picture.max(0)).astype(np.uint8)
        assert label == int(labels[drawn.tobytes()] >= 5)


def test_clear_weather_leaves_pictures_as_they_are_and_bad_weather_does_not():
    clean = set(map(bytes_of, embedded_pack("cifar10").images.numpy()))
    scene = ChangingWeather(seed=2)

    def untouched(place):
        return np.round(255 * scene.image(place)[0]).astype(np.uint8).tobytes() in clean

    assert all(untouched(place) for place in range(5))
    assert not any(
        untouched(place)
        for place in range(
            ChangingWeather.IMAGES_PER_CONDITION, ChangingWeather.IMAGES_PER_CONDITION + 5
        )
    )
    once_around = ChangingWeather.IMAGES_PER_CONDITION * len(ChangingWeather.CONDITIONS)
    assert scene.condition(once_around) == "clear"


def test_no_image_comes_again_before_the_others_have_come():
    scene = ColouredDigits(seed=3)
    turn = {scene.image(place)[0].max(0).tobytes() for place in range(5000, 6000)}
    assert len(turn) == 1000
    again = {scene.image(place)[0].max(0).tobytes() for place in range(6000, 7000)}
    # A new order: of a thousand about a sixth were among the last thousand.
    assert 100 < len(turn & again) < 250


def test_a_camera_sends_one_picture_after_another_from_where_it_is_told_to():
    sent: Queue[tuple[np.ndarray, int]] = Queue()
    scene = ColouredDigits(seed=1)
    camera = Camera(scene, lambda *one: sent.put(one), per_second=500, first=7)
    camera.start()
    got = [sent.get(timeout=20) for _ in range(3)]
    camera.stop()
    assert not camera.is_alive()
    for place, (picture, label) in enumerate(got, start=7):
        expected, truth = scene.image(place)
        assert np.array_equal(picture, expected)
        assert label == truth
