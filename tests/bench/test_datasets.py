"""Tests of every kind of data in [stream], on small trees in the official layout."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from bitta.bench import datasets
from bitta.bench.datasets import DATASET_KINDS
from bitta.bench.make_corrupted import contact_sheet, make_corrupted
from bitta.bench.models import ClassSubset, image_size_of, match_classes
from bitta.bench.streams import StreamConfig, build_stream
from bitta.cli.main import main
from bitta.corruptions import CORRUPTIONS, corrupt
from bitta.errors import InputError, SettingError
from bitta.models import ModelCard
from bitta.streams import Domain, embedded_pack, read_corrupted
from small_trees import MAKERS, cifar10, cifar100, pacs, picture, tree_c

EXPECTED = {
    "cifar10-c": (15, 40 * 15, (3, 32, 32)),
    "cifar100-c": (15, 40 * 15, (3, 32, 32)),
    "tiny-imagenet-c": (15, 30, (3, 64, 64)),
    "imagenet-c": (15, 30, (3, 224, 224)),
    "imagenet-r": (1, 3, (3, 224, 224)),
    "pacs": (4, 8, (3, 64, 64)),
    "domainnet126": (4, 4, (3, 224, 224)),
    "visda2021": (1, 1, (3, 224, 224)),
    "coloured-mnist": (1, 50, (3, 2, 2)),
}


def test_every_kind_is_tested():
    others = {"digits", "corruptions", "arrays", "folders", "factory"}
    assert set(MAKERS) | others == set(DATASET_KINDS)


def two_domains():
    """Domains for the tests of kind = "factory"."""
    images = torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1)
    labels = torch.arange(12) % 3
    return [Domain("day", images, labels), Domain("night", images + 100, labels)]


def no_domains():
    """Not a list of domains."""
    return two_domains()[0]


def test_domains_of_a_factory_are_selected_and_sampled():
    """Five of the twelve images of one domain, with their numbers in the whole set."""
    config = StreamConfig(
        kind="factory", factory=f"{__name__}:two_domains", domains="night", n_samples=5
    )
    stream = build_stream(config, seed=0)
    batch = stream.read(0)
    assert [visit.name for visit in stream.visits] == ["night"]
    assert stream.data_set_rows.tolist() == (batch.inputs.flatten() - 100).tolist()
    assert stream.truth.tolist() == (stream.data_set_rows % 3).tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "stream.factory is missing"),
        ({"factory": f"{__name__}:no_domains"}, "returned a Domain; return a list"),
        ({"factory": f"{__name__}:missing"}, "cannot be loaded"),
        ({"factory": f"{__name__}:two_domains", "domains": "dusk"}, "there is no domain 'dusk'"),
        ({"factory": f"{__name__}:two_domains", "path": "x"}, "does not use it"),
    ],
)
def test_faulty_factory_is_refused(given, message):
    with pytest.raises(SettingError, match=message):
        build_stream(StreamConfig(kind="factory", **given), seed=0)


@pytest.mark.parametrize("kind", MAKERS)
def test_set_in_the_data_folder_is_streamed(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("BITTA_DATA", str(tmp_path))
    name, make = MAKERS[kind]
    make(tmp_path / name)
    stream = build_stream(StreamConfig(kind=kind), seed=0)
    n_domains, n_samples, shape = EXPECTED[kind]
    assert len(stream.domains) == n_domains
    assert len(stream.truth) == n_samples
    assert next(stream.batches()).inputs.shape[1:] == shape


@pytest.mark.parametrize("kind", MAKERS)
def test_error_for_a_missing_set_names_the_download_command(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("BITTA_DATA", str(tmp_path))
    with pytest.raises(InputError, match=f'run "bitta data get {MAKERS[kind][0]}"'):
        build_stream(StreamConfig(kind=kind), seed=0)


def test_gradual_order_visits_all_severities_of_generated_corruptions(tmp_path):
    cifar10(tmp_path, n=6)
    config = StreamConfig(
        kind="cifar10-c", path=str(tmp_path), corruptions="fog,contrast", order="gradual"
    )
    stream = build_stream(config, seed=0)
    names = list(dict.fromkeys(batch.domain for batch in stream.batches()))
    assert names[:5] == [f"fog {s}" for s in (1, 2, 3, 4, 5)]
    assert len(stream.visits) == 18
    assert "corrupted by bitta" in stream.protocol


def test_fingerprints_of_streams_differ_without_corrupting_all_images(tmp_path, monkeypatch):
    cifar10(tmp_path, n=6)
    made = []
    monkeypatch.setattr(
        datasets,
        "corrupt",
        lambda images, *a, **k: (made.append(len(images)), corrupt(images, *a, **k))[1],
    )

    def fingerprint(seed=0, **settings):
        config = StreamConfig(kind="cifar10-c", path=str(tmp_path), **settings)
        return build_stream(config, seed=seed).fingerprint

    variants = [
        fingerprint(),
        fingerprint(seed=1),
        fingerprint(severity=4),
        fingerprint(corruptions="fog"),
        fingerprint(n_samples=5),
        fingerprint(order="mixed"),
    ]
    assert len(set(variants)) == len(variants)
    assert fingerprint() == variants[0]
    assert set(made) == {2}  # two images of each corruption, as a sample of the generator
    cifar10(tmp_path, n=7)
    assert fingerprint() != variants[0]


def test_changed_picture_changes_the_fingerprint(tmp_path):
    pacs(tmp_path)
    config = StreamConfig(kind="pacs", path=str(tmp_path))
    before = build_stream(config, seed=0).fingerprint
    assert build_stream(config, seed=0).fingerprint == before
    picture(tmp_path / "photo" / "dog" / "1.png", 64, 51)
    assert build_stream(config, seed=0).fingerprint != before


def test_arrays_on_disk_are_preferred_to_corrupting(tmp_path):
    cifar10(tmp_path / "clean", n=20)
    clean = embedded_pack("cifar10")
    domain = Domain("cifar10", clean.images[:20], clean.labels[:20])
    make_corrupted(domain, tmp_path / "arrays", severities=(3, 5), names=("fog", "contrast"))
    config = StreamConfig(kind="cifar10-c", path=str(tmp_path / "arrays"), corruptions="fog")
    stream = build_stream(config, seed=0)
    assert "arrays on disk" in stream.protocol
    made = build_stream(
        StreamConfig(kind="cifar10-c", path=str(tmp_path / "clean"), corruptions="fog"), seed=0
    )
    assert torch.equal(next(stream.batches()).inputs, next(made.batches()).inputs)


def test_domains_are_selected_in_the_given_order(tmp_path):
    pacs(tmp_path)
    config = StreamConfig(kind="pacs", path=str(tmp_path), domains="sketch, cartoon")
    stream = build_stream(config, seed=0, preprocessing={"resize": 32, "crop": 32})
    assert [domain.name for domain in stream.domains] == ["sketch", "cartoon"]
    assert next(stream.batches()).inputs.shape == (2, 3, 32, 32)
    assert stream.protocol == (
        "4 samples of pacs, continual sketch > cartoon, shuffled within, no reset, batch 64, seed 0"
    )


def test_size_in_the_stream_overrides_the_model_card(tmp_path):
    pacs(tmp_path)
    config = StreamConfig(kind="folders", path=str(tmp_path), resize=40, crop=36)
    stream = build_stream(config, seed=0, preprocessing={"resize": 32, "crop": 32})
    assert next(stream.batches()).inputs.shape[1:] == (3, 36, 36)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "cifar10c"}, "did you mean 'cifar10-c'"),
        ({"kind": "arrays"}, "needs one"),
        (
            {"kind": "digits", "path": "x"},
            "stream.path is 'x', .*'digits'",
        ),
        ({"kind": "corruptions", "domains": "fog"}, "corruptions, severity"),
        ({"kind": "pacs", "severity": 3}, "stream.severity is 3, .*'pacs'"),
        ({"kind": "pacs", "order": "random"}, "unknown order"),
        ({"kind": "pacs", "labels": "sorted"}, "labels is 'sorted'"),
        ({"kind": "cifar10-c", "corruptions": "fogg"}, "did you mean 'fog'"),
        ({"kind": "pacs", "crop": -1}, "crop is -1"),
        ({"kind": "pacs", "window": -2}, "window is -2"),
    ],
)
def test_invalid_stream_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        StreamConfig(**settings)


def test_batch_size_one_has_a_default_window():
    assert StreamConfig(kind="digits", batch_size=1).window_size == 64
    assert StreamConfig(kind="digits").window_size == 0
    assert StreamConfig(kind="digits", batch_size=1, window=0).window_size == 0


def card(*classes):
    return ModelCard(architecture="x", arguments={}, classes=classes, input_shape=(2,))


def test_model_outputs_follow_the_classes_of_the_stream():
    model = nn.Linear(2, 4)
    subset = match_classes(model, card("a", "b", "c", "d"), ("d", "b"))
    assert isinstance(subset, ClassSubset)
    x = torch.ones(1, 2)
    assert torch.equal(subset(x), model(x)[:, [3, 1]])
    assert match_classes(model, card("a", "b"), ("a", "b")) is model
    assert match_classes(model, card("a", "b"), ("cat", "dog")) is model
    assert match_classes(model, None, ("cat", "dog")) is model
    for known, classes in ((("a", "b", "c"), ("a", "cat")), (("a", "b"), ("b", "cat"))):
        with pytest.raises(InputError, match="'cat'"):
            match_classes(model, card(*known), classes)
    twice = card("crane", "dog", "crane", "cat")
    assert match_classes(model, twice, ("w", "x", "y", "z")) is model


def test_arrays_of_another_set_are_ignored(tmp_path):
    """The folder holds CIFAR-10-C as arrays and the clean CIFAR-100."""
    make_corrupted(clean_domain(), tmp_path / "cifar10-c", severities=(5,), names=("fog",))
    cifar100(tmp_path / "cifar100")
    config = {"path": str(tmp_path), "corruptions": "fog"}
    stream = build_stream(StreamConfig(kind="cifar100-c", **config), seed=0)
    assert "cifar100-c severity 5, corrupted by bitta" in stream.protocol
    assert len(stream.domains[0].classes) == 100
    stream = build_stream(StreamConfig(kind="cifar10-c", **config), seed=0)
    assert "cifar10-c severity 5, arrays on disk" in stream.protocol
    assert stream.domains[0].classes[3] == "cat"
    np.save(tmp_path / "cifar10-c" / "labels.npy", np.full(60, 77, np.uint8))
    with pytest.raises(InputError, match="go up to 77, but cifar10 has 10 classes"):
        build_stream(StreamConfig(kind="cifar10-c", **config), seed=0)


def test_all_severities_use_the_same_samples(tmp_path):
    make_corrupted(clean_domain(40), tmp_path / "cifar10-c", names=("fog",))
    cifar10(tmp_path / "cifar10", n=40)
    config = StreamConfig(
        kind="cifar10-c", path=str(tmp_path), corruptions="fog", n_samples=5, order="gradual"
    )
    on_disk = build_stream(config, seed=0)
    for file in (tmp_path / "cifar10-c").iterdir():
        file.unlink()
    made = build_stream(config, seed=0)
    rows = {tuple(d.labels.tolist()) for stream in (on_disk, made) for d in stream.domains}
    assert len(rows) == 1


def test_classes_are_collected_from_all_severities(tmp_path):
    tree_c(tmp_path, ["n01443537", "n01629819"], 64)
    for corruption in CORRUPTIONS:
        (tmp_path / corruption / "1" / "n01443537" / "a.JPEG").unlink()
        (tmp_path / corruption / "1" / "n01443537").rmdir()
    config = StreamConfig(kind="tiny-imagenet-c", path=str(tmp_path), order="gradual")
    stream = build_stream(config, seed=0)
    assert stream.domains[0].labels.tolist() == [1]
    assert stream.domains[0].classes == ("n01443537", "n01629819")


def clean_domain(n=12):
    pack = embedded_pack("cifar10")
    return Domain("cifar10", pack.images[:n], pack.labels[:n], pack.classes)


def test_arrays_are_written_in_the_published_layout(tmp_path):
    """Five severities follow one another. Those that were not requested are zeros."""
    made = []
    make_corrupted(
        clean_domain(),
        tmp_path,
        severities=(5,),
        names=("fog",),
        on_made=lambda *m: made.append(m[0]),
    )
    array, labels = np.load(tmp_path / "fog.npy"), np.load(tmp_path / "labels.npy")
    assert array.shape == (60, 32, 32, 3)
    assert not array[:48].any()
    expected = corrupt(clean_domain().images, "fog", severity=5).permute(0, 2, 3, 1).numpy()
    assert (array[48:] == expected).all()
    assert labels.tolist() == clean_domain().labels.tolist() * 5
    assert made == ["fog"]
    [read] = read_corrupted(tmp_path, ["fog"], severity=5)
    assert torch.equal(read.images[torch.arange(12)], corrupt(clean_domain().images, "fog"))
    with pytest.raises(InputError, match="severity 3"):
        read_corrupted(tmp_path, ["fog"], severity=3)


def test_corrupted_copy_is_refused_as_plain_arrays(tmp_path):
    make_corrupted(clean_domain(), tmp_path, severities=(5,), names=("fog",))
    with pytest.raises(InputError, match='use kind = "cifar10-c"'):
        build_stream(StreamConfig(kind="arrays", path=str(tmp_path)), seed=0)


def test_image_size_follows_the_model_card():
    small = ModelCard(architecture="x", arguments={}, classes=(), input_shape=(3, 32, 32))
    assert image_size_of(small) == {"resize": 32, "crop": 32}
    assert image_size_of(replace(small, preprocessing={"crop": 9})) == {"crop": 9}
    assert image_size_of(card()) == {}
    assert image_size_of(None) == {}


def test_existing_files_are_kept_and_other_settings_are_refused(tmp_path):
    make_corrupted(clean_domain(), tmp_path, severities=(5,), names=("fog",))
    seconds = {}
    make_corrupted(
        clean_domain(),
        tmp_path,
        severities=(5,),
        names=("fog", "contrast"),
        on_made=lambda name, taken: seconds.update({name: taken}),
    )
    assert seconds["fog"] == 0
    assert seconds["contrast"] > 0
    with pytest.raises(InputError, match="seed 0"):
        make_corrupted(clean_domain(), tmp_path, severities=(5,), names=("snow",), seed=1)
    others = Domain("cifar10", clean_domain(24).images[12:], clean_domain(24).labels[12:])
    with pytest.raises(InputError, match="images "):
        make_corrupted(others, tmp_path, severities=(5,), names=("snow",))
    (tmp_path / "bitta.json").write_text("")
    with pytest.raises(InputError, match="unknown settings"):
        make_corrupted(clean_domain(), tmp_path, severities=(5,), names=("snow",))
    np.save(tmp_path / "x.npy", np.zeros(1))
    (tmp_path / "bitta.json").unlink()
    with pytest.raises(InputError, match="--out"):
        make_corrupted(clean_domain(), tmp_path)


def test_contact_sheet_shows_every_corruption_and_severity(tmp_path):
    contact_sheet(clean_domain().images[:2], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        width, height = sheet.size
        pixels = np.asarray(sheet.convert("RGB"))
    assert height == 24 + 15 * 96
    assert width == 150 + 6 * (2 * 96 + 6)
    clean = clean_domain().images[0].permute(1, 2, 0).numpy()
    assert (pixels[24 : 24 + 96 : 3, 150 : 150 + 96 : 3] == clean).all()


def test_command_writes_arrays_and_contact_sheet(tmp_path, capsys):
    cifar10(tmp_path / "data", n=10)
    arguments = ["data", "make-corrupted", "cifar10", "--data", str(tmp_path / "data")]
    out = ["--out", str(tmp_path / "c"), "--sheet", str(tmp_path / "s.png")]
    assert main([*arguments, *out, "--severity", "5", "--corruptions", "fog,frost"]) == 0
    message = capsys.readouterr().out
    assert "2 corruptions x 10 images at severity 5 in" in message
    assert (tmp_path / "s.png").exists()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "bitta.json", "fog.npy", "frost.npy", "labels.npy",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["cifar10"], "--out"),
        (["cifar1", "--out", "x"], "did you mean 'cifar10"),
        (["cifar10", "--out", "x", "--severity", "6"], "--severity is '6'"),
        (["cifar10", "--out", "x", "--corruptions", "fogg"], "did you mean 'fog'"),
        (["cifar10", "--out", "x", "--data", "/nowhere"], "bitta data get cifar10"),
    ],
)
def test_invalid_arguments_print_one_sentence(extra, message, capsys):
    assert main(["data", "make-corrupted", *extra]) == 2
    assert message in capsys.readouterr().err


def test_streams_lists_kinds_orders_and_settings(capsys):
    assert main(["streams"]) == 0
    listing = capsys.readouterr().out
    assert all(kind in listing for kind in DATASET_KINDS)
    assert "gradual" in listing
    assert main(["streams", "--settings"]) == 0
    assert "batch_size" in capsys.readouterr().out
