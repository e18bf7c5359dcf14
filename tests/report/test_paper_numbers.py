"""Tests that rows of a paper are read from TOML tables and matched to our rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from bitta.errors import InputError
from bitta.report.comparison import compare
from bitta.report.paper_numbers import has_other_length, read_paper_tables, tables_for
from bitta.report.sections import read_sections
from made_results import made_run

FOLDER = Path(__file__).parents[2] / "reproduction" / "paper"
PAPER = read_paper_tables(FOLDER)
TABLES = {table.id: table for table in PAPER.tables}
MAIN = "tinyimagenetc-cifar10-c.toml"
DOMAINS = TABLES["tab:tinyimagenetc/cifar10-c"].columns[:-1]
USUAL = {"lr": 1e-4, "epochs": 3, "policy": "dropout", "mecta": "off", "micro_batch": 0}


def run(name, method, *, kind="cifar10-c", right=9, domains=DOMAINS, **changed):
    settings = USUAL | changed.pop("settings", {})
    made = made_run(
        name, method, [right] * len(domains), domains=domains, settings=settings, **changed
    )
    return replace(made, experiment={
        **made.experiment, "stream": {"kind": kind, "order": "continual"},
        "enhanced": {"n_samples": -1 if name.startswith("enhanced") else 0},
    })  # fmt: skip


def compared(folder, runs, **options):
    folder.mkdir()
    for index, made in enumerate(runs):
        made.save(folder / f"{index}.json")
    [section] = read_sections([folder])
    return compare(section, **({"paper": PAPER} | options))


def means(comparison):
    return {name: printed.mean for name, printed in comparison.paper_matches.items()}


@pytest.mark.parametrize("folder", ["main-cifar10-c", "cifar10-c"])
def test_rows_match_the_main_table_by_the_folder_name(tmp_path, folder):
    runs = [
        run("source", "source"),
        run("tent", "tent", n_queries=0),
        run("tent-feedback", "tent"),
        run("deyo-feedback", "deyo"),
        run("bitta", "bitta"),
        run("eta", "eta"),
    ]
    comparison = compared(tmp_path / folder, runs)
    assert means(comparison) == {
        "source": 57.23, "tent": 53.42, "tent-feedback": 80.49, "deyo-feedback": 84.41,
        "bitta": 87.20,
    }  # fmt: skip
    bitta = comparison.section.rows[-1]
    assert comparison.difference_to_paper(bitta) == pytest.approx(90 - 87.20)
    assert comparison.paper_matches["bitta"].value("fog") == 90.30
    assert comparison.paper_matches["deyo-feedback"].value("fog") is None
    assert [table.title for table in comparison.matched_tables] == [
        "Table 1a",
        "Table 9",
        "Table 12a",
    ]


def test_single_table_applies_to_results_in_any_folder(tmp_path):
    comparison = compared(tmp_path / "mine", [run("bitta", "bitta")])
    assert not comparison.paper_matches
    assert comparison.paper_notes == []
    [section] = read_sections([tmp_path / "mine"])
    assert means(compare(section, paper=read_paper_tables(FOLDER / MAIN))) == {"bitta": 87.20}


def test_other_dataset_matches_its_own_table(tmp_path):
    of_100 = compared(tmp_path / "original", [run("source", "source", kind="cifar100-c")])
    assert [table.id for table in of_100.matched_tables] == ["tab:app_original/cifar100-c"]


def test_rows_with_other_settings_or_feedback_do_not_match(tmp_path):
    runs = [
        run("flipped", "bitta", flip=0.1),
        run("late", "bitta", delay=3),
        run("labels", "simatta", labels="full"),
        run("other-lr", "bitta", settings={"lr": 7.0}),
        run("usual", "bitta"),
    ]
    comparison = compared(tmp_path / "main-cifar10-c", runs)
    assert set(means(comparison)) == {"usual", "labels"}
    assert comparison.paper_matches["labels"].table.title == "Table 12a"


def test_variants_match_by_their_settings(tmp_path):
    runs = [
        run(name, "bitta", settings={"policy": name})
        for name in ("dropout", "softmax", "ensemble", "augmentation")
    ]
    assert means(compared(tmp_path / "policies", runs)) == {
        "dropout": 87.20, "softmax": 85.90, "ensemble": 85.50, "augmentation": 19.07,
    }  # fmt: skip
    sizes = {1: 3e-4, 2: 1.5e-4, 3: 1e-4}
    steps = [run(f"e{n}", "bitta", settings={"epochs": n, "lr": sizes[n]}) for n in sizes]
    assert means(compared(tmp_path / "epochs", steps)) == {"e1": 87.11, "e2": 87.15, "e3": 87.20}


def test_fine_tuned_model_matches_its_own_rows(tmp_path):
    comparison = compared(tmp_path / "enhanced", [run("enhanced-bn_stats", "bn_stats")])
    expected = TABLES["tab:app_enhanced_corruption"].value("bn_stats", "none", "mean")
    assert means(comparison) == {"enhanced-bn_stats": expected}
    assert comparison.section.rows[0].title == "BN-Stats (prepared)"


def test_mixed_stream_matches_the_last_column(tmp_path):
    mixed = run("bitta", "bitta", kind="pacs", domains=("mixed",))
    assert means(compared(tmp_path / "pacs-mixed", [mixed])) == {"bitta": 72.18}


def test_note_says_that_a_shorter_stream_is_not_comparable(tmp_path):
    comparison = compared(tmp_path / "main-cifar10-c", [run("bitta", "bitta")])
    assert has_other_length(comparison.section, PAPER.tables)
    assert "NOT COMPARABLE with the paper: 10 samples of each domain here, 9,984 there." in (
        comparison.paper_notes
    )
    whole = compared(tmp_path / "cifar10-c", [run("bitta", "bitta", n=9984)])
    assert not has_other_length(whole.section, PAPER.tables)
    assert len(whole.paper_notes) == 1


def test_table_of_another_stream_is_shown_as_not_measured(tmp_path):
    comparison = compared(tmp_path / "memory", [run("bitta", "bitta")])
    assert tables_for(comparison.section, PAPER) == []
    [note] = compare(
        comparison.section, paper=read_paper_tables(FOLDER / "pacs_vlcs.toml")
    ).paper_notes
    assert note.startswith("Table 2: ")


def test_report_without_a_paper_has_no_numbers_and_no_notes_of_it(tmp_path):
    options = vars(compared(tmp_path / "main-cifar10-c", [run("bitta", "bitta")]))
    comparison = compare(options["section"])
    assert not comparison.paper_matches
    assert comparison.paper_notes == []


def test_folder_is_read_in_the_order_of_the_paper():
    numbers = [table.title for table in PAPER.tables]
    assert numbers[:4] == ["Table 1a", "Table 1b", "Table 1c", "Table 2"]
    assert numbers.index("Table 9") < numbers.index("Table 10")


def test_files_that_are_no_table_of_accuracies_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"no folder .*nowhere"):
        read_paper_tables(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no table"):
        read_paper_tables(tmp_path)
    with pytest.raises(InputError, match=r"gpu_memory\.toml' is in MB"):
        read_paper_tables(FOLDER / "gpu_memory.toml")
    for text in ("rows = []", "no toml", 'id = "tab:1"'):
        (tmp_path / "wrong.toml").write_text(text)
        with pytest.raises(InputError, match=r"wrong\.toml' is not a table of a paper"):
            read_paper_tables(tmp_path)
