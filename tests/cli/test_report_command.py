"""Tests of the command bitta report."""

from pathlib import Path

import pytest

from bitta.cli.main import main
from bitta.corruptions import CORRUPTIONS
from made_results import made_run

PAPER = Path(__file__).parents[2] / "reproduction" / "paper"


@pytest.fixture
def folder(tmp_path):
    """A folder with the results of two rows."""
    results = tmp_path / "results"
    results.mkdir()
    made_run("source", "source", [4, 8]).save(results / "source-seed0.json")
    made_run("bitta", "bitta", [6, 9]).save(results / "bitta-seed0.json")
    return results


def refused(capsys, *arguments):
    assert main(["report", *map(str, arguments)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


def test_text_has_no_escape_codes_without_a_terminal(folder, capsys):
    assert main(["report", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "75.00" in text
    assert "\x1b" not in text
    assert "--measure all adds" in text


def test_text_fits_the_width_of_the_terminal(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    main(["report", str(folder)])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines()[:-1])) <= 40
    assert "Domains do not fit" in text.replace("\n  ", " ")


def test_formats_and_measures_can_be_chosen(folder, capsys):
    main(["report", str(folder), "--format", "markdown", "--measure", "accuracy,ece"])
    assert "| BiTTA | **60.0** | **90.0** | **75.00** |" in capsys.readouterr().out
    main(["report", str(folder), "--format", "csv"])
    assert capsys.readouterr().out.startswith("section,row,title,method,answers,")


def test_rows_are_selected_by_pattern_and_tested_against_a_named_row(folder, capsys):
    main(["report", str(folder), "--rows", "b*,source", "--against", "source"])
    assert "vs Source" in capsys.readouterr().out
    main(["report", str(folder), "--rows", "BiTTA"])
    assert "Source" not in capsys.readouterr().out


def test_out_writes_all_files_and_prints_their_names(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "report"
    assert main(["report", str(folder), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    written = {path.name for path in out.iterdir()}
    assert {"report.md", "report.csv", "report.html"} < written
    assert all(name in told for name in written)
    assert "### Other measures" in (out / "report.md").read_text()


def test_html_writes_only_the_page(folder, tmp_path):
    pytest.importorskip("matplotlib")
    assert main(["report", str(folder), "--out", str(tmp_path / "page"), "--html"]) == 0
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["report.html"]


def test_paper_shows_the_numbers_of_a_table_beside_ours(tmp_path, capsys):
    folder = tmp_path / "main-cifar10-c"
    folder.mkdir()
    made_run("bitta", "bitta", [9] * 15, domains=tuple(CORRUPTIONS)).save(
        folder / "bitta-seed0.json"
    )
    assert main(["report", str(folder), "--paper", str(PAPER)]) == 0
    assert "87.20" in capsys.readouterr().out
    main(["report", str(folder)])
    assert "87.20" not in capsys.readouterr().out


def test_mistakes_end_with_one_sentence_and_exit_code_2(folder, tmp_path, capsys):
    assert "there is no folder" in refused(capsys, tmp_path / "nowhere")
    assert "there is no result" in refused(capsys, tmp_path)
    assert "did you mean 'bitta'?" in refused(capsys, folder, "--rows", "bita")
    assert "did you mean 'source'?" in refused(capsys, folder, "--against", "sorce")
    assert "did you mean 'memory'?" in refused(capsys, folder, "--measure", "memry")
    assert "there is no folder" in refused(capsys, folder, "--paper", tmp_path / "nowhere")
    assert "holds no table" in refused(capsys, folder, "--paper", folder)
    assert "give its folder with --out" in refused(capsys, folder, "--html")
    assert "has no names" in refused(capsys, folder, "--rows", ",")
    (folder / "speed.json").write_text('{"format": 1}')
    assert "speed.json' is " in refused(capsys, folder)
