"""The Vessary Isles: a made-up world of linked facts, its articles, and questions that follow the links.

A fact is functional (each subject has one object for a relation), every word of a name is used by one
name only, and a question is a chain of relations: so each question has exactly one answer, and each link
of the chain can be read in one article.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from heddle.types import Json

SEED = 7
QUESTIONS_BY_HOPS = {1: 24, 2: 30, 3: 26}
COUNTS = {"isle": 6, "river": 22, "town": 44, "person": 80, "guild": 18, "building": 34, "book": 30}

_TRADES = ("weaver", "miller", "potter", "sailor", "baker", "mason", "smith", "painter", "healer", "singer")
_GOODS = ("salt", "honey", "glass", "wool", "copper", "cheese", "rope", "paper", "cider", "amber", "tiles")
_CRAFTS = ("Weavers", "Millers", "Potters", "Sailors", "Bakers", "Masons", "Smiths", "Painters", "Healers")
_BUILDINGS = ("Tower", "Bridge", "Hall", "Gate", "Mill", "Library")
_THEMES = ("tides", "birds", "storms", "bridges", "stars", "herbs", "old songs", "ships", "bees", "ghosts")
_ENDINGS = {
    "isle": ("ara", "una", "esk"),
    "river": ("ell", "ow", "ine"),
    "hill": ("tor", "peak"),
    "town": ("wick", "ford", "haven", "stead", "by"),
    "first": ("a", "o", "in", "el"),
    "last": ("mont", "dal", "ric", "ker", "vane"),
    "guild": ("ax", "ent"),
    "building": ("ard", "ost"),
    "book": ("ia", "eth"),
}
_ONSETS = ("b", "br", "c", "d", "dr", "f", "g", "gr", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "v")
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("l", "m", "n", "r", "s", "th")


@dataclass(slots=True, eq=False)
class Subject:
    """Something with an article. ``facts`` maps a relation to its object: a subject or a word."""

    kind: str
    name: str
    doc_id: str = ""
    text: str = ""
    facts: dict[str, Subject | str] = field(default_factory=dict)


class _Names:
    """Draws names of which no word has been drawn before."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._taken: set[str] = set()

    def word(self, kind: str) -> str:
        while True:
            stem = self._rng.choice(_ONSETS) + self._rng.choice(_VOWELS) + self._rng.choice(_CODAS)
            word = (stem + self._rng.choice(_ENDINGS[kind])).capitalize()
            if word not in self._taken:
                self._taken.add(word)
                return word


