"""Folders with people's addresses are for their owner alone, whoever makes them first."""

from pathlib import Path

import pytest

from sendonce.folders import private_folder


def test_every_folder_that_is_made_is_private(tmp_path: Path) -> None:
    private_folder(tmp_path / "a" / "b" / "c")
    made = (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c")
    assert [folder.stat().st_mode & 0o777 for folder in made] == [0o700] * 3


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    private_folder(tmp_path / "open")
    private_folder(tmp_path / "open" / "inner")
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o755


def test_a_file_in_the_way_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        private_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        private_folder(tmp_path / "file" / "inner")
