"""A made-up recipients file, as lists are: people of many scripts, a few bad rows, a few twice."""

import csv
import random
import unicodedata
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import orjson

# Locale, time zones, family name first, given names, family names.
_PEOPLE: Final[tuple[tuple[str, tuple[str, ...], bool, str, str], ...]] = (
    (
        "en",
        ("Europe/London", "America/New_York", "America/Los_Angeles", "Australia/Sydney"),
        False,
        "Olivia Noah Amelia Jack Isla Leo Priya Kofi Siobhan Mei",
        "Smith O'Neil Okafor Patel Clarke Nguyen-Hall Byrne Fraser Adeyemi Wong",
    ),
    (
        "fr",
        ("Europe/Paris", "America/Montreal", "Africa/Dakar"),
        False,
        "Zoë Chloé Léa Jérôme François Anaïs Théo Aïcha Benoît Inès",
        "Lefèvre Durand Gagné Müller Diop Bélanger Noël Hébert N'Diaye Roy",
    ),
    (
        "vi",
        ("Asia/Ho_Chi_Minh",),
        True,
        "Thị-Hương Văn-Đức Minh-Châu Ngọc-Ánh Quốc-Bảo Tuấn Phương Thảo Khôi Yến",
        "Nguyễn Trần Lê Phạm Hoàng Võ Đặng Bùi Đỗ Ngô",
    ),
    (
        "ar",
        ("Africa/Cairo", "Asia/Riyadh", "Asia/Dubai"),
        False,
        "ليلى محمد فاطمة عمر نور يوسف مريم خالد سارة حسن",
        "الخطيب حداد منصور العلي ناصر سليمان درويش قاسم رحمة شاهين",
    ),
    (
        "pt-BR",
        ("America/Sao_Paulo", "America/Manaus"),
        False,
        "João Conceição Luís Antônia Thaís Caetano Iara Otávio Lívia Raí",
        "Araújo Gonçalves Simões Brandão Assunção Leão Falcão Prado Ventura Rocha",
    ),
    (
        "de",
        ("Europe/Berlin", "Europe/Vienna", "Europe/Zurich"),
        False,
        "Jürgen Käthe Björn Änne Lukas Özlem Günther Mia Sören Elif",
        "Groß Schäfer Şahin Bäcker Vogel Köhler Weiß Jäger Öztürk Lang",
    ),
    (
        "ja",
        ("Asia/Tokyo",),
        True,
        "陽菜 蓮 さくら 湊 結衣 大翔 葵 悠真 凛 樹",
        "佐藤 鈴木 高橋 田中 渡辺 伊藤 山本 中村 小林 加藤",
    ),
    (
        "el",
        ("Europe/Athens",),
        False,
        "Ελένη Γιώργος Μαρία Νίκος Κατερίνα Δημήτρης Σοφία Ανδρέας Ιωάννα Πέτρος",
        "Παπαδόπουλος Βλάχος Οικονόμου Νικολάου Ιωάννου Δήμου Ρήγας Μακρής Γεωργίου Λάμπρου",
    ),
)
_WEIGHTS: Final = (34, 14, 12, 10, 12, 10, 5, 3)
_DOMAINS: Final = ("mail.example", "post.example", "letterbox.example", "work.example", "uni.example")
_RARE_DOMAINS: Final = ("bücher.example", "xn--r8jz45g.example", "thư.example")
# Where everybody of a sample lives.
DOMAINS: Final = _DOMAINS + _RARE_DOMAINS
_PICKS: Final = (
    ("Linen tablecloth", "64.00", "linen-tablecloth"),
    ("Stoneware bowl", "14.50", "stoneware-bowl"),
    ("Beeswax candles", "9.90", "beeswax-candles"),
    ("Oak serving board", "38.00", "oak-board"),
    ("Glass carafe", "22.00", "glass-carafe"),
    ("Enamel pitcher", "31.50", "enamel-pitcher"),
)
_HEADER: Final = ("recipient_id", "email", "locale", "timezone", "template_variables", "name", "points")
# One bad row and one row that is there twice for about so many good ones; at least one of each kind in any file.
_BAD_EVERY: Final = 90
_TWICE_EVERY: Final = 140
# One of so many has points that are no number: a good row, from which the template cannot make a letter.
_UNFIT_EVERY: Final = 400

_Line = list[str]