class World:
    """All subjects with their facts and articles; the same for the same seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names = _Names(rng)
        self.isles = [self._isle() for _ in range(COUNTS["isle"])]
        self.rivers = [self._river() for _ in range(COUNTS["river"])]
        self.towns = [self._town() for _ in range(COUNTS["town"])]
        self.people: list[Subject] = []
        for _ in range(COUNTS["person"]):
            self.people.append(self._person())
        self._elect_mayors()
        self.guilds = [self._guild() for _ in range(COUNTS["guild"])]
        self.buildings = [self._building() for _ in range(COUNTS["building"])]
        self.books = [self._book() for _ in range(COUNTS["book"])]
        self.subjects = [
            *self.isles,
            *self.rivers,
            *self.towns,
            *self.people,
            *self.guilds,
            *self.buildings,
            *self.books,
        ]
        rng.shuffle(self.subjects)
        for number, subject in enumerate(self.subjects, start=1):
            subject.doc_id = f"a{number:03d}"

    def _isle(self) -> Subject:
        name, hill = self._names.word("isle"), self._names.word("hill")
        isle = Subject("isle", name, facts={"highest hill": hill})
        isle.text = f"{name} is one of the Vessary Isles. The highest hill of {name} is {hill}."
        return isle

    def _river(self) -> Subject:
        name, isle, length = (
            self._names.word("river"),
            self._rng.choice(self.isles),
            self._rng.randint(9, 180),
        )
        river = Subject("river", name, facts={"isle": isle, "length in km": str(length)})
        river.text = (
            f"The {name} is a river on the isle of {isle.name}. The length of the {name} is {length} km."
        )
        return river

    def _town(self) -> Subject:
        name, river = self._names.word("town"), self._rng.choice(self.rivers)
        goods, year = self._rng.choice(_GOODS), str(self._rng.randint(310, 890))
        town = Subject("town", name, facts={"river": river, "main export": goods, "founding year": year})
        town.text = (
            f"{name} is a town on the river {river.name}. The main export of {name} is {goods}. "
            f"Its founding year is {year}."
        )
        return town

    def _person(self) -> Subject:
        name = f"{self._names.word('first')} {self._names.word('last')}"
        town, trade = self._rng.choice(self.towns), self._rng.choice(_TRADES)
        person = Subject("person", name, facts={"birthplace": town, "trade": trade})
        person.text = f"{name} is a {trade}. The birthplace of {name} is {town.name}."
        if self.people:
            teacher = self._rng.choice(self.people)
            person.facts["teacher"] = teacher
            person.text += f" The teacher of {name} was {teacher.name}."
        return person

    def _elect_mayors(self) -> None:
        for town, mayor in zip(self.towns, self._rng.sample(self.people, len(self.towns)), strict=True):
            town.facts["mayor"] = mayor
            town.text += f" The mayor of {town.name} is {mayor.name}."

    def _guild(self) -> Subject:
        name = f"{self._names.word('guild')} {self._rng.choice(_CRAFTS)}"
        founder, seat = self._rng.choice(self.people), self._rng.choice(self.towns)
        guild = Subject("guild", name, facts={"founder": founder, "seat": seat})
        guild.text = f"The {name} are a guild. The founder of the {name} was {founder.name}."
        guild.text += f" Their seat is {seat.name}."
        return guild

    def _building(self) -> Subject:
        name = f"{self._names.word('building')} {self._rng.choice(_BUILDINGS)}"
        architect, town, year = (
            self._rng.choice(self.people),
            self._rng.choice(self.towns),
            str(self._rng.randint(890, 1290)),
        )
        building = Subject(
            "building", name, facts={"architect": architect, "town": town, "opening year": year}
        )
        building.text = (
            f"{name} stands in the town of {town.name}. The architect of {name} was {architect.name}. "
            f"Its opening year is {year}."
        )
        return building

    def _book(self) -> Subject:
        name = f"Book of {self._names.word('book')}"
        author, theme = self._rng.choice(self.people), self._rng.choice(_THEMES)
        book = Subject("book", name, facts={"author": author, "theme": theme})
        book.text = f"The {name} is a book. The author of the {name} is {author.name}. Its theme is {theme}."
        return book


def articles_and_questions(seed: int = SEED) -> tuple[list[dict[str, Json]], list[dict[str, Json]]]:
    """The lines of the corpus and of ``search.jsonl``."""
    rng = random.Random(seed)
    world = World(rng)
    articles: list[dict[str, Json]] = [
        {"doc_id": subject.doc_id, "title": subject.name, "text": subject.text} for subject in world.subjects
    ]
    questions: list[dict[str, Json]] = []
    for hops, count in QUESTIONS_BY_HOPS.items():
        for task in _distinct_questions(world, rng, hops, count):
            questions.append({"prompt_id": f"search-{len(questions) + 1:03d}", "task": task})
    return articles, questions


def _distinct_questions(world: World, rng: random.Random, hops: int, count: int) -> list[dict[str, Json]]:
    tasks: dict[str, dict[str, Json]] = {}
    while len(tasks) < count:
        task = _question(rng.choice(world.subjects), rng, hops)
        if task is not None:
            tasks.setdefault(str(task["question"]), task)
    return list(tasks.values())


def _question(start: Subject, rng: random.Random, hops: int) -> dict[str, Json] | None:
    """A walk of ``hops`` relations from ``start``; ``None`` where it comes to a dead end or back."""
    here: Subject | str = start
    phrase, path = start.name, []
    for _ in range(hops):
        if isinstance(here, str) or here in path:
            return None
        path.append(here)
        relation = rng.choice(sorted(here.facts))
        here = here.facts[relation]
        phrase = f"the {relation} of {phrase}"
    answer = here if isinstance(here, str) else here.name
    gold: list[Json] = [subject.doc_id for subject in path]
    return {"question": f"Name {phrase}.", "answer": answer, "gold": gold}