def write_sample(path: Path | str, rows: int, seed: int = 7, *, today: date = date(2026, 3, 1)) -> None:
    """Write a CSV from which a load takes exactly `rows` recipients; bad rows and duplicates come on top.

    Equal for equal `rows`, `seed` and `today`, from which on offers last 19 to 30 days. Everyone lives under
    `.example`, which nobody can own (RFC 2606). The variables are those of the shipped template `newsletter`. OSError
    if the file cannot be written.
    """
    chance = random.Random(f"{seed}/{rows}")
    with open(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(_HEADER)
        for line in _lines(rows, chance, today):
            writer.writerow(line)


def _lines(rows: int, chance: random.Random, today: date) -> Iterator[_Line]:
    bad = max(len(_SPOIL), rows // _BAD_EVERY)
    twice = max(2, rows // _TWICE_EVERY)
    kinds = [*repeat("good", rows - 1), *repeat("bad", bad), *repeat("twice", twice)]
    chance.shuffle(kinds)
    spoilers = 0
    number, last = 1, _person(1, chance, today)
    yield last
    for kind in kinds:
        if kind == "good":
            number += 1
            last = _person(number, chance, today)
            yield last
        elif kind == "twice":
            yield _again(last, chance)
        else:
            # Numbers beyond the good ones, so that nothing of a bad row is anybody's duplicate.
            spoilers += 1
            line = _person(rows + spoilers, chance, today)
            _SPOIL[spoilers % len(_SPOIL)](line)
            yield line


def _person(number: int, chance: random.Random, today: date) -> _Line:
    """Number, the only thing in an address that must be unique, decides who is one person."""
    locale, zones, family_first, given_names, family_names = chance.choices(_PEOPLE, _WEIGHTS)[0]
    given = chance.choice(given_names.split()).replace("-", " ")
    family = chance.choice(family_names.split())
    latin = f"{_latin(given)}.{_latin(family)}" if chance.random() < 0.7 else ""
    local = f"{latin}{'+news' if latin and chance.random() < 0.05 else ''}" or chance.choice(("hello", "me", "post"))
    domain = chance.choice(_DOMAINS if chance.random() < 0.98 else _RARE_DOMAINS)
    variables: dict[str, Any] = {"picks": [_pick(pick) for pick in chance.sample(_PICKS, chance.randint(0, 3))]}
    if chance.random() < 0.3:
        variables["offer_ends"] = f"{today + timedelta(days=chance.randint(19, 30))}T21:00:00Z"
    timezone = chance.choice(zones)
    if chance.random() < 0.004:
        timezone = chance.choice(("Mars/Olympus", "Central Time", "GMT+25"))
    elif chance.random() < 0.01:
        timezone = timezone.lower()
    name = f"{family} {given}" if family_first else f"{given} {family}"
    points = str(chance.randint(0, 5000)) if chance.random() < 0.8 else ""
    return [
        f"C{number:07d}",
        f"{local}.{number}@{domain}",
        locale if chance.random() < 0.98 else chance.choice(("", "klingon", locale.replace("-", "_").upper())),
        timezone,
        orjson.dumps(variables).decode(),
        name if chance.random() < 0.97 else "",
        "n/a" if number % _UNFIT_EVERY == 11 else points,
    ]


def _latin(name: str) -> str:
    """A name without its marks, as people spell it in addresses; "me" for a script without Latin letters."""
    plain = unicodedata.normalize("NFKD", name.lower().replace("đ", "d").replace("ß", "ss"))
    return "".join(character for character in plain if character.isascii() and character.isalnum()) or "me"


def _pick(pick: tuple[str, str, str]) -> dict[str, str]:
    name, price, page = pick
    return {"name": name, "price": price, "url": f"https://shop.example/{page}"}


def _again(line: _Line, chance: random.Random) -> _Line:
    """Somebody once more: the same row, or the same mailbox in another spelling under another id."""
    copy = list(line)
    if chance.random() < 0.5:
        copy[0] = f"{line[0]}-again"
        local, _, domain = line[1].partition("@")
        copy[1] = f" {local.capitalize()}@{domain}"
    return copy


def _broken_address(line: _Line) -> None:
    line[1] = line[1].replace("@", " at ")


def _double_dot(line: _Line) -> None:
    line[1] = line[1].replace("@", "..@")


def _no_address(line: _Line) -> None:
    line[1] = ""


def _no_id(line: _Line) -> None:
    line[0] = ""


def _hidden_character(line: _Line) -> None:
    line[1] = line[1][:2] + "\u00ad" + line[1][2:]


def _cut_json(line: _Line) -> None:
    line[4] = line[4][:-1]


def _no_object(line: _Line) -> None:
    line[4] = '["picks"]'


def _too_many_values(line: _Line) -> None:
    line.extend(("moved", "x"))


_SPOIL: Final = (
    _broken_address,
    _double_dot,
    _no_address,
    _no_id,
    _hidden_character,
    _cut_json,
    _no_object,
    _too_many_values,
)
